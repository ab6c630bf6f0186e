//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// scriptPatience bounds what a script waits for an event that it has caused. It is
// never waited out by a test that passes.
const scriptPatience = 60 * time.Second

func TestMain(m *testing.M) {
	// A shell without job control starts what it puts in the background with INT
	// and QUIT ignored, nohup with HUP, and what is ignored stays so. A handler of ours is
	// reset by exec, so that what the tests start has the default.
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGQUIT)
	}
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	testscript.Main(m, map[string]func(){
		"hostlock": main,
		// Names under which our own program runs as a process that somebody
		// holds the host for. (Runner.Worker is process_linux_test.go's.)
		"anchor":        func() { _, _ = io.Copy(io.Discard, os.Stdin) },
		"Runner.Worker": step,
		"act":           step,
		// A process that is always runnable.
		"spin": func() {
			fmt.Println("spinning")
			for n := 0; ; n++ {
			}
		},
	})
}

// step runs a command below a process of our own name, as a CI runner runs
// its steps.
func step() {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		os.Exit(1)
	}
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("..", "..", "testdata", "script"),
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOSTLOCK_DIR", filepath.Join(e.WorkDir, "lock"))
			e.Setenv("HOSTLOCK_PRIVATE_OK", "1")
			e.Setenv("HOSTLOCK_CONF", filepath.Join(e.WorkDir, "no.conf"))
			w := &world{processes: make(map[string]*startedProcess)}
			e.Values["world"] = w
			e.Defer(w.end)
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "job": // the tests themselves run in a CI job
				_, _, ok := jobProcess(proc.Ancestors(os.Getpid()))
				return ok, nil
			case "root":
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"usage":   usageIs,
			"alive":   aliveProcess,
			"start":   startProcess,
			"signal":  signalProcess,
			"dies":    dies,
			"zombie":  zombie,
			"ended":   endedWith,
			"until":   until,
			"says":    says,
			"capture": capture,
			"tickets": tickets,
		},
	})
}

// A world is the processes that one script has startedProcess.
type world struct{ processes map[string]*startedProcess }

type startedProcess struct {
	*exec.Cmd
	stdin  io.Closer
	waited bool
}

func (w *world) end() {
	for _, p := range w.processes {
		if !p.waited {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value("world").(*world) }

func processOf(ts *testscript.TestScript, name string) *startedProcess {
	p := worldOf(ts).processes[name]
	if p == nil {
		ts.Fatalf("there is no process %s", name)
	}
	return p
}

// exits CODE COMMAND…: runs a command that has to exit with that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := execute(ts, args[1], args[2:]); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func execute(ts *testscript.TestScript, name string, args []string) int {
	err := ts.Exec(name, args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	ts.Fatalf("%s: %v", name, err)
	return -1
}

// usage PATTERN ARG…: hostlock has to refuse this with exit 1 and exactly one
// line on stderr that has the pattern, say nothing else, and leave nothing behind.
func usageIs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: usage PATTERN ARG…")
	}
	before := listing(ts)
	if got := execute(ts, "hostlock", args[1:]); got != exitUsage {
		ts.Fatalf("exit code %d, want %d", got, exitUsage)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("stdout of a refusal: %q", out)
	}
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "hostlock: ") || !strings.HasSuffix(text, " --help)\n") {
		ts.Fatalf("a refusal is one line that names the help, got %q", text)
	}
	if !regexp.MustCompile(args[0]).MatchString(text) {
		ts.Fatalf("stderr %q does not match %q", text, args[0])
	}
	if after := listing(ts); after != before {
		ts.Fatalf("left behind: %q, before %q", after, before)
	}
}

func listing(ts *testscript.TestScript) string {
	entries, err := os.ReadDir(ts.Getenv("HOSTLOCK_DIR"))
	names := []string{fmt.Sprint(errors.Is(err, os.ErrNotExist))}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// alive NAME: starts a process that lives until the script says otherwise, and
// puts its pid into $NAME.
func aliveProcess(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: alive NAME")
	}
	startProcess(ts, false, []string{args[0], "anchor"})
}

// start NAME COMMAND…: starts a process with its pid in $NAME, its output in
// NAME.out and NAME.err, and a stdin that ends when the script does. One named
// spin… has begun to spin when start returns.
func startProcess(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME COMMAND…")
	}
	path, err := lookPath(ts, args[1])
	ts.Check(err)
	p := &startedProcess{Cmd: exec.Command(path, args[2:]...)}
	p.Args[0] = args[1]
	p.Dir = ts.MkAbs(".")
	p.Env = append(os.Environ()[:0:0], scriptEnv(ts)...)
	stdin, err := p.StdinPipe()
	ts.Check(err)
	p.stdin = stdin
	out, err := os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	defer out.Close()
	errs, err := os.Create(ts.MkAbs(args[0] + ".err"))
	ts.Check(err)
	defer errs.Close()
	p.Stdout, p.Stderr = out, errs
	ts.Check(p.Start())
	worldOf(ts).processes[args[0]] = p
	ts.Setenv(args[0], strconv.Itoa(p.Process.Pid))
	if args[1] == "spin" {
		pollFor(ts, "the spinner to start", func() bool { return strings.Contains(ts.ReadFile(args[0]+".out"), "spinning") })
	}
}

// The environment of a script is not to be had whole: these are the variables
// that our scripts set.
func scriptEnv(ts *testscript.TestScript) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "USER", "HOSTLOCK_DIR", "HOSTLOCK_CONF", "HOSTLOCK_PRIVATE_OK", "HOSTLOCK_HOLD_ID", "RUNNER_TRACKING_ID"} {
		if v := ts.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func lookPath(ts *testscript.TestScript, name string) (string, error) {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 && !st.IsDir() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

var signalNames = map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1}

// signal SIGNAL NAME: sends a signal to a process that the script has started.
func signalProcess(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || signalNames[args[0]] == 0 {
		ts.Fatalf("usage: signal INT|TERM|HUP|QUIT|USR1|STOP|CONT NAME")
	}
	p := processOf(ts, args[1]).Process
	ts.Check(p.Signal(signalNames[args[0]]))
	if args[0] == "STOP" { // until then its other threads run on
		var info unix.Siginfo
		ts.Check(unix.Waitid(unix.P_PID, p.Pid, &info, unix.WSTOPPED|unix.WNOWAIT, nil))
	}
}

// dies NAME: kills a process and waits for it, so that it is gone afterwards.
func dies(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: dies NAME")
	}
	p := processOf(ts, args[0])
	ts.Check(p.Process.Kill())
	_ = p.Wait()
	p.waited = true
}

// zombie NAME: kills a process and does not wait for it. It is a zombie
// afterwards.
func zombie(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: zombie NAME")
	}
	p := processOf(ts, args[0])
	ts.Check(p.Process.Kill())
	var info unix.Siginfo
	ts.Check(unix.Waitid(unix.P_PID, p.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil))
}

// ended CODE NAME: waits for a process to end with that exit code.
func endedWith(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ended CODE NAME")
	}
	p := processOf(ts, args[1])
	timer := time.AfterFunc(scriptPatience, func() { _ = p.Process.Kill() })
	defer timer.Stop()
	_ = p.Wait()
	p.waited = true
	if got := p.ProcessState.ExitCode(); strconv.Itoa(got) != args[0] {
		ts.Fatalf("%s: %s, want exit code %s; stderr:\n%s", args[1], p.ProcessState, args[0], ts.ReadFile(args[1]+".err"))
	}
}

// until KEY=VALUE: waits until `hostlock status --porcelain` has that line. For
// what has no event: that a process has entered the queue.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: until KEY=VALUE")
	}
	path, err := lookPath(ts, "hostlock")
	ts.Check(err)
	pollFor(ts, args[0], func() bool {
		cmd := exec.Command(path, "status", "--porcelain")
		cmd.Env = scriptEnv(ts)
		out, err := cmd.Output()
		ts.Check(err)
		return bytes.Contains(append([]byte("\n"), out...), []byte("\n"+args[0]+"\n"))
	})
}

// says NAME PATTERN: waits until a process has printed that on stderr.
func says(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: says NAME PATTERN")
	}
	pattern := regexp.MustCompile(args[1])
	pollFor(ts, args[1], func() bool { return pattern.MatchString(ts.ReadFile(args[0] + ".err")) })
}

func pollFor(ts *testscript.TestScript, what string, done func() bool) {
	for end := time.Now().Add(scriptPatience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("waited %s in vain for %s", scriptPatience, what)
		}
	}
}

// capture NAME KEY: puts the value of the line KEY=VALUE of the last stdout
// into $NAME.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture NAME KEY")
	}
	for line := range strings.Lines(ts.ReadFile("stdout")) {
		if v, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), args[1]+"="); ok {
			ts.Setenv(args[0], v)
			return
		}
	}
	ts.Fatalf("there is no line %s= in stdout", args[1])
}

// tickets N: the lock directory has to hold that many tickets.
func tickets(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tickets N")
	}
	entries, err := os.ReadDir(ts.Getenv("HOSTLOCK_DIR"))
	if !errors.Is(err, os.ErrNotExist) {
		ts.Check(err)
	}
	n := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".lock") || strings.HasSuffix(e.Name(), ".json") {
			n++
		}
	}
	if got := strconv.Itoa(n / 2); got != args[0] || n%2 != 0 {
		ts.Fatalf("%d files of tickets, want %s tickets", n, args[0])
	}
}
