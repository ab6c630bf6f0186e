package proc

import (
	"bufio"
	"encoding/json"
	"errors"
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
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tests need processes of many kinds. This test binary is all of them: told
// by PROC_TEST_MODE, it is a helper instead of running tests.
const (
	modeEnv   = "PROC_TEST_MODE"
	mountEnv  = "PROC_TEST_MOUNT"  // options of a new /proc in a private mount namespace
	uidEnv    = "PROC_TEST_UID"    // become this user first
	idEnv     = "PROC_TEST_ID"     // JSON list of identities to judge
	markerEnv = "PROC_TEST_MARKER" // something to find in an environment
)

func init() {
	if mode := os.Getenv(modeEnv); mode == "leaderless" || mode == "exec" {
		runtime.LockOSThread() // main must run on the main thread
	}
}

func TestMain(m *testing.M) {
	mode := os.Getenv(modeEnv)
	if mode == "" {
		os.Exit(m.Run())
	}
	if opts, ok := os.LookupEnv(mountEnv); ok {
		must(unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		must(unix.Mount("proc", "/proc", "proc", 0, opts))
	}
	if uid := os.Getenv(uidEnv); uid != "" {
		n, err := strconv.Atoi(uid)
		must(err)
		must(syscall.Setgroups(nil))
		must(syscall.Setgid(n))
		must(syscall.Setuid(n))
	}
	switch mode {
	case "hold":
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "hold-ignoring":
		ignoreChildren()
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "caught", "uncaught":
		helpCaught(mode)
	case "hold-hidden":
		must(json.NewEncoder(os.Stdout).Encode(Self()))
		must(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "spin":
		go func() {
			for n := uint(0); ; n++ {
				_ = n
			}
		}()
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "look":
		helpLook()
	case "leaderless":
		helpLeaderless()
	case "exec":
		helpExec()
	case "recycle":
		helpRecycle()
	case "family":
		helpFamily()
	case "hidden":
		helpHidden()
	case "carrying":
		found, unreadable := Carrying(func(env []byte) bool { return HasEnv(env, markerEnv, os.Getenv(idEnv)) })
		must(json.NewEncoder(os.Stdout).Encode(carried{found, unreadable}))
	default:
		must(errors.New("no such mode"))
	}
	os.Exit(0)
}

// ignoreChildren sets SIGCHLD to SIG_IGN, which os/signal does not offer for it:
// the runtime keeps its handler.
func ignoreChildren() {
	act := struct{ handler, flags, restorer, mask uintptr }{handler: 1}
	_, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	if e != 0 {
		must(e)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(99)
	}
}

type looked struct {
	Here Vantage
	Self Identity
	Is   []string // the liveness of each identity that was given
	Kill []answer // and what exists says
}

type carried struct {
	Found      []Process
	Unreadable int
}

func helpLook() {
	var ids []Identity
	must(json.Unmarshal([]byte(os.Getenv(idEnv)), &ids))
	r := looked{Here: Here(), Self: Self()}
	for _, id := range ids {
		r.Is = append(r.Is, Look(id).String())
		r.Kill = append(r.Kill, exists(id.PID))
	}
	must(json.NewEncoder(os.Stdout).Encode(r))
	io.Copy(io.Discard, os.Stdin)
}

// helpLeaderless ends its main thread, as pthread_exit does, and runs on.
func helpLeaderless() {
	go func() {
		runtime.LockOSThread()
		for {
			s, err := readStatFile("/proc/" + strconv.Itoa(os.Getpid()) + "/stat")
			must(err)
			if s.State == 'Z' {
				break
			}
			unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
		}
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	syscall.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// helpExec becomes "hold" from a thread that is not the leader, when told to.
func helpExec() {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			must(errors.New("this is the main thread"))
		}
		fmt.Println("ready to exec")
		os.Stdin.Read(make([]byte, 3))
		must(unix.Exec("/proc/self/exe", []string{"hold"}, []string{modeEnv + "=hold"}))
	}()
	select {}
}

// helpRecycle runs as pid 1 of its own pid namespace and gives one pid to two
// processes in turn.
func helpRecycle() {
	start := func() *exec.Cmd {
		c := exec.Command("/proc/self/exe")
		c.Env = []string{modeEnv + "=hold"}
		_, err := c.StdinPipe()
		must(err)
		must(c.Start())
		return c
	}
	first := start()
	id, err := Identify(first.Process.Pid)
	must(err)
	before := Look(id)
	first.Process.Kill()
	first.Wait()
	dead := Look(id)

	// Within one tick (10 ms) of each other they would have one start time.
	for uint64(BootTime()/(1e9/TicksPerSecond)) <= id.Start+1 {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	for try := 0; ; try++ {
		must(os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(id.PID-1)), 0))
		second := start()
		if second.Process.Pid == id.PID {
			break
		}
		second.Process.Kill()
		second.Wait()
		if try == 1000 {
			must(errors.New("the pid does not come again"))
		}
	}
	id2, err := Identify(id.PID)
	must(err)
	noIno, noIno2 := id, id2
	noIno.PIDFSIno, noIno2.PIDFSIno = 0, 0
	r := looked{Here: Here(), Self: id2}
	for _, l := range []Liveness{before, dead, Look(id), Look(noIno), Look(id2), Look(noIno2)} {
		r.Is = append(r.Is, l.String())
	}
	must(json.NewEncoder(os.Stdout).Encode(r))
}

// helpHidden runs as pid 1 of its own namespaces. It and a child make themselves
// processes that others of their own uid may not look into: to them they are like
// another user's. It has one of them look.
func helpHidden() {
	begin := func(mode, env string) (*exec.Cmd, *bufio.Reader) {
		c := helperCmd(mode, env)
		_, err := c.StdinPipe()
		must(err)
		out, err := c.StdoutPipe()
		must(err)
		must(c.Start())
		return c, bufio.NewReader(out)
	}
	said := func(r *bufio.Reader) []byte {
		line, err := r.ReadBytes('\n')
		must(err)
		return line
	}
	c, _ := begin("hold", "A=b")
	dead, err := Identify(c.Process.Pid)
	must(err)
	c.Process.Kill()
	c.Wait()
	_, out := begin("hold-hidden", markerEnv+"=x")
	var id Identity
	must(json.Unmarshal(said(out), &id))
	said(out)
	must(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))

	ids, err := json.Marshal([]Identity{id, bare(id), dead})
	must(err)
	_, out = begin("look", idEnv+"="+string(ids))
	os.Stdout.Write(said(out))
	_, out = begin("carrying", idEnv+"=x")
	os.Stdout.Write(said(out))
}

// helpFamily holds, and has a child that holds.
func helpFamily() {
	c := exec.Command("/proc/self/exe")
	c.Env = []string{modeEnv + "=hold"}
	c.Stdin = os.Stdin
	out, err := c.StdoutPipe()
	must(err)
	must(c.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	must(err)
	fmt.Println(c.Process.Pid)
	c.Wait()
}

// helper is a running helper process.
type helper struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// helperCmd prepares a helper; exec it with start.
func helperCmd(mode string, env ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	// Under -race an exit would otherwise sleep for a second.
	c.Env = append([]string{modeEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}, env...)
	c.Stderr = os.Stderr
	return c
}

// start starts c, and ends it with the test if nobody does before. Without
// the right to make the namespaces that it wants, it skips the test.
func start(t *testing.T, c *exec.Cmd) *helper {
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
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
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

// line is the helper's next line.
func (h *helper) line(t *testing.T) string {
	t.Helper()
	s, err := h.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the helper said %q, then %v", s, err)
	}
	return strings.TrimSuffix(s, "\n")
}

// holder is a running process that does nothing.
func holder(t *testing.T, env ...string) (*helper, Identity) {
	t.Helper()
	h := start(t, helperCmd("hold", env...))
	if got := h.line(t); got != "ready" {
		t.Fatalf("the helper said %q", got)
	}
	id, err := Identify(h.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return h, id
}

// waitDead waits until the process has exited, and leaves it a zombie.
func waitDead(t *testing.T, pid int) {
	t.Helper()
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
}

// eventually waits until something is so, and fails the test if that takes a minute.
func eventually(t *testing.T, otherwise string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(otherwise)
		}
	}
}

// stopped stops a child, and returns when none of its threads runs any more: until it goes
// on it uses nothing.
func stopped(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it does not stop", func() bool {
		p, err := Stat(pid)
		if err != nil {
			t.Fatal(err)
		}
		return p.State == 'T' && !runnable(pid)
	})
}

// lookFrom judges ids in another process.
func lookFrom(t *testing.T, c *exec.Cmd, ids ...Identity) (*helper, looked) {
	t.Helper()
	b, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, idEnv+"="+string(b))
	h := start(t, c)
	var r looked
	if err := json.Unmarshal([]byte(h.line(t)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Is) != len(ids) {
		t.Fatalf("%d answers to %d questions", len(r.Is), len(ids))
	}
	return h, r
}

// needRoot skips what only root can set up.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}
