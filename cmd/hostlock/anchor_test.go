//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

func TestChoose(t *testing.T) {
	chain := func(comms ...string) (ps []proc.Process) {
		for i, c := range comms {
			ps = append(ps, proc.Process{PID: 100 - i, Comm: c})
		}
		return ps
	}
	init := proc.Process{PID: 1, Comm: "init"}
	for _, tc := range []struct {
		name    string
		above   []proc.Process
		initial bool
		comm    string // empty: refused
		ttl     time.Duration
	}{
		{"the invoking shell", chain("bash", "sshd", "init"), true, "bash", time.Hour},
		{"not what starts a program on somebody's behalf", chain("timeout", "env", "sudo", "zsh", "bash"), true, "zsh", time.Hour},
		{"nor one that changes what it starts", chain("runuser", "chroot", "unshare", "nsenter", "prlimit", "setarch", "zsh", "bash"), true, "zsh", time.Hour},
		{"nor one that watches or repeats it", chain("perf", "strace", "ltrace", "hyperfine", "xargs", "find", "zsh", "bash"), true, "zsh", time.Hour},
		{"the job process, however far", chain("bash", "node", "bash", "Runner.Worker", "Runner.Listener"), true, "Runner.Worker", 0},
		{"the nearest job", chain("bash", "Runner.Worker", "x", "Runner.Worker"), true, "Runner.Worker", 0},
		{"a process that runs several jobs", chain("bash", "act", "make"), true, "act", 6 * time.Hour},
		{"forgejo", chain("sh", "forgejo-runner"), true, "forgejo-runner", 6 * time.Hour},
		{"act within a job: the job", chain("bash", "act", "bash", "Runner.Worker"), true, "Runner.Worker", 0},
		{"init is no anchor", []proc.Process{init}, true, "", 0},
		{"nor behind sudo", append(chain("sudo"), init), true, "", 0},
		{"the first process of a container is", []proc.Process{{PID: 1, Comm: "sh"}}, false, "sh", time.Hour},
		{"nothing to be seen", nil, true, "", 0},
		{"nothing but wrappers", chain("env", "nice"), false, "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, ttl, err := choose(tc.above, tc.initial)
			if (err == nil) != (tc.comm != "") || err == nil && (p.Comm != tc.comm || ttl != tc.ttl) {
				t.Errorf("got %q, %s, %v; want %q, %s", p.Comm, ttl, err, tc.comm, tc.ttl)
			}
			if err == nil && tc.name == "the nearest job" && p.PID != 99 {
				t.Errorf("pid %d is not the nearest job's", p.PID)
			}
		})
	}
}

// Another user's process is an anchor only for root, or by name.
func TestForeignAnchor(t *testing.T) {
	self, err := proc.Stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	above, err := proc.Stat(os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	above.Comm = "bash" // whatever runs the tests
	c := lock.Caller{UID: above.UID + 12345, Forebears: []proc.Process{self, above}}
	take := newTaking("acquire")
	if _, _, err := take.anchor(c); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "name the process with --pid") {
		t.Errorf("another user's process: %v", err)
	}
	c.UID = 0
	if p, ttl, err := take.anchor(c); err != nil || p.PID != above.PID || p.Comm != "bash" || p.Start != above.Start || ttl != defaultTTL {
		t.Errorf("for root: %+v, %s, %v", p, ttl, err)
	}
	c.UID = above.UID + 12345
	if err := take.fs.Parse([]string{fmt.Sprint("--pid=", above.PID)}); err != nil {
		t.Fatal(err)
	}
	if p, _, err := take.anchor(c); err != nil || p.PID != above.PID {
		t.Errorf("by name: %+v, %v", p, err)
	}
	// A recycled pid is another process.
	c = lock.Caller{UID: above.UID, Forebears: []proc.Process{self, above}}
	c.Forebears[1].Start++
	if _, _, err := newTaking("acquire").anchor(c); exitCode(err) != exitUsage {
		t.Errorf("a pid that went to another process: %v", err)
	}
}

// The exit codes are an interface.
func TestExitCode(t *testing.T) {
	ticket := new(lock.Ticket)
	for _, tc := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{usageError("wait", "x"), 1},
		{&lock.BusyError{Blocker: ticket}, 2},
		{&lock.NotOursError{Ticket: ticket}, 2},
		{lock.ErrNotHeld, 2},
		{&lock.InterruptedError{Cause: lock.ErrAnchorGone}, 2},
		{&lock.TimeoutError{}, 3},
		{&lock.ReapRefusedError{Ticket: ticket}, 4},
		{&lock.GateError{}, 5},
		{&lock.TakenOverError{}, 6},
		{&doubtfulError{"x"}, 6},
		{&lock.UnusableError{}, 7},
		{errors.New("what nobody foresaw"), 7},
		{&lock.NestedError{Hold: ticket}, 9},
		{&lock.InterruptedError{Cause: signalError(syscall.SIGINT)}, 130},
		{&lock.InterruptedError{Cause: signalError(syscall.SIGTERM)}, 143},
		{exitError(42), 42},
		{fmt.Errorf("wrapped: %w", &lock.GateError{}), 5},
		{errors.Join(&lock.TimeoutError{}, &lock.UnusableError{}), 3},
	} {
		code := exitOK
		var exit exitError
		switch {
		case errors.As(tc.err, &exit):
			code = report(tc.err)
		case tc.err != nil:
			code = exitCode(tc.err)
		}
		if code != tc.code {
			t.Errorf("%v: exit code %d, want %d", tc.err, code, tc.code)
		}
	}
	// The outcome that is printed agrees with the code.
	for outcome, err := range map[string]error{
		"busy": &lock.BusyError{}, "timed_out": &lock.TimeoutError{}, "reap_refused (stale_pid)": &lock.ReapRefusedError{Kind: lock.StalePID},
		"gate_failed": &lock.GateError{}, "unusable": &lock.UnusableError{}, "": &lock.NestedError{},
	} {
		if got := outcomeOf(err); got != outcome {
			t.Errorf("%T: outcome %q, want %q", err, got, outcome)
		}
	}
}
