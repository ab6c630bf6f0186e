// Command general breaks the code everywhere, blindly: it negates conditions, moves
// bounds, drops operands and statements, swaps operators, changes numbers. It says
// which of these mutants no test notices. list.txt, one directory up, holds what must
// never survive; this is the long form, for reading the survivors:
//
//	go run ./testdata/mutants/general [-j N] [-budget 30m] [-only REGEXP] [-list] ./lock ./proc
//
// All mutants of a package are compiled into one test binary, each behind a switch
// that a file beside the binary sets: so a mutant costs no build, and it is there too
// in every process that the tests start. Each test is run once to learn which mutants
// it reaches; a mutant is then tried on those tests only, the fastest first.
//
// A survivor that cannot be noticed, or is not worth a test, is listed with the reason
// in equivalent.txt; anything else that survives is a failure.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	jobs := flag.Int("j", runtime.NumCPU(), "mutants at a time")
	budget := flag.Duration("budget", time.Hour, "stop trying mutants after this")
	only := flag.String("only", "", "mutants whose description matches")
	list := flag.Bool("list", false, "only list the mutants")
	skip := flag.String("skip", "^$", "tests that take no part")
	flag.Parse()
	if err := run(*jobs, *budget, *list, *only, *skip, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "general:", err)
		os.Exit(1)
	}
}

//go:embed equivalent.txt
var equivalent string

func run(jobs int, budget time.Duration, list bool, only, skip string, packages []string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	left, err := regexp.Compile(skip)
	if err != nil {
		return err
	}
	known := make(map[string]bool)
	for line := range strings.Lines(equivalent) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			known[line] = true
		}
	}
	end := time.Now().Add(budget)
	bad := 0
	for _, p := range packages {
		n, err := tryPackage(p, jobs, list, end, wanted, left, known)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		bad += n
	}
	if bad > 0 {
		return fmt.Errorf("%d mutants survived that equivalent.txt does not explain", bad)
	}
	return nil
}

// A lab is one package, with its mutants compiled in.
type lab struct {
	dir     string // of the package
	scratch string
	binary  string
	mutants []*mutant
	tests   []test
}

type test struct {
	name    string
	took    time.Duration
	reaches map[int]bool
}

func tryPackage(path string, jobs int, list bool, end time.Time, wanted, left *regexp.Regexp, known map[string]bool) (bad int, err error) {
	l := &lab{}
	if l.scratch, err = os.MkdirTemp("", "general"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(l.scratch)
	if err := os.Chmod(l.scratch, 0o755); err != nil { // tests become other users
		return 0, err
	}
	if err := l.build(path); err != nil {
		return 0, err
	}
	if list {
		for _, m := range l.mutants {
			if wanted.MatchString(m.String()) {
				fmt.Println(m)
			}
		}
		return 0, nil
	}
	if err := l.trace(jobs, left); err != nil {
		return 0, err
	}
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		counts  = make(map[string]int)
		benches = make(chan string, jobs)
	)
	for i := range jobs {
		bench, err := l.bench(fmt.Sprintf("bench%d", i))
		if err != nil {
			return 0, err
		}
		benches <- bench
	}
	for _, m := range l.mutants {
		if !wanted.MatchString(m.String()) {
			continue
		}
		bench := <-benches
		wg.Go(func() {
			defer func() { benches <- bench }()
			fate := "not tried"
			if time.Now().Before(end) {
				fate = l.try(m, bench)
			}
			mu.Lock()
			defer mu.Unlock()
			if fate == "survived" {
				if known[m.key()] {
					fate = "equivalent"
				} else {
					bad++
				}
			}
			switch counts[fate]++; fate {
			case "killed", "equivalent", "not tried":
			case "survived", "not covered":
				fmt.Printf("%-11s %s\n", fate, m)
			default: // not even that
				bad++
				fmt.Printf("error       %s: %s\n", m, fate)
			}
		})
	}
	wg.Wait()
	covered := counts["killed"] + counts["survived"] + counts["equivalent"]
	fmt.Printf("%s: %d mutants; %d killed, %d survived, %d known to be equivalent, %d not covered, %d not tried; of those covered %.1f %% killed\n", path,
		counts["killed"]+counts["survived"]+counts["equivalent"]+counts["not covered"]+counts["not tried"],
		counts["killed"], counts["survived"], counts["equivalent"], counts["not covered"], counts["not tried"], 100*float64(counts["killed"])/float64(max(covered, 1)))
	return bad, nil
}

// build compiles the test binary. What a mutant makes not compile is taken out again.
func (l *lab) build(path string) error {
	out, err := exec.Command("go", "list", "-f", `{{.Dir}}{{range .GoFiles}}{{"\n"}}{{.}}{{end}}`, path).Output()
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	l.dir = lines[0]
	var files []*file
	for _, name := range lines[1:] {
		f, err := parse(filepath.Join(l.dir, name))
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	l.binary = filepath.Join(l.scratch, "test")
	broken := regexp.MustCompile(`(?m)^(?:\./)?(?:[^:\s]*/)?([^/:\s]+\.go):(\d+)(?::\d+)?: (.*)$`)
	for round := 0; ; round++ {
		l.mutants = nil
		replace := make(map[string]string)
		for _, f := range files {
			out := filepath.Join(l.scratch, filepath.Base(f.path))
			if err := os.WriteFile(out, f.instrumented(&l.mutants), 0o644); err != nil {
				return err
			}
			replace[f.path] = out
		}
		helper := filepath.Join(l.scratch, "zz_mutant_switch.go")
		if err := os.WriteFile(helper, fmt.Appendf(nil, switchSource, files[0].pkg, len(l.mutants)), 0o644); err != nil {
			return err
		}
		replace[filepath.Join(l.dir, filepath.Base(helper))] = helper
		overlay, err := json.Marshal(map[string]any{"Replace": replace})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(l.scratch, "overlay.json"), overlay, 0o644); err != nil {
			return err
		}
		cmd := exec.Command("go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", filepath.Join(l.scratch, "overlay.json"), "-o", l.binary, path)
		said, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		found := broken.FindAllStringSubmatch(string(said), -1)
		if len(found) == 0 || round == 20 {
			return fmt.Errorf("the mutants do not compile:\n%s", said)
		}
		for _, m := range found {
			line, _ := strconv.Atoi(m[2])
			for _, f := range files {
				if filepath.Base(f.path) == m[1] {
					f.exclude(line, m[3])
				}
			}
		}
	}
}

// bench makes a directory with the binary, and a switch of its own.
func (l *lab) bench(name string) (string, error) {
	dir := filepath.Join(l.scratch, name)
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.Link(l.binary, filepath.Join(dir, "test"))
	}
	return dir, err
}

// trace runs each test once and learns which mutants it reaches. A test that fails
// without any mutant takes no part.
func (l *lab) trace(jobs int, left *regexp.Regexp) error {
	list := exec.Command(l.binary, "-test.list", "^(Test|Fuzz)") // fuzz tests with their seeds
	list.Dir = l.dir
	out, err := list.Output()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, jobs)
	var failed error
	for i, name := range strings.Fields(string(out)) {
		if left.MatchString(name) {
			continue
		}
		dir, err := l.bench(fmt.Sprintf("trace%d", i))
		if err != nil {
			return err
		}
		reached := filepath.Join(dir, "reached")
		if err := os.WriteFile(reached, nil, 0o666); err != nil {
			return err
		}
		if err := os.Chmod(reached, 0o666); err != nil {
			return err
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			said, err := l.run(dir, "^"+name+"$", 5*time.Minute)
			t := test{name: name, took: time.Since(began), reaches: make(map[int]bool)}
			b, rerr := os.ReadFile(reached)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				fmt.Printf("left out    %s: it fails without a mutant: %v\n%s\n", name, err, said)
				return
			}
			failed = errors.Join(failed, rerr)
			for ; len(b) >= 4; b = b[4:] {
				t.reaches[int(binary.NativeEndian.Uint32(b))] = true
			}
			l.tests = append(l.tests, t)
			_ = os.RemoveAll(dir)
		})
	}
	wg.Wait()
	slices.SortFunc(l.tests, func(a, b test) int { return cmp.Compare(a.took, b.took) })
	return failed
}

// quick is how long tests may take together to be run in one process.
const quick = 2 * time.Second

// try says what became of a mutant.
func (l *lab) try(m *mutant, bench string) string {
	var batches [][]string
	var sum time.Duration
	var limits []time.Duration
	for _, t := range l.tests {
		if !t.reaches[m.id] {
			continue
		}
		if sum += t.took; len(batches) == 0 || sum > quick {
			batches, limits, sum = append(batches, nil), append(limits, 20*time.Second), t.took
		}
		last := len(batches) - 1
		batches[last] = append(batches[last], t.name)
		limits[last] += 8 * t.took
	}
	if len(batches) == 0 {
		return "not covered"
	}
	if err := os.WriteFile(filepath.Join(bench, "active"), []byte(strconv.Itoa(m.id)), 0o644); err != nil {
		return err.Error()
	}
	for i, names := range batches {
		if _, err := l.run(bench, "^("+strings.Join(names, "|")+")$", limits[i]); err != nil {
			return "killed"
		}
	}
	return "survived"
}

func (l *lab) run(bench, tests string, limit time.Duration) (said []byte, err error) {
	cmd := exec.Command(filepath.Join(bench, "test"), "-test.run", tests, "-test.failfast", "-test.short", "-test.timeout", limit.String())
	cmd.Dir = l.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// A mutant may make the binary itself hang, where no time-out of a test counts.
	timer := time.AfterFunc(limit+10*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err = cmd.Wait()
	return out.Bytes(), err
}

// switchSource is what the instrumented code asks: a file beside the binary says which
// mutant is on, and another collects which were reached.
const switchSource = `package %[1]s

import (
	"encoding/binary"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
)

var (
	mutantDir    = mutantPlace()
	mutantActive = mutantOn()
	mutantTrace  = syscall.Access(mutantDir+"/reached", 2) == nil
	mutantSeen   [%[2]d + 1]atomic.Bool
)

func mutantPlace() string {
	b := make([]byte, 4096)
	n, err := syscall.Readlink("/proc/self/exe", b)
	if err != nil {
		return "/nonexistent"
	}
	return filepath.Dir(string(b[:n]))
}

func mutantOn() int {
	fd, err := syscall.Open(mutantDir+"/active", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer syscall.Close(fd)
	b := make([]byte, 20)
	n, _ := syscall.Read(fd, b)
	id, err := strconv.Atoi(string(b[:max(n, 0)]))
	if err != nil {
		return -1
	}
	return id
}

func mutantOf(id int) bool {
	if mutantTrace && !mutantSeen[id].Swap(true) {
		if fd, err := syscall.Open(mutantDir+"/reached", syscall.O_WRONLY|syscall.O_APPEND|syscall.O_CLOEXEC, 0); err == nil {
			_, _ = syscall.Write(fd, binary.NativeEndian.AppendUint32(nil, uint32(id)))
			syscall.Close(fd)
		}
	}
	return id == mutantActive
}

func mutantValue[T any](id int, as, instead T) T {
	if mutantOf(id) {
		return instead
	}
	return as
}
`
