package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

func init() {
	if filepath.Base(os.Args[0]) == "boxed" {
		boxed(os.Args[1], os.Args[2:])
	}
}

// boxed is hostlock on a host whose configuration names the lock directory, so
// that the lock covers the host and a run can be clean.
func boxed(lockDir string, args []string) {
	runtime.LockOSThread()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "boxed:", err)
			os.Exit(99)
		}
	}
	fail(unix.Unshare(unix.CLONE_NEWNS))
	fail(unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	fail(unix.Mount("none", "/etc", "tmpfs", 0, ""))
	fail(os.WriteFile("/etc/hostlock.conf", []byte("lock_dir = "+lockDir+"\n"), 0o644))
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOSTLOCK_") {
			env = append(env, e)
		}
	}
	fail(syscall.Exec("/proc/self/exe", append([]string{"hostlock"}, args...), env))
}

// work is a benchmark of some kind. Each process of it that uses CPU says "used
// NS" as its last word, by its own rusage.
func work(args []string) {
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		must(err)
		return n
	}
	self := func(args ...string) *exec.Cmd {
		c := exec.Command("/proc/self/exe", args...)
		c.Args[0] = "child"
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		return c
	}
	// Starting a program takes CPU as well, a lot of it under the race detector.
	says := func() { fmt.Println("used", selfUsed().Nanoseconds()) }
	switch args[0] {
	case "burn": // MS of CPU time
		burn(1, number(1))
	case "threads": // N threads that use MS in all
		runtime.GOMAXPROCS(number(1))
		burn(number(1), number(2))
	case "children": // N, one after the other, each MS
		for range number(1) {
			must(self("burn", args[2]).Run())
		}
		says()
	case "daemon": // MS in a process whose parent has died before; waits for it
		r, w, err := os.Pipe()
		must(err)
		c := self("parent", args[1])
		c.ExtraFiles = []*os.File{w}
		must(c.Run())
		w.Close()
		var pid int
		_, err = fmt.Fscan(r, &pid)
		must(err)
		// By its pidfd: its end of the pipe closes before it can be waited for, and what
		// still runs when the command ends is counted in another way.
		if fd, err := unix.PidfdOpen(pid, 0); err != unix.ESRCH {
			must(err)
			becomesReadable(fd)
		}
		says()
	case "parent": // starts one and dies
		c := self("burn", args[1])
		must(c.Start())
		fmt.Fprintln(os.NewFile(3, "pipe"), c.Process.Pid)
		says()
	case "leave": // MS in a process that runs on, idle, when this has ended
		c := self("stay", args[1])
		c.Stdout = nil
		out, err := c.StdoutPipe()
		must(err)
		must(c.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		must(err)
		fmt.Print(line)
		says()
	case "stay": // until the run has ended
		burn(1, number(1))
		run, err := strconv.Atoi(os.Getenv("HOSTLOCK_ANCHOR_PID"))
		must(err)
		fd, err := unix.PidfdOpen(run, 0)
		must(err)
		becomesReadable(fd)
	case "losing": // N children of MS, while SIGCHLD is ignored
		act := struct{ handler, flags, restorer, mask uintptr }{handler: 1}
		if _, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0); e != 0 {
			must(e)
		}
		for range number(1) {
			c := self("burn", args[2])
			if err := c.Run(); !errors.Is(err, unix.ECHILD) {
				must(fmt.Errorf("the child was not lost: %v", err))
			}
		}
	case "stdin": // until it is closed
		fmt.Println("ready", os.Getpid())
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(99)
	}
}

// burn uses CPU on n threads until the whole process has had ms of it.
func burn(n, ms int) {
	done := make(chan struct{})
	for range n {
		go func() {
			for selfUsed() < time.Duration(ms)*time.Millisecond {
				for i := range 1 << 16 {
					_ = i * i
				}
			}
			done <- struct{}{}
		}()
	}
	for range n {
		<-done
	}
	fmt.Println("used", selfUsed().Nanoseconds())
}

func selfUsed() time.Duration {
	var ru unix.Rusage
	must(unix.Getrusage(unix.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// An observed is a run, and what the test saw of it from outside. What others do
// on this machine meanwhile is in all of that, so nothing here asks for quiet.
type observed struct {
	lock.Result
	status int
	// used is what the command's processes say that they used; outer the host's
	// CPU seconds in a window around the run, without the run's own.
	used, outer float64
	stderr      string
}

func hostBusy(t *testing.T) float64 {
	t.Helper()
	c, err := proc.HostCPU()
	if err != nil {
		t.Skipf("this machine's CPU time cannot be read: %v", err)
	}
	return float64(c.Busy()) / proc.TicksPerSecond
}

// observe runs a command in a hold that is measured. during, if set, is called
// once the command is ready, and ends its stdin.
func (s *site) observe(flags, argv []string, during func()) observed {
	s.t.Helper()
	before := hostBusy(s.t)
	file := filepath.Join(s.t.TempDir(), "result.json")
	args := append(append([]string{"run", "--reason", "a test", "--linger", "0", "--result", file}, flags...), "--")
	c := s.command("hostlock", append(args, argv...)...)
	if os.Geteuid() == 0 {
		c = s.command(s.bin+"/boxed", append(append([]string{s.dir}, args...), argv...)...)
		must(os.MkdirAll(s.dir, 0o777))
	}
	l := s.start(c)
	if during != nil {
		l.number("ready")
		during()
	}
	l.in.Close()
	var o observed
	for {
		line, err := l.out.ReadString('\n')
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "used "); ok {
			ns, err := strconv.ParseFloat(n, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			o.used += ns / 1e9
		}
		if err != nil {
			break
		}
	}
	o.status = l.status()
	ru := l.ProcessState.SysUsage().(*syscall.Rusage)
	o.outer = hostBusy(s.t) - before - float64(ru.Utime.Nano()+ru.Stime.Nano())/1e9
	l.says("hostlock: outcome=") // its last word, which may come after its end
	o.stderr = l.err.String()
	b, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatalf("%v; stderr:\n%s", err, o.stderr)
	}
	s.valid(b)
	if err := json.Unmarshal(b, &o.Result); err != nil {
		s.t.Fatal(err)
	}
	return o
}

// valid checks a result against the schema.
func (s *site) valid(b []byte) {
	s.t.Helper()
	schema, err := jsonschema.NewCompiler().Compile("../../testdata/result.schema.json")
	if err != nil {
		s.t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err == nil {
		err = schema.Validate(doc)
	}
	if err != nil {
		s.t.Errorf("%v\n%s", err, b)
	}
}

// seconds is a measure of cores as CPU seconds.
func (o observed) seconds(cores *float64) float64 {
	if cores == nil || o.Measures.WindowSeconds == nil {
		return -1
	}
	return *cores * *o.Measures.WindowSeconds
}

// reasons are the words, without the one that a test's lock always has where it
// may not pass for the host's.
func (o observed) reasons() string {
	var words []string
	for _, f := range o.Reasons {
		if f.Reason != lock.NotWholeHost {
			words = append(words, f.Reason.String())
		}
	}
	return strings.Join(words, " ")
}

// verdict is the verdict, as if the test's lock were the host's.
func (o observed) verdict() lock.Verdict {
	v := o.Verdict
	if v == lock.VerdictUnknown && o.reasons() == "" {
		v = lock.Clean
	}
	return v
}

func cores(f float64) string { return strconv.FormatFloat(f, 'f', 4, 64) }

// A run beside which nothing happens is clean. Something does happen on a
// machine that runs tests, so the bound is what was seen a moment ago and some
// more, and the test knows from outside on which side of it the run was.
func TestRunQuietIsClean(t *testing.T) {
	s := newSite(t)
	bound := 0.4
	for range 12 {
		o := s.observe([]string{"--max-foreign-cores", cores(bound)}, []string{"child", "burn", "800"}, nil)
		// A little more than in the run's own window.
		seen := max(o.outer / *o.Measures.WindowSeconds, *o.Measures.StealCores)
		t.Logf("bound %.3f, others used %.3f cores, measured %v, verdict %v (%s)", bound, seen, *o.Measures.ForeignCores, o.Verdict, o.reasons())
		near := 2 * *o.Measures.ResolutionCores // what is seen from outside is as coarse
		if seen+near <= bound {
			if o.verdict() != lock.Clean || o.status != 0 {
				t.Errorf("verdict %v (%s), exit %d; stderr:\n%s", o.Verdict, o.reasons(), o.status, o.stderr)
			}
			if os.Geteuid() == 0 && o.Verdict != lock.Clean {
				t.Errorf("with the host's own lock: %v (%s)", o.Verdict, o.reasons())
			}
			return
		}
		bound = seen*1.3 + near + 0.1
	}
	t.Skip("others never used the same amount twice here")
}

// burst uses ms of CPU in a process of nobody's, and returns the seconds it used.
func (s *site) burst(ms int, attr *syscall.SysProcAttr) float64 {
	s.t.Helper()
	c := s.command("child", "burn", strconv.Itoa(ms))
	c.SysProcAttr = attr
	if err := c.Run(); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
			s.t.Skipf("not allowed here: %v", err)
		}
		s.t.Fatal(err)
	}
	ru := c.ProcessState.SysUsage().(*syscall.Rusage)
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

// A burst in the middle, over before the end, is seen whole and makes the run
// suspect, also from where the run cannot see its process.
func TestRunBurst(t *testing.T) {
	for _, tt := range []struct {
		name string
		attr *syscall.SysProcAttr
	}{
		{"beside us", &syscall.SysProcAttr{Setsid: true}},
		{"in another pid namespace", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.attr.Cloneflags != 0 && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			s := newSite(t)
			const bound = 0.05
			var inner, burst float64
			o := s.observe([]string{"--max-foreign-cores", cores(bound)}, []string{"child", "stdin"}, func() {
				before := hostBusy(t)
				time.Sleep(100 * time.Millisecond)
				burst = s.burst(1500, tt.attr)
				time.Sleep(100 * time.Millisecond)
				inner = hostBusy(t) - before
			})
			foreign := o.seconds(o.Measures.ForeignCores)
			t.Logf("burst %.3f s; all others in a window within the run %.3f s, around it %.3f s; measured %.3f s", burst, inner, o.outer, foreign)
			// What the burst used is in both of the test's windows; what others did
			// is too, but for the moments between their ends and the run's.
			if foreign < inner-0.1*burst || foreign > o.outer+0.1*burst {
				t.Errorf("foreign %.3f s is not between %.3f and %.3f, by 10 %% of the burst's %.3f", foreign, inner, o.outer, burst)
			}
			if foreign < 0.9*burst {
				t.Errorf("foreign %.3f s is less than the burst's %.3f", foreign, burst)
			}
			if alone := burst / *o.Measures.WindowSeconds; alone-*o.Measures.ResolutionCores < bound {
				t.Skipf("on this machine the burst alone came to %.3f cores", alone)
			}
			if o.Verdict != lock.Suspect || !strings.Contains(o.reasons(), "foreign_cores") || o.status != exitDoubtful {
				t.Errorf("verdict %v (%s), exit %d", o.Verdict, o.reasons(), o.status)
			}
			if !strings.Contains(o.stderr, "hostlock: suspect: Others used ") {
				t.Errorf("stderr:\n%s", o.stderr)
			}
		})
	}
}

// However a benchmark is made of processes, what it uses is its own.
func TestRunAccountsForItself(t *testing.T) {
	for _, tt := range []struct {
		name string
		argv []string
		left bool
	}{
		{"one process", []string{"burn", "600"}, false},
		{"threads", []string{"threads", "2", "800"}, false},
		{"short-lived children", []string{"children", "20", "30"}, false},
		{"double fork", []string{"daemon", "600"}, false},
		{"left running", []string{"leave", "600"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			o := s.observe(nil, append([]string{"child"}, tt.argv...), nil)
			m := o.Measures
			if m.OwnCPUSeconds == nil || m.ForeignCores == nil || o.used < 0.5 {
				t.Fatalf("used %.3f s, measured %+v; stderr:\n%s", o.used, m, o.stderr)
			}
			own, foreign := *m.OwnCPUSeconds, o.seconds(m.ForeignCores)
			t.Logf("its processes used %.3f s, measured %.3f s; others at most %.3f s, measured %.3f s", o.used, own, o.outer, foreign)
			// Beside what they say: starting and ending them, and the command itself.
			if own < 0.95*o.used || own > 1.1*o.used+0.1 {
				t.Errorf("own %.3f s of %.3f s", own, o.used)
			}
			most := o.outer
			if tt.left { // nobody has waited for it when the run ends: the test sees it as somebody else's
				most -= o.used
			}
			if slack := o.seconds(m.ResolutionCores) + 0.1*o.used; foreign > most+slack {
				t.Errorf("foreign %.3f s, though all others used %.3f s at most", foreign, most)
			}
			if (o.Hold.LeftRunning != nil) != tt.left {
				t.Errorf("left running: %v", o.Hold.LeftRunning)
			}
			if m.ContextSwitches == nil || *m.ContextSwitches == 0 {
				t.Errorf("context switches %v", m.ContextSwitches)
			}
		})
	}
}

// Children that nobody could count are not called somebody else's.
func TestRunChildrenLost(t *testing.T) {
	s := newSite(t)
	o := s.observe([]string{"--max-foreign-cores", "0.001", "--expect-cores", "1", "--min-efficiency", "1"}, []string{"child", "losing", "3", "100"}, nil)
	// Steal is measured all the same, and a virtual machine may have some.
	reasons := strings.TrimPrefix(o.reasons(), "steal ")
	if o.used < 0.25 || reasons != "children_lost" || reasons == o.reasons() && (o.Verdict != lock.VerdictUnknown || o.status != 0) {
		t.Errorf("used %.3f s, verdict %v (%s), exit %d; stderr:\n%s", o.used, o.Verdict, o.reasons(), o.status, o.stderr)
	}
	if m := o.Measures; m.OwnCPUSeconds != nil || m.ForeignCores != nil || m.Efficiency != nil {
		t.Errorf("%+v", m)
	}
}

// Whether it was believed changes the exit status of a command that succeeded,
// and only where somebody asked.
func TestRunExitsByVerdict(t *testing.T) {
	lazy := []string{"--expect-cores", "1000", "--min-efficiency", "0.9"}
	for _, tt := range []struct {
		name    string
		flags   []string
		argv    []string
		verdict lock.Verdict
		reasons string
		status  int
	}{
		{"no bound", nil, []string{"sleep", "0.1"}, lock.VerdictUnknown, "no_bound", 0},
		{"an expectation only", lazy[:2], []string{"sleep", "0.1"}, lock.VerdictUnknown, "no_bound", 0},
		{"too short", lazy, []string{"true"}, lock.VerdictUnknown, "window_too_short", 0},
		{"not efficient", lazy, []string{"sleep", "0.1"}, lock.Suspect, "efficiency", 6},
		{"and failed", lazy, []string{"sh", "-c", "sleep 0.1; exit 3"}, lock.Suspect, "efficiency", 3},
		{"and was killed", lazy, []string{"sh", "-c", "sleep 0.1; kill -9 $$"}, lock.Suspect, "efficiency", 137},
		{"cannot be run", lazy, []string{"./script"}, lock.VerdictUnknown, "", 126},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if tt.argv[0] == "./script" { // its interpreter is missing
				tt.argv[0] = filepath.Join(t.TempDir(), "script")
				if err := os.WriteFile(tt.argv[0], []byte("#!/nonexistent/x\n"), 0o755); err != nil {
					t.Fatal(err)
				}
				tt.reasons = "unmeasurable"
			}
			o := s.observe(tt.flags, tt.argv, nil)
			// On a loaded machine even true may take long enough to be judged: then it
			// is, and says so, until one does not.
			for tries := 1; tt.reasons == "window_too_short" && *o.Measures.WindowSeconds >= 0.05; tries++ {
				if o.verdict() != lock.Suspect || o.reasons() != "efficiency" || o.status != exitDoubtful || tries > 100 {
					t.Fatalf("after %.3f s: verdict %v (%s), exit %d, try %d", *o.Measures.WindowSeconds, o.Verdict, o.reasons(), o.status, tries)
				}
				o = s.observe(tt.flags, tt.argv, nil)
			}
			if o.verdict() != tt.verdict || o.reasons() != tt.reasons || o.status != tt.status {
				t.Errorf("verdict %v (%s), exit %d; stderr:\n%s", o.Verdict, o.reasons(), o.status, o.stderr)
			}
			want := tt.status
			if tt.status == exitDoubtful {
				want = 0
			}
			if o.Command.ExitStatus == nil || *o.Command.ExitStatus != want {
				t.Errorf("the command's exit status is recorded as %v", o.Command.ExitStatus)
			}
			p := s.past()
			if p.Evidence == nil || p.Evidence.Verdict != o.Verdict || p.ID != o.Hold.ID {
				t.Errorf("the history has %+v", p.Evidence)
			}
		})
	}
}

// The peak is the command's, and unknown where it may be our own.
func TestRunMemoryPeak(t *testing.T) {
	s := newSite(t)
	if o := s.observe(nil, []string{"true"}, nil); o.Measures.MemoryPeakBytes != nil {
		t.Errorf("true had %d bytes", *o.Measures.MemoryPeakBytes)
	}
	const mib = 1 << 20
	o := s.observe(nil, []string{"sh", "-c", "head -c 200000000 /dev/zero | tail -c 150000000 >/dev/null"}, nil)
	if p := o.Measures.MemoryPeakBytes; p == nil || *p < 100*mib || *p > 1000*mib {
		t.Errorf("tail had %v bytes to keep 150 MB", p)
	}
}

// What the result is, or would be, written over.
func TestRunResultPlace(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must(os.Mkdir(path("dir"), 0o755))
	must(os.WriteFile(path("old"), []byte("old"), 0o600))
	must(os.Symlink("old", path("link")))
	must(os.Symlink("nowhere", path("dangling")))
	must(unix.Mkfifo(path("fifo"), 0o644))
	must(os.Mkdir(path("closed"), 0o555))
	for _, tt := range []struct {
		place string
		says  string // empty: it is written
	}{
		{path("new"), ""},
		{path("old"), ""},
		{path("link"), ""},
		{path("dir"), "is a directory"},
		{path("dir") + "/", "is a directory"},
		{path("none") + "/", "a directory's name"},
		{path("fifo"), "no regular file"},
		{path("missing/x"), "no such file or directory"},
		{path("old/x"), "not a directory"},
		{path("dangling"), "no such file or directory"},
		{"/proc/x", "no such file or directory"},
		{path("closed/x"), "permission denied"},
	} {
		if tt.place == path("closed/x") && os.Geteuid() == 0 {
			continue // to root it is not
		}
		os.RemoveAll(s.dir)
		ran := path("ran")
		os.Remove(ran)
		c := s.run("--result", tt.place, "--", "sh", "-c", "umask 077; echo >"+ran)
		l := s.start(c)
		if tt.says != "" {
			l.expect(exitUsage)
			l.says(tt.says)
			if exists(ran) || exists(s.dir) {
				t.Errorf("%s: something was run or taken", tt.place)
			}
			continue
		}
		l.expect(0)
		st, err := os.Stat(tt.place)
		if err != nil || st.Mode() != 0o644 {
			t.Errorf("%s: mode %v, %v", tt.place, st.Mode(), err)
		}
		b, err := os.ReadFile(tt.place)
		if err != nil {
			t.Fatal(err)
		}
		s.valid(b)
	}
	if to, err := os.Readlink(path("link")); err != nil || to != "old" {
		t.Errorf("the link is now %q, %v", to, err)
	}
	if names, _ := filepath.Glob(path(".*")); len(names) > 0 {
		t.Errorf("left behind: %q", names)
	}
}

// A result that cannot be written in the end is an error of a run that
// succeeded: whoever asked for it would take an older one for this one's.
func TestRunResultFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := filepath.Join(t.TempDir(), "dir")
	for _, tt := range []struct {
		command string
		status  int
	}{{"rm -r " + dir, exitDoubtful}, {"rm -r " + dir + "; exit 3", 3}} {
		must(os.MkdirAll(dir, 0o755))
		l := s.start(s.run("--result", dir+"/x", "--", "sh", "-c", tt.command))
		l.expect(tt.status)
		l.says("the result could not be written")
	}
}
