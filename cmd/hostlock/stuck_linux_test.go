package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// fullPipe is a pipe that takes nothing more and that nobody reads.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	fd := int(w.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 4096); ; {
		if _, err := unix.Write(fd, b); err == unix.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for { // what is left of the last page
		if _, err := unix.Write(fd, []byte{0}); err == unix.EAGAIN {
			break
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return r, w
}

// A reader of its stderr that does not read must not let a run keep the host: what it
// has to say while it holds waits until it has released. (Defect 47.)
func TestRunWithAFullPipe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r, w := fullPipe(t)
	c := s.run("--linger", "0", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo ready $!")
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c.Stdout, c.Stderr = out, w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	left := (&live{t: t, out: bufio.NewReader(in)}).process("ready")
	t.Cleanup(func() {
		if fd, l := proc.Open(left); l == proc.Alive {
			_ = proc.SignalFD(fd, unix.SIGKILL)
			unix.Close(fd)
		}
	})
	// The next waits for nobody but the command: its turn comes though the first
	// cannot say that it left something.
	next := s.start(s.run("--", "true"))
	next.expect(0)
	if l := proc.Look(mustIdentify(t, c.Process.Pid)); l != proc.Alive {
		t.Errorf("the first is %v: its pipe was not full", l)
	}
	r.Close()
}

func mustIdentify(t *testing.T, pid int) proc.Identity {
	t.Helper()
	id, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A command that is stopped takes its TERM when the time for that has come, because it
// is woken for it: one that ends by TERM needs no KILL.
func TestRunWakesAStoppedCommand(t *testing.T) {
	t.Parallel()
	for try := 1; ; try++ {
		s := newSite(t)
		l, _, _, run, command := s.job(`exec hostlock run --reason r -- child hold`)
		kill(t, command, unix.SIGSTOP)
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if p, err := proc.Stat(command.PID); err == nil && p.State == 'T' {
				break
			}
			if time.Now().After(end) {
				t.Fatal("it does not stop")
			}
		}
		kill(t, run, unix.SIGINT)
		hasEnded(t, run)
		isGone(t, command)
		l.says("hostlock: outcome=")
		l.status()
		s.free()
		text := l.err.String()
		if !strings.Contains(text, "and killed") {
			if !strings.Contains(text, "sending it SIGTERM") {
				t.Errorf("it was not sent SIGTERM:\n%s", text)
			}
			return
		}
		// The two seconds until the KILL may go by in a stall of the machine.
		if try == 3 {
			t.Fatalf("it was killed:\n%s", text)
		}
	}
}

// dead leaves the lock of a holder that was killed, for the next to reap.
func (s *site) dead() {
	s.t.Helper()
	l := s.start(s.run("--", "sh", "-c", "echo ready $$; exec sleep 1000"))
	command := l.process("ready")
	_ = l.Process.Kill()
	l.status()
	kill(s.t, command, unix.SIGKILL)
	hasEnded(s.t, command)
	if len(s.tickets()) == 0 {
		s.t.Fatal("nothing to reap")
	}
}

// startMute starts a program whose stderr takes nothing, and returns it with its
// identity.
func (s *site) startMute(c *exec.Cmd, w *os.File) proc.Identity {
	s.t.Helper()
	c.Stderr = w
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
	return mustIdentify(s.t, c.Process.Pid)
}

// comesFree waits until nothing is in the lock directory.
func (s *site) comesFree() {
	s.t.Helper()
	for end := time.Now().Add(patience); len(s.tickets()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("the host is not given back: %s", s.tickets())
		}
	}
}

// What is said of a takeover is said by somebody who holds the host: it must not
// wait for a reader either.
func TestTakeoverWithAFullPipe(t *testing.T) {
	t.Parallel()
	t.Run("run", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.dead()
		r, w := fullPipe(t)
		ran := filepath.Join(t.TempDir(), "ran")
		c := s.run("--", "touch", ran)
		id := s.startMute(c, w)
		s.comesFree()
		if !exists(ran) {
			t.Error("the command did not run")
		}
		if l := proc.Look(id); l != proc.Alive {
			t.Errorf("it is %v: its pipe was not full", l)
		}
		w.Close()
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		reaped, outcome := strings.Index(string(text), "reaped the lock"), strings.Index(string(text), "outcome=")
		if reaped < 0 || outcome < reaped {
			t.Errorf("what was kept back is not said afterwards, in order: %q", strings.Trim(string(text), "\x00"))
		}
	})
	t.Run("acquire", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.dead()
		_, w := fullPipe(t)
		c := s.command("hostlock", "acquire", "--pid", strconv.Itoa(os.Getpid()))
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		c.Stdout = out
		s.startMute(c, w)
		out.Close()
		if got := (&live{t: t, out: bufio.NewReader(in)}).line(); got != "outcome=acquired_after_reap (stale_pid)" {
			t.Errorf("it says %q", got)
		}
		release := s.start(s.command("hostlock", "release", "--force"))
		release.expect(0)
	})
}

// A job in the background of a terminal with TOSTOP is stopped by the kernel when it
// writes there (termios(3)), and would keep the host for as long as it is.
func TestTakeoverBehindATOSTOP(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.dead()
	master, slave := terminal(t)
	fd := int(slave.Fd())
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Lflag |= unix.TOSTOP
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, tio); err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	// The shell stays in the foreground and waits for no change of its job's state.
	c := s.command("sh", "-m", "-c", `hostlock run --reason bg -- touch `+ran+` & exec sleep 1000`)
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	go func() { _, _ = io.Copy(io.Discard, master) }()
	t.Cleanup(func() { // the end of the session's leader hangs up on the rest
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	s.comesFree()
	if !exists(ran) {
		t.Error("the command did not run")
	}
}

// Whoever waits with a place in the queue stands in the way of all behind: the place
// must be given up in time, whoever reads what is said of that.
func TestWaitWithAFullPipe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	holder := s.start(s.run("--", "child", "hold"))
	holder.process("ready")
	held := len(s.tickets())
	_, w := fullPipe(t)
	// Told by the kernel, for a second may pass between two looks of ours.
	came, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	must(err)
	defer unix.Close(came)
	_, err = unix.InotifyAddWatch(came, s.dir, unix.IN_MOVED_TO)
	must(err)
	id := s.startMute(s.run("--timeout", "1", "--", "true"), w)
	if !becomesReadable(came) {
		t.Fatal("it does not come into the queue")
	}
	for end := time.Now().Add(patience); len(s.tickets()) > held; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the place in the queue is kept")
		}
	}
	if l := proc.Look(id); l != proc.Alive {
		t.Errorf("it is %v: its pipe was not full", l)
	}
}

// fillTerminal writes to a terminal that nobody reads until it takes nothing more, or
// so many bytes, and returns how many it took.
func fillTerminal(t *testing.T, slave *os.File, most int) (n int) {
	t.Helper()
	fd := int(slave.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for settled := false; n < most; {
		_, err := unix.Write(fd, []byte{'x'})
		switch {
		case err == nil:
			n, settled = n+1, false
			continue
		case err != unix.EAGAIN:
			t.Fatal(err)
		case settled:
			most = n
		}
		settled = true
		time.Sleep(20 * time.Millisecond) // a worker of the kernel's moves on what was written
	}
	time.Sleep(20 * time.Millisecond)
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return n
}

// A terminal that nobody reads may have room left, and not for a line.
func TestTakeoverWithAFullTerminal(t *testing.T) {
	t.Parallel()
	_, slave := terminal(t)
	room := fillTerminal(t, slave, 1<<30)
	slave.Close()
	for _, left := range []int{0, 20} {
		s := newSite(t)
		s.dead()
		_, slave := terminal(t)
		fillTerminal(t, slave, room-left)
		ran := filepath.Join(t.TempDir(), "ran")
		s.startMute(s.run("--", "touch", ran), slave)
		s.comesFree()
		if !exists(ran) {
			t.Error("the command did not run")
		}
	}
}

// A reader that has gone is no death of ours: nothing would undo what we had begun, or run
// to its end what we had started.
func TestReaderHasGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	anchor := s.start(s.command("sleep", "1000"))
	pid := strconv.Itoa(anchor.Process.Pid)
	ran := filepath.Join(t.TempDir(), "ran")
	for _, tt := range []struct {
		name    string
		args    []string
		stdout  bool // it is stdout whose reader has gone, not stderr
		status  int
		ran     bool
		tickets int
	}{
		{"run", []string{"run", "--reason", "a test", "--", "sh", "-c", "touch " + ran + "; exit 3"}, false, 3, true, 0},
		{"run that does not start", []string{"run", "--reason", "a test", "--", s.dir}, false, 126, false, 0},
		{"acquire", []string{"acquire", "--pid", pid}, true, exitUnusable, false, 0},
		{"acquire says nothing", []string{"acquire", "--pid", pid}, false, 0, false, 1},
		{"wait", []string{"wait", "--timeout", "0.01"}, false, exitTimeout, false, 1},
		{"release", []string{"release", "--force"}, false, 0, false, 0},
		{"job-started", []string{"hook", "job-started", "--pid", pid}, true, 0, false, 1},
		{"job-completed", []string{"hook", "job-completed", "--pid", pid}, true, 0, false, 0},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		c := s.command("hostlock", tt.args...)
		if tt.stdout {
			c.Stdout = w
		} else {
			c.Stderr = w
		}
		_ = c.Run()
		w.Close()
		if got := c.ProcessState; exitStatus(unix.WaitStatus(got.Sys().(syscall.WaitStatus))) != tt.status {
			t.Errorf("%s: %s, want status %d", tt.name, got, tt.status)
		}
		if exists(ran) != tt.ran {
			t.Errorf("%s: ran: %t", tt.name, exists(ran))
		}
		os.Remove(ran)
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			tickets, _ := filepath.Glob(filepath.Join(s.dir, "*.lock"))
			if len(tickets) == tt.tickets {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d tickets, want %d", tt.name, len(tickets), tt.tickets)
			}
		}
	}
}

// The first signal is kept until the wait can be given up; who is stuck elsewhere, here at
// the guard, dies of the second.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	anchor := s.start(s.command("sleep", "1000"))
	must(s.command("hostlock", "run", "--reason", "a test", "--", "true").Run()) // makes the guard
	guard, err := os.OpenFile(filepath.Join(s.dir, "guard"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	must(unix.Flock(int(guard.Fd()), unix.LOCK_EX))
	waiter := s.start(s.command("hostlock", "acquire", "--pid", strconv.Itoa(anchor.Process.Pid), "--wait"))
	blocked := fmt.Sprintf(" -> FLOCK  ADVISORY  WRITE %d ", waiter.Process.Pid)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		locks, err := os.ReadFile("/proc/locks")
		must(err)
		if strings.Contains(string(locks), blocked) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is not at the guard:\n%s", locks)
		}
	}
	endsByTerms(t, waiter.Cmd)
	if ws := waiter.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != unix.SIGTERM {
		t.Errorf("%v", waiter.ProcessState)
	}
}

// endsByTerms sends TERM until a process ends: two that come together are one.
func endsByTerms(t *testing.T, c *exec.Cmd) {
	t.Helper()
	over := make(chan error, 1)
	go func() { over <- c.Wait() }()
	for end := time.Now().Add(patience); len(over) == 0; time.Sleep(time.Millisecond) {
		_ = c.Process.Signal(unix.SIGTERM)
		if time.Now().After(end) {
			t.Fatal("no TERM ends it")
		}
	}
	<-over
}

// Who has nothing left to do but to say so, to a reader that does not read, can be ended
// as any program can.
func TestSignalBeforeADeafReader(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, w := fullPipe(t)
	done := s.run("--", "true")
	done.Stderr = w
	must(done.Start())
	for end := time.Now().Add(patience); !exists(filepath.Join(s.dir, "history.jsonl")); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to its end")
		}
	}
	s.comesFree()
	endsByTerms(t, done)

	holder := s.start(s.run("--", "child", "hold"))
	holder.process("ready")
	waiter := s.run("--", "true")
	waiter.Stderr = w
	must(waiter.Start())
	for end := time.Now().Add(patience); len(s.tickets()) < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not wait")
		}
	}
	endsByTerms(t, waiter)
	if left := s.tickets(); len(left) != 2 {
		t.Errorf("left %q", left)
	}
}

// A reader that is late is none that is deaf: what comes after it, the host and the
// command, is as safe from signals as ever.
func TestSignalAfterALateReader(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r, w := fullPipe(t)
	c := s.run("--", "sh", "-c", `trap "exit 9" TERM; echo ready $$; i=0; while [ $i -lt 6000 ]; do sleep 0.01; i=$((i+1)); done`)
	c.Env = append(c.Env, "HOSTLOCK_PRIVATE_OK=0") // so that it has something to say before it asks
	in, out, err := os.Pipe()
	must(err)
	defer in.Close()
	c.Stdout, c.Stderr = out, w
	must(c.Start())
	out.Close()
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	// proc_pid_syscall(5): the call's number and its arguments.
	writing := fmt.Sprintf("%d 0x2 ", unix.SYS_WRITE)
	for end, found := time.Now().Add(patience), false; !found; time.Sleep(time.Millisecond) {
		calls, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", c.Process.Pid))
		for _, file := range calls {
			b, _ := os.ReadFile(file)
			found = found || strings.HasPrefix(string(b), writing)
		}
		if time.Now().After(end) {
			t.Fatal("it does not wait for its reader")
		}
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	(&live{t: t, out: bufio.NewReader(in)}).process("ready")
	must(c.Process.Signal(unix.SIGTERM))
	_ = c.Wait()
	if got := exitStatus(unix.WaitStatus(c.ProcessState.Sys().(syscall.WaitStatus))); got != 9 || !c.ProcessState.Exited() {
		t.Errorf("%s, want the command's exit status 9", c.ProcessState)
	}
}
