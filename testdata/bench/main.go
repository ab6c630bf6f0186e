// Command bench measures what hostlock costs against flock(1) of util-linux,
// both in the same run on the same machine:
//
//	go run -C testdata/bench . [-only REGEXP] [-most N] [-rounds N]
//
// It is no test: figures from a machine that does something else are figures of
// that something else. Medians, their 95 % confidence intervals and whether two
// samples differ are benchstat's (golang.org/x/perf/benchmath).
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/perf/benchmath"
)

func main() {
	b := bench{}
	only := flag.String("only", "", "the rows whose name matches")
	work := flag.Int("work", 0, "be a command that works this many times, from the first line of input on, and says how long each took")
	worker := flag.Int("worker", 0, "be a job's process that runs its hooks this many times, and says how long they took")
	flag.IntVar(&b.rounds, "rounds", 300, "runs of each command")
	flag.IntVar(&b.most, "most", 1000, "the longest queue")
	flag.DurationVar(&b.quiet, "quiet", 30*time.Second, "how long a holder and a waiter are watched while nothing happens")
	flag.Parse()
	err := func() (err error) {
		switch {
		case *work > 0:
			return workTimes(*work)
		case *worker > 0:
			return workerTimes(*worker, flag.Args())
		}
		if b.only, err = regexp.Compile(*only); err != nil {
			return err
		}
		return b.run()
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A bench is one run.
type bench struct {
	only         *regexp.Regexp
	rounds, most int
	quiet        time.Duration

	self, hostlock, flock string
	floor                 string // a Go program that runs true
	dir                   string // for what has to be somewhere
	lockDir, file         string // of hostlock; of flock
}

func (b *bench) run() (err error) {
	if b.dir, err = os.MkdirTemp("", "hostlock-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.flock, err = exec.LookPath("flock"); err != nil {
		return fmt.Errorf("flock(1) of util-linux is needed: %w", err)
	}
	b.hostlock, b.file = filepath.Join(b.dir, "hostlock"), filepath.Join(b.dir, "file")
	b.floor = filepath.Join(b.dir, "floor")
	for program, dir := range map[string]string{b.hostlock: "../../cmd/hostlock", b.floor: "floor"} {
		// As a release is built, and copied as whoever installs one does: how a file
		// came to be decides in what pieces the kernel keeps it, and what the linker
		// has written costs each start 0.1 ms more.
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-X main.version=v0.0.0", "-o", program+".built", ".")
		build.Dir = filepath.FromSlash(dir) // go run -C
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
		b, err := os.ReadFile(program + ".built")
		if err == nil {
			err = os.WriteFile(program, b, 0o755)
		}
		if err != nil {
			return err
		}
	}
	fmt.Printf("%s/%s, %d CPUs, %s; median and its 95 %% confidence interval\n\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	fmt.Printf("%-52s %18s %18s %9s   %s\n", "", "hostlock", "flock", "ratio", "reach")
	for _, part := range []func() error{b.commands, b.handOvers, b.growth, b.disturbance, b.rest} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// wanted says whether a row was asked for, and has its lock directory be a new one.
func (b *bench) wanted(row string) bool {
	b.anew()
	return b.only.MatchString(row)
}

// anew goes on in a lock directory that does not exist yet.
func (b *bench) anew() {
	b.lockDir = filepath.Join(b.dir, fmt.Sprint("lock-", time.Now().UnixNano()))
}

// A sample is durations, in ns.
type sample []float64

func (s *sample) add(d time.Duration) { *s = append(*s, float64(d)) }

func (s sample) summary() benchmath.Summary {
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(append([]float64(nil), s...), &benchmath.DefaultThresholds), 0.95)
}

func (s sample) String() string {
	m := s.summary()
	return fmt.Sprintf("%9.3f ms %5s", m.Center/1e6, m.PctRangeString())
}

// compare prints a row; a reach of 0 is none.
func compare(row string, ours, theirs sample, reach float64) {
	ratio := ours.summary().Center / theirs.summary().Center
	fmt.Printf("%-52s %18s %18s %7.2f x   %s\n", row, ours, theirs, ratio, verdict(ratio, reach))
}

func verdict(got, reach float64) string {
	switch {
	case reach == 0:
		return ""
	case got > reach:
		return fmt.Sprintf("<= %.4g   MISSED", reach)
	}
	return fmt.Sprintf("<= %.4g", reach)
}

// command is hostlock with nothing of a hold or a job in its environment.
func (b *bench) command(args ...string) *exec.Cmd {
	c := exec.Command(b.hostlock, args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOSTLOCK_") && !strings.HasPrefix(e, "GITHUB_") {
			c.Env = append(c.Env, e)
		}
	}
	c.Env = append(c.Env, "HOSTLOCK_DIR="+b.lockDir, "HOSTLOCK_PRIVATE_OK=1")
	return c
}

// A wrapper is a way to run a command under a lock.
type wrapper func(argv ...string) *exec.Cmd

func (b *bench) exclusive(argv ...string) *exec.Cmd {
	return b.command(append([]string{"run", "--reason", "bench", "--"}, argv...)...)
}

func (b *bench) shared(argv ...string) *exec.Cmd {
	return b.command(append([]string{"run", "--reason", "bench", "--shared", "--"}, argv...)...)
}

func (b *bench) flocked(argv ...string) *exec.Cmd {
	return exec.Command(b.flock, append([]string{b.file}, argv...)...)
}

func (b *bench) flockedShared(argv ...string) *exec.Cmd {
	return exec.Command(b.flock, append([]string{"-s", b.file}, argv...)...)
}

// polled is the lock that people write themselves.
func (b *bench) polled(argv ...string) *exec.Cmd {
	return exec.Command("sh", append([]string{"-c", `until mkdir "$0" 2>/dev/null; do sleep 1; done; "$@"; rmdir "$0"`, b.file + ".dir"}, argv...)...)
}

// took is how long a command took; that it failed with the status that was to be
// expected is no error.
func took(c *exec.Cmd, status int) (time.Duration, error) {
	began := time.Now()
	err := c.Run()
	d := time.Since(began)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == status || err == nil && status == 0 {
		return d, nil
	}
	return d, fmt.Errorf("%s: %v, not exit status %d", strings.Join(c.Args, " "), err, status)
}

// stop ends a process.
func stop(c *exec.Cmd) {
	if c.Process != nil {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
	}
}
