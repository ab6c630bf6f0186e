// Command bench measures what hostlock costs against flock(1) of util-linux,
// both in the same run on the same machine:
//
//	go run ./testdata/bench
//
// It is no test: figures from a machine that does something else are figures of
// that something else.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	rounds := flag.Int("rounds", 400, "runs of each command whose wall time is compared")
	work := flag.Bool("work", false, "be a command that uses CPU for a while and says how long it took")
	quiet := flag.Duration("quiet", 15*time.Second, "how long the context switches of a holder and a waiter are counted")
	flag.Parse()
	if *work {
		begin := time.Now()
		sum := 0
		for i := range 40_000_000 {
			sum += i ^ sum
		}
		fmt.Fprintln(io.Discard, sum)
		fmt.Println(time.Since(begin).Nanoseconds())
		return
	}
	if err := bench(*rounds, *quiet); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A place is where everything happens.
type place struct {
	hostlock, flock string
	lockDir, file   string // of hostlock; of flock
}

func bench(rounds int, quiet time.Duration) error {
	dir, err := os.MkdirTemp("", "hostlock-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p := place{hostlock: filepath.Join(dir, "hostlock"), lockDir: filepath.Join(dir, "lock"), file: filepath.Join(dir, "file")}
	if p.flock, err = exec.LookPath("flock"); err != nil {
		return fmt.Errorf("flock(1) of util-linux is needed: %w", err)
	}
	build := exec.Command("go", "build", "-o", p.hostlock, "./cmd/hostlock")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}

	fmt.Printf("%-44s %10s %10s %8s   %s\n", "", "hostlock", "flock", "ratio", "reach")
	row := func(what string, ours, theirs time.Duration, reach float64, err error) {
		if err != nil {
			fmt.Printf("%-44s %s\n", what, err)
			return
		}
		ratio := float64(ours) / float64(theirs)
		fmt.Printf("%-44s %7.3f ms %7.3f ms %6.2f x   <= %.4g x%s\n", what, ms(ours), ms(theirs), ratio, reach, missed(ratio > reach))
	}
	ours, theirs, err := p.wall(rounds, p.run("true"), exec.Command(p.flock, p.file, "true"))
	row("run -- true, whole", ours, theirs, 2.0, err)
	ours, theirs, err = p.wall(rounds, p.command("status"), exec.Command(p.flock, "-n", p.file, "true"))
	row("status (flock -n FILE true)", ours, theirs, 1.5, err)
	ours, theirs, err = p.ownTime(max(rounds/4, 1))
	row("the command's own time, every measure on", ours, theirs, 1.02, err)
	for _, n := range []int{100, 200} {
		theirs, err := p.handOver(n, p.flocked, p.flockQueue)
		var ours time.Duration
		if err == nil {
			ours, err = p.handOver(n, p.run, p.queue)
		}
		row(fmt.Sprintf("hand-over, %d waiters, start to start", n), ours, theirs, 2.2, err)
	}
	return p.sleepers(quiet)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func missed(yes bool) string {
	if yes {
		return "   MISSED"
	}
	return ""
}

// command is hostlock with nothing of a hold or a job in its environment.
func (p place) command(args ...string) *exec.Cmd {
	c := exec.Command(p.hostlock, args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOSTLOCK_") && !strings.HasPrefix(e, "GITHUB_") {
			c.Env = append(c.Env, e)
		}
	}
	c.Env = append(c.Env, "HOSTLOCK_DIR="+p.lockDir, "HOSTLOCK_PRIVATE_OK=1")
	return c
}

func (p place) run(argv ...string) *exec.Cmd {
	return p.command(append([]string{"run", "--reason", "bench", "--"}, argv...)...)
}

func (p place) flocked(argv ...string) *exec.Cmd {
	return exec.Command(p.flock, append([]string{p.file}, argv...)...)
}

// wall is the median wall time of two commands, run in turns.
func (p place) wall(rounds int, ours, theirs *exec.Cmd) (_, _ time.Duration, err error) {
	var took [2][]time.Duration
	for i := range rounds + rounds/10 {
		for j, c := range []*exec.Cmd{ours, theirs} {
			again := &exec.Cmd{Path: c.Path, Args: c.Args, Env: c.Env}
			begin := time.Now()
			if err := again.Run(); err != nil {
				return 0, 0, fmt.Errorf("%s: %w", strings.Join(c.Args[1:], " "), err)
			}
			if i >= rounds/10 { // after a warm-up
				took[j] = append(took[j], time.Since(begin))
			}
		}
	}
	return median(took[0]), median(took[1]), nil
}

// ownTime is what a command says that its work took, measured by hostlock and, in
// turns, under a lock that measures nothing: the lower quartile, for what disturbs
// work only ever makes it longer.
func (p place) ownTime(rounds int) (ours, theirs time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	result := filepath.Join(filepath.Dir(p.hostlock), "result.json")
	commands := []*exec.Cmd{
		p.command("run", "--reason", "bench", "--max-foreign-cores", "1000", "--expect-cores", "1", "--min-efficiency", "0.001", "--result", result, "--", self, "-work"),
		p.flocked(self, "-work"),
	}
	var took [2][]time.Duration
	for i := range rounds {
		for j := range commands {
			j = (j + i) % 2 // neither always goes first
			c := commands[j]
			again := &exec.Cmd{Path: c.Path, Args: c.Args, Env: c.Env}
			out, err := again.Output()
			if err != nil {
				return 0, 0, fmt.Errorf("%s: %w", strings.Join(c.Args[1:], " "), err)
			}
			ns, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
			if err != nil {
				return 0, 0, err
			}
			took[j] = append(took[j], time.Duration(ns))
		}
	}
	for _, t := range took {
		slices.Sort(t)
	}
	return took[0][rounds/4], took[1][rounds/4], nil
}

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}

// handOver starts a holder and n waiters behind it, ends the holder, and
// returns the median time from the start of one waiter's command to the next.
func (p place) handOver(n int, wrap func(...string) *exec.Cmd, waiting func() int) (time.Duration, error) {
	holder := wrap("sh", "-c", "echo; read x")
	release, err := holder.StdinPipe()
	if err != nil {
		return 0, err
	}
	held, err := holder.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := holder.Start(); err != nil {
		return 0, err
	}
	if _, err := held.Read(make([]byte, 1)); err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	var waiters []*exec.Cmd
	for range n {
		c := wrap("echo")
		c.Stdout = w
		if err := c.Start(); err != nil {
			return 0, err
		}
		waiters = append(waiters, c)
	}
	w.Close()
	for end := time.Now().Add(time.Minute); waiting() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return 0, fmt.Errorf("%d of %d wait after a minute", waiting(), n)
		}
	}
	time.Sleep(500 * time.Millisecond) // for their threads to have gone to sleep
	release.Close()
	var starts []time.Time
	lines := bufio.NewReader(r)
	for {
		if _, err := lines.ReadString('\n'); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
		starts = append(starts, time.Now())
	}
	_ = holder.Wait() // read x at the end of file is 1
	for _, c := range waiters {
		if err := c.Wait(); err != nil {
			return 0, fmt.Errorf("a waiter: %w", err)
		}
	}
	if len(starts) != n {
		return 0, fmt.Errorf("%d of %d commands started", len(starts), n)
	}
	var gaps []time.Duration
	for i := 1; i < n; i++ {
		gaps = append(gaps, starts[i].Sub(starts[i-1]))
	}
	return median(gaps), nil
}

// queue counts the tickets that wait.
func (p place) queue() int {
	names, _ := filepath.Glob(filepath.Join(p.lockDir, "*.json"))
	return len(names) - 1
}

// flockQueue counts who waits for the file's lock (proc_locks(5): "->").
func (p place) flockQueue() int {
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	return bytes.Count(table, []byte("-> FLOCK"))
}

// sleepers counts what a holder, a waiter and a keeper do while nothing
// happens, and how large they are.
func (p place) sleepers(quiet time.Duration) error {
	holder := p.run("sleep", "1000")
	if err := holder.Start(); err != nil {
		return err
	}
	defer stop(holder)
	waiter := p.run("true")
	defer stop(waiter)
	for p.queue() < 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if err := waiter.Start(); err != nil {
		return err
	}
	for p.queue() < 1 {
		time.Sleep(10 * time.Millisecond)
	}
	who := []struct {
		what string
		pid  int
	}{{"holder", holder.Process.Pid}, {"waiter", waiter.Process.Pid}}

	// The keeper's hold is in a directory of its own: this one is taken.
	apart := p
	apart.lockDir = p.lockDir + "-kept"
	if err := apart.command("acquire", "--reason", "bench", "--pid", strconv.Itoa(os.Getpid())).Run(); err != nil {
		fmt.Printf("%-44s %s\n", "keeper", err)
	} else if pid := keeper(apart.lockDir); pid > 0 {
		who = append(who, struct {
			what string
			pid  int
		}{"keeper", pid})
		defer func() { _ = apart.command("release", "--force").Run() }()
	}
	time.Sleep(time.Second)
	before := make([]int, len(who))
	for i, w := range who {
		before[i] = sum(w.pid, "ctxt_switches")
	}
	time.Sleep(quiet)
	for i, w := range who {
		n := sum(w.pid, "ctxt_switches") - before[i]
		fmt.Printf("%-44s %10d %30s%s\n", fmt.Sprintf("%s: context switches in %s", w.what, quiet), n, "<= 2", missed(n > 2))
	}
	for _, w := range who {
		kib := rss(w.pid)
		fmt.Printf("%-44s %7.1f MB %30s%s\n", w.what+": resident", float64(kib)/1024, "<= 8 MB", missed(kib > 8<<10))
	}
	return nil
}

func stop(c *exec.Cmd) {
	if c.Process != nil {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
	}
}

// keeper is the body of the one ticket of a lock directory.
func keeper(dir string) int {
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(names) != 1 {
		return 0
	}
	text, _ := os.ReadFile(names[0])
	m := regexp.MustCompile(`"body":\{"pid":(\d+)`).FindSubmatch(text)
	if m == nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(m[1]))
	return pid
}

// sum adds up a field of all threads' status whose name ends in suffix.
func sum(pid int, suffix string) int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	n := 0
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, m := range regexp.MustCompile(`(?m)`+suffix+`:\s*(\d+)`).FindAllSubmatch(text, -1) {
			v, _ := strconv.Atoi(string(m[1]))
			n += v
		}
	}
	return n
}

func rss(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	m := regexp.MustCompile(`(?m)^VmRSS:\s*(\d+) kB`).FindSubmatch(text)
	if m == nil {
		return 0
	}
	kib, _ := strconv.Atoi(string(m[1]))
	return kib
}
