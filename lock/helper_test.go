//go:build linux

package lock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// The tests need processes of many kinds. This test binary is all of them: told
// by LOCK_TEST_MODE, or started as a keeper, it is a helper and runs no tests.
const modeEnv = "LOCK_TEST_MODE"

func init() {
	if os.Getenv(modeEnv) == "leaderless" {
		runtime.LockOSThread() // main must run on the main thread
	}
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == KeeperCommand {
		status := Keep()
		// A keeper has no environment in which to tell the race detector not
		// to sleep for a second in its exit.
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(status), 0, 0)
	}
	mode := os.Getenv(modeEnv)
	if mode == "" {
		// Orphaned keepers become our children, and can be waited for.
		must(proc.SetSubreaper())
		_ = flag.Set("rapid.nofailfile", "true")
		os.Exit(m.Run())
	}
	switch mode {
	case "daemon": // outlives whoever started it
		fmt.Println("ready")
		for {
			unix.Pause()
		}
	case "daemon-spin":
		fmt.Println("ready")
		spin()
	case "idle":
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "spin":
		go spin()
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "hold":
		helpHold()
	case "leaderless":
		go func() {
			runtime.LockOSThread()
			for {
				p, err := proc.Stat(os.Getpid())
				must(err)
				if p.State == 'Z' {
					break
				}
				unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
			}
			helpHold()
			os.Exit(0)
		}()
		syscall.Syscall(unix.SYS_EXIT, 0, 0, 0)
	case "guard":
		d := helpOpen(os.Getenv("LOCK_TEST_DIR"))
		s, err := d.enter()
		must(err)
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
		s.leave()
	case "bound":
		helpBound()
	case "full":
		helpFull()
	default:
		must(errors.New("no such mode"))
	}
	os.Exit(0)
}

// spin is busy, also on a machine whose other work leaves it little.
func spin() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -15) // if we may
	for n := uint(0); ; n++ {
		_ = n
	}
}

// helpBound says what a directory is that is another's part, bound to its place.
func helpBound() {
	dir := os.Getenv("LOCK_TEST_DIR")
	if err := unix.Mount(dir+"/part", dir+"/place", "", unix.MS_BIND, ""); err != nil {
		fmt.Println("no mount:", err)
		return
	}
	for _, path := range []string{dir + "/place", dir} {
		d, err := openDir(Location{Path: path})
		must(err)
		d.host.here = proc.Vantage{PIDNS: proc.InitialPIDNS, ProcOurs: true}
		d.resolveScope(true)
		fmt.Println(d.Scope)
	}
	for _, open := range []func(Location) (*Dir, error){OpenToLook, Open} {
		d, err := open(Location{Path: dir + "/place"})
		must(err)
		fmt.Println(d.Scope)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(99)
	}
}

func helpOpen(path string) *Dir {
	d, err := Open(Location{Path: path, Source: FromFlag, Scope: Private})
	must(err)
	return unconcerned(d)
}

// unconcerned has a directory mind no process that cannot be read: on a loaded machine
// that is also anybody's who is kept waiting within execve.
func unconcerned(d *Dir) *Dir {
	look := d.host.survivors
	d.host.survivors = func(dead []*Ticket) Survivors {
		s := look(dead)
		s.Unreadable = 0
		return s
	}
	return d
}

// An errand is what a holding helper does.
type errand struct {
	Dir     string
	UID     int // become this user first; 0: stay
	Shared  bool
	Wait    bool
	Timeout time.Duration
	TTL     time.Duration
	HoldID  string
	Ignore  bool // survivors
	Barrier bool // say "ready", and wait for a line before taking
	Anchor  int  // hand over to a keeper, anchored to this pid
	Once    bool // release as soon as it is held
	Look    bool // only open the directory, as status does
	Stop    bool // as soon as it has said that it waits, until somebody continues it
	Report  bool // write the owner to descriptor 3 when it is held
	Child   []string
	Owner   string
}

// A report is a line that a helper prints.
type report struct {
	Event    string // ready, waiting, held, busy, timeout, error, released, lost
	ID       string
	Seq      uint64
	Place    int
	Outcome  string
	Text     string
	Survived []string
	Kind     string
}

func say(r report) { must(json.NewEncoder(os.Stdout).Encode(r)) }

// helpHold takes the host and holds it until its stdin ends.
func helpHold() {
	var e errand
	must(json.Unmarshal([]byte(os.Getenv("LOCK_TEST_ERRAND")), &e))
	if e.UID != 0 {
		must(syscall.Setgroups(nil))
		must(syscall.Setgid(e.UID))
		must(syscall.Setuid(e.UID))
	}
	in := bufio.NewReader(os.Stdin)
	if e.Look {
		_, err := OpenToLook(Location{Path: e.Dir, Source: FromFlag, Scope: Private})
		must(err)
		return
	}
	d := helpOpen(e.Dir)
	req := Request{Owner: e.Owner, Reason: "test", Wait: e.Wait, Timeout: e.Timeout, TTL: e.TTL, IgnoreSurvivors: e.Ignore,
		Caller: Caller{UID: unix.Getuid(), HoldID: e.HoldID}, Join: JoinTicket}
	if e.Shared {
		req.Mode = Shared
	}
	told := false
	req.Notify = func(ev Event) {
		if ev.Blocker != nil && !told {
			told = true
			say(report{Event: "waiting", Place: ev.Place, ID: ev.Blocker.ID()})
			if e.Stop {
				must(unix.Kill(unix.Getpid(), unix.SIGSTOP))
			}
		}
		if ev.Text != "" {
			say(report{Event: "told", Text: ev.Text})
		}
	}
	if e.Barrier {
		say(report{Event: "ready"})
		in.ReadString('\n')
	}
	h, err := d.Acquire(context.Background(), req)
	var busy *BusyError
	var timeout *TimeoutError
	switch {
	case errors.As(err, &busy):
		say(report{Event: "busy", Text: busy.Error()})
		return
	case errors.As(err, &timeout):
		say(report{Event: "timeout", Text: err.Error(), Survived: timeout.Survivors})
		return
	case err != nil:
		say(report{Event: "error", Text: err.Error()})
		return
	}
	if e.Report {
		fmt.Fprintln(os.NewFile(3, "report"), e.Owner)
	}
	if e.Anchor != 0 {
		id, err := proc.Identify(e.Anchor)
		must(err)
		if err := h.HandOver(Party{Identity: id, UID: unix.Getuid(), Comm: "anchor"}); err != nil {
			say(report{Event: "error", Text: err.Error()})
			h.Release()
			return
		}
	}
	r := h.Record
	if len(e.Child) > 0 {
		c := exec.Command("/proc/self/exe")
		c.Env = append([]string{modeEnv + "=" + e.Child[0], EnvHoldID + "=" + r.ID}, e.Child[1:]...)
		out, err := c.StdoutPipe()
		must(err)
		must(c.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		must(err)
		say(report{Event: "child", Seq: uint64(c.Process.Pid)})
	}
	say(report{Event: "held", ID: r.ID, Seq: r.Seq, Outcome: r.Outcome, Text: r.Survivors})
	if e.Anchor != 0 {
		return
	}
	if !e.Once {
		io.Copy(io.Discard, in)
	}
	err = h.Release()
	var lost *TakenOverError
	switch {
	case errors.As(err, &lost):
		say(report{Event: "lost", Kind: lost.Kind.String(), ID: lost.By})
	case err != nil:
		say(report{Event: "error", Text: err.Error()})
	default:
		say(report{Event: "released"})
	}
}

// A helper is a running helper process.
type helper struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func helperCmd(mode string, env ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	// The race detector otherwise sleeps for a second in every exit.
	c.Env = append([]string{modeEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}, env...)
	c.Stderr = os.Stderr
	return c
}

// start starts c, and ends it with the test if nobody does before.
func start(t testing.TB, c *exec.Cmd) *helper {
	t.Helper()
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skipf("not allowed here: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.ProcessState == nil {
			c.Process.Kill()
			c.Wait()
		}
	})
	return &helper{c, in, bufio.NewReader(out)}
}

// send starts a helper on an errand.
func send(t testing.TB, e errand) *helper {
	t.Helper()
	return start(t, errandCmd(t, "hold", e))
}

func errandCmd(t testing.TB, mode string, e errand) *exec.Cmd {
	t.Helper()
	if e.Timeout == 0 {
		e.Timeout = 5 * time.Minute
	}
	if e.Owner == "" {
		e.Owner = "tester"
	}
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return helperCmd(mode, "LOCK_TEST_ERRAND="+string(b))
}

// hears is the helper's next report, which must be this event.
func (h *helper) hears(t testing.TB, event string) report {
	t.Helper()
	for {
		line, err := h.out.ReadString('\n')
		if err != nil {
			t.Fatalf("pid %d said %q, then %v; want %s", h.Process.Pid, line, err, event)
		}
		var r report
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("pid %d said %q", h.Process.Pid, line)
		}
		if r.Event == "told" && event != "told" {
			continue
		}
		if r.Event != event {
			t.Fatalf("pid %d: %+v, want %s", h.Process.Pid, r, event)
		}
		return r
	}
}

// next is the helper's next report, whatever it is.
func (h *helper) next(t testing.TB) (r report) {
	t.Helper()
	line, err := h.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(line), &r)
	}
	if err != nil {
		t.Fatalf("pid %d said %q: %v", h.Process.Pid, line, err)
	}
	return r
}

// plain starts a helper that does nothing about locks.
func plain(t testing.TB, mode string, env ...string) *helper {
	t.Helper()
	h := start(t, helperCmd(mode, env...))
	if line, err := h.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the helper said %q, %v", line, err)
	}
	return h
}

// killed kills the helper and leaves it a zombie.
func (h *helper) killed(t testing.TB) {
	t.Helper()
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	waitDead(t, h.Process.Pid)
}

// waitDead waits until a child has exited, and leaves it a zombie.
func waitDead(t testing.TB, pid int) {
	t.Helper()
	waitid(t, pid, unix.WEXITED)
}

func waitid(t testing.TB, pid, what int) {
	t.Helper()
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, what|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
}

// unharmed fails if a process has died or was sent SIGKILL. Who is killed lives on for
// a moment, but the signal stands in its ShdPnd from when kill(2) returns until it is
// reaped (complete_signal in kernel/signal.c; get_signal leaves it there).
func unharmed(t testing.TB, pid int) {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Errorf("process %d is gone: %v", pid, err)
		return
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		key, v, _ := strings.Cut(line, ":\t")
		switch {
		case key == "State" && strings.ContainsAny(v[:1], "ZX"):
			t.Errorf("process %d is dead", pid)
		case key == "ShdPnd":
			pending, err := strconv.ParseUint(v, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			if pending>>(unix.SIGKILL-1)&1 == 1 {
				t.Errorf("process %d was sent SIGKILL", pid)
			}
		}
	}
}

// stopped stops the helper, and returns when it has.
func (h *helper) stopped(t testing.TB) {
	t.Helper()
	h.signal(t, unix.SIGSTOP)
	waitid(t, h.Process.Pid, unix.WSTOPPED)
}

func (h *helper) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := h.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// A host is a real lock directory of this machine, for real processes.
type host struct {
	testing.TB
	path string
}

func newHost(t testing.TB) *host {
	t.Helper()
	parent, err := os.MkdirTemp("", "hostlock-test-") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	h := &host{t, parent + "/lock"}
	h.dir().Close()
	return h
}

func (h *host) dir() *Dir {
	h.Helper()
	d, err := Open(Location{Path: h.path, Source: FromFlag, Scope: Private})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(d.Close)
	return unconcerned(d)
}

func (h *host) view() *View {
	h.Helper()
	d, err := OpenToLook(Location{Path: h.path, Source: FromFlag, Scope: Private})
	if err != nil {
		h.Fatal(err)
	}
	defer d.Close()
	v, err := d.Look()
	if err != nil {
		h.Fatal(err)
	}
	return v
}

func (h *host) want(s State) *View {
	h.Helper()
	v := h.view()
	if v.State != s {
		h.Fatalf("state %v, want %v", v.State, s)
	}
	return v
}

// acquire is an attempt of this process, which does not wait.
func (h *host) acquire(change ...func(*Request)) (*Hold, error) {
	h.Helper()
	req := Request{Owner: "tester", Reason: "test", Caller: Caller{UID: unix.Getuid()}, Join: JoinTicket}
	for _, c := range change {
		c(&req)
	}
	hold, err := h.dir().Acquire(context.Background(), req)
	if err == nil {
		h.Cleanup(func() {
			if hold.lockFD >= 0 {
				hold.Release()
			}
		})
	}
	return hold, err
}

// free acquires and releases, and returns the outcome.
func (h *host) take() string {
	h.Helper()
	hold, err := h.acquire()
	if err != nil {
		h.Fatal(err)
	}
	if err := hold.Release(); err != nil {
		h.Fatal(err)
	}
	return hold.Outcome()
}

// keepers are the keepers of this directory, which are our children now.
func (h *host) keepers() (pids []int) {
	h.Helper()
	for _, p := range proc.Descendants(os.Getpid()) {
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if args := strings.Split(string(b), "\x00"); len(args) > 2 && args[1] == KeeperCommand && args[2] == h.path {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// openFDs counts the descriptors that this process has open.
func openFDs(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
