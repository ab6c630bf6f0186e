package main

import (
	"bufio"
	"os"
	"strings"
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
	l.says("sending it SIGTERM")
	hasEnded(t, run)
	isGone(t, command)
	if text := l.err.String(); strings.Contains(text, "and killed") {
		t.Errorf("it was killed:\n%s", text)
	}
	l.status()
	s.free()
}
