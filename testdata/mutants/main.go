// Command mutants breaks the code on purpose, one small change at a time, and
// fails unless the tests that pin the changed line turn red. It reads list.txt
// beside it and works on no file of the tree: the go command overlays the change.
//
//	go run ./testdata/mutants [-j N] [-v] [NAME-SUBSTRING...]
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
	"strings"
	"sync"
	"time"
)

// A mutant is one change to one file, and the tests that must catch it.
type mutant struct {
	name  string
	file  string
	tests []string // packages and flags for go test
	old   string   // stands exactly once in the file
	new   string
	line  int
}

// limit is how long the tests of one mutant may take: a mutant that hangs its
// test is caught too.
const limit = 3 * time.Minute

func main() {
	jobs := flag.Int("j", runtime.NumCPU(), "mutants at a time")
	verbose := flag.Bool("v", false, "show what the tests of caught mutants said")
	flag.Parse()
	if err := run(*jobs, *verbose, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(jobs int, verbose bool, wanted []string) error {
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
	scratch, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	failures := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(jobs, 1))
	for i, m := range chosen {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			said, err := m.try(root, filepath.Join(scratch, fmt.Sprint(i)))
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

// try runs the tests of one mutant; nil is that they turned red.
func (m mutant) try(root, scratch string) (said string, err error) {
	path := filepath.Join(root, m.file)
	src, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(src), m.old); n != 1 {
		return "", fmt.Errorf("list.txt:%d: does not apply: the text to change stands %d times in %s", m.line, n, m.file)
	}
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return "", err
	}
	changed := filepath.Join(scratch, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o644); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-failfast"}, m.tests...)...)
	cmd.Dir = root
	// By the environment, so that a test which builds the command builds the mutant.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+file)
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	said = buf.String()
	switch {
	case strings.Contains(said, "[build failed]") || strings.Contains(said, "[setup failed]"):
		return said, fmt.Errorf("list.txt:%d: does not compile:\n%s", m.line, indent(said))
	case err == nil && strings.Contains(said, "no tests to run"):
		return said, fmt.Errorf("list.txt:%d: there is no such test: %s", m.line, strings.Join(m.tests, " "))
	case err == nil:
		return said, fmt.Errorf("survived %s", strings.Join(m.tests, " "))
	case ctx.Err() != nil:
		return said, nil
	case !strings.Contains(said, "FAIL"):
		return said, fmt.Errorf("the tests did not run:\n%s", indent(said))
	}
	return said, nil
}

// parse reads blocks of
//
//	== NAME
//	FILE | TESTS
//	-line to change
//	+what it becomes
//
// Lines that begin with # and blank lines between blocks are passed over.
func parse(text string) ([]mutant, error) {
	var all []mutant
	for i, line := range strings.Split(text, "\n") {
		var m *mutant
		if len(all) > 0 {
			m = &all[len(all)-1]
		}
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "== "):
			all = append(all, mutant{name: line[3:], line: i + 1})
		case m == nil:
			return nil, fmt.Errorf("list.txt:%d: stands before the first mutant", i+1)
		case m.file == "":
			file, tests, ok := strings.Cut(line, " | ")
			if !ok {
				return nil, fmt.Errorf("list.txt:%d: expected FILE | TESTS", i+1)
			}
			m.file, m.tests = file, strings.Fields(tests)
		case line[0] == '-':
			m.old += line[1:] + "\n"
		case line[0] == '+':
			m.new += line[1:] + "\n"
		default:
			return nil, fmt.Errorf("list.txt:%d: neither - nor +", i+1)
		}
	}
	for _, m := range all {
		if m.old == "" || len(m.tests) == 0 {
			return nil, fmt.Errorf("list.txt:%d: %s changes nothing or has no tests", m.line, m.name)
		}
	}
	return all, nil
}

func indent(s string) string {
	return "        " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n        ")
}
