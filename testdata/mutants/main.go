// Command mutants breaks the code on purpose, one small change at a time, and
// fails unless the tests that pin the changed line turn red. It reads list.txt
// beside it and works on no file of the tree: the go command overlays the change.
//
//	go run ./testdata/mutants [-j N] [-times N] [-v] [NAME-SUBSTRING...]
//
// With -times each mutant must be caught so often in a row: one that is caught by luck
// fails the gate on an unlucky day.
//
// The tests are first run on the code as it is: what fails anyway catches nothing.
// Without a name it also fails if list.txt has none of one of the properties below.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// properties are what must be shown to be pinned, each by at least one mutant
// whose name begins with it.
var properties = []string{
	"anchor defaults to the tool's own pid", "runnable count constant", "held_uid echoes the declared owner", "held_uid is the reader's",
	"runnable_at_acquire re-read at print time", "STALE folded into EXPIRED", "wait timeout returns success", "grace only for an empty record",
	"grace 300 s → 2 s", "reap ignores a live anchor", "unverifiable takeover claims stale_pid", "human status keyed off something else than the state",
	"EXPIRED text says the holder is gone", "STALE text says FREE", "live-anchor guard voids the holder's ttl", "live-anchor guard accepts a zombie",
	"start time comparison dropped", "boot id comparison dropped", "zombie check dropped", "every Z treated as dead", "unknown treated as gone",
	"gone treated as unknown", "reaper kills", "reaper sends a signal by pid", "release without ownership check", "gate result written without ownership check",
	"strict-reap decided after the gate", "absent field printed as none", "gate timeout proceeds", "queue order reversed", "shared overtakes a waiting exclusive",
	"nested run waits", "child started before the signal handlers", "lock released before the child is reaped", "lock descriptor inherited by the child",
	"newline kept in reason", "`::` or `##[` of a peer's text passed through", "ticket number restarts with the guard",
	"waiter ignores its own anchor's death", "any ancestor lets join", "mark alone frees a live ticket", "dead ticket marked before its survivors are drained",
}

// A mutant is one change, mostly to one place, and the tests that must catch it.
type mutant struct {
	name    string
	tests   []string // packages and flags for go test
	changes []change
	line    int
}

// A change is one text for another in one file.
type change struct {
	file string
	old  string // stands exactly once in the file
	new  string
}

// limit is how long the tests of one mutant may take: a mutant that hangs its
// test is caught too.
const limit = 3 * time.Minute

func main() {
	jobs := flag.Int("j", runtime.NumCPU(), "mutants at a time")
	times := flag.Int("times", 1, "catch each mutant so often")
	verbose := flag.Bool("v", false, "show what the tests of caught mutants said")
	flag.Parse()
	if err := run(*jobs, *times, *verbose, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(jobs, times int, verbose bool, wanted []string) error {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	text, err := os.ReadFile(filepath.Join(root, "testdata/mutants/list.txt"))
	if err != nil {
		return err
	}
	all, err := parse(string(text))
	if err != nil {
		return err
	}
	var chosen []mutant
	for _, m := range all {
		if len(wanted) == 0 {
			chosen = append(chosen, m)
		}
		for _, w := range wanted {
			if strings.Contains(m.name, w) {
				chosen = append(chosen, m)
				break
			}
		}
	}
	if len(chosen) == 0 {
		return errors.New("no mutant has such a name")
	}
	if len(wanted) == 0 {
		for _, p := range properties {
			if !slices.ContainsFunc(all, func(m mutant) bool { return strings.HasPrefix(m.name, p) }) {
				return fmt.Errorf("list.txt has no mutant %q", p)
			}
		}
	}
	scratch, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if err := os.Chmod(scratch, 0o755); err != nil {
		return err
	}
	if err := baseline(root, jobs, chosen); err != nil {
		return err
	}
	failures := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(jobs, 1))
	for i, m := range chosen {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			var said string
			var err error
			for n := 1; err == nil && n <= max(times, 1); n++ {
				if said, err = m.try(root, filepath.Join(scratch, fmt.Sprint(i, ".", n))); err != nil && times > 1 {
					err = fmt.Errorf("time %d: %w", n, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures++
				fmt.Printf("FAIL    %s: %v\n", m.name, err)
				return
			}
			fmt.Printf("caught  %s\n", m.name)
			if verbose {
				fmt.Println(indent(said))
			}
		})
	}
	wg.Wait()
	fmt.Printf("%d passed, %d failed\n", len(chosen)-failures, failures)
	if failures > 0 {
		return errors.New("a mutant that no test catches is a property that nothing holds")
	}
	return nil
}

// baseline runs the tests of all mutants on the code as it is.
func baseline(root string, jobs int, all []mutant) error {
	first := make(map[string]mutant)
	for _, m := range all {
		key := strings.Join(m.tests, " ")
		if _, ok := first[key]; !ok {
			first[key] = m
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	slots := make(chan struct{}, max(jobs, 1))
	for key, m := range first {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			out, err := goTest(context.Background(), root, m.tests...).CombinedOutput() // from the cache, if it is there
			switch {
			case err != nil:
				err = fmt.Errorf("list.txt:%d: go test %s fails without a mutant:\n%s", m.line, key, indent(string(out)))
			case strings.Contains(string(out), "no tests to run"):
				err = fmt.Errorf("list.txt:%d: there is no such test: %s", m.line, key)
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	return failed
}

// goTest is go test without what costs time and finds nothing here.
func goTest(ctx context.Context, root string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off", "-race=false"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd
}

// try runs the tests of one mutant; nil is that they turned red.
func (m mutant) try(root, scratch string) (said string, err error) {
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for i, c := range m.changes {
		path := filepath.Join(root, c.file)
		if replace[path] != "" {
			return "", fmt.Errorf("list.txt:%d: names %s twice", m.line, c.file)
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if n := strings.Count(string(src), c.old); n != 1 {
			return "", fmt.Errorf("list.txt:%d: does not apply: the text to change stands %d times in %s", m.line, n, c.file)
		}
		changed := filepath.Join(scratch, fmt.Sprint(i, filepath.Base(c.file)))
		if err := os.WriteFile(changed, []byte(strings.Replace(string(src), c.old, c.new, 1)), 0o644); err != nil {
			return "", err
		}
		replace[path] = changed
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := goTest(ctx, root, append([]string{"-count=1", "-failfast"}, m.tests...)...)
	// By the environment, so that a test which builds the command builds the mutant.
	cmd.Env = append(cmd.Env, "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+file)
	// What a mutant leaves running (a keeper that outlives its anchor, and spins) is
	// known by its temporary directory. Tests with other users need to get there.
	tmp := filepath.Join(scratch, "tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o755), os.Chmod(tmp, os.ModeSticky|0o777)); err != nil {
		return "", err
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	defer killBelow(tmp)
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	said = buf.String()
	switch {
	case strings.Contains(said, "[build failed]") || strings.Contains(said, "[setup failed]"):
		return said, fmt.Errorf("list.txt:%d: does not compile:\n%s", m.line, indent(said))
	case err == nil:
		return said, fmt.Errorf("survived %s", strings.Join(m.tests, " "))
	case ctx.Err() != nil:
		return said, nil
	case !strings.Contains(said, "FAIL"):
		return said, fmt.Errorf("the tests did not run:\n%s", indent(said))
	}
	return said, nil
}

// killBelow kills what runs a program below a directory, or names it.
func killBelow(dir string) {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range pids {
		exe, _ := os.Readlink(filepath.Join(p, "exe"))
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if !strings.HasPrefix(exe, dir+"/") && !strings.Contains(string(cmdline), dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(p)); err == nil {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
	}
}

// parse reads blocks of
//
//	== NAME
//	FILE | TESTS
//	-line to change
//	+what it becomes
//
// A further FILE, with its own lines, is changed too. Lines that begin with # and
// blank lines between blocks are passed over.
func parse(text string) ([]mutant, error) {
	var all []mutant
	for i, line := range strings.Split(text, "\n") {
		var m *mutant
		var c *change
		if len(all) > 0 {
			m = &all[len(all)-1]
			if len(m.changes) > 0 {
				c = &m.changes[len(m.changes)-1]
			}
		}
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "== "):
			all = append(all, mutant{name: line[3:], line: i + 1})
		case m == nil:
			return nil, fmt.Errorf("list.txt:%d: stands before the first mutant", i+1)
		case c == nil:
			file, tests, ok := strings.Cut(line, " | ")
			if !ok {
				return nil, fmt.Errorf("list.txt:%d: expected FILE | TESTS", i+1)
			}
			m.tests, m.changes = strings.Fields(tests), []change{{file: file}}
		case line[0] == '-':
			c.old += line[1:] + "\n"
		case line[0] == '+':
			c.new += line[1:] + "\n"
		case strings.HasSuffix(line, ".go"):
			m.changes = append(m.changes, change{file: line})
		default:
			return nil, fmt.Errorf("list.txt:%d: neither -, + nor a file", i+1)
		}
	}
	for _, m := range all {
		if len(m.tests) == 0 || slices.ContainsFunc(m.changes, func(c change) bool { return c.old == "" }) {
			return nil, fmt.Errorf("list.txt:%d: %s changes nothing or has no tests", m.line, m.name)
		}
	}
	return all, nil
}

func indent(s string) string {
	return "        " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n        ")
}
