//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// passedOn are the signals that somebody sends to hostlock and means for the
// command. Left out are those that the terminal sends to the whole process group
// (TSTP, CONT, TTIN, TTOU, WINCH): the command is in ours.
var passedOn = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTERM}

// ends reports whether a signal asks the command to end, which begins the
// teardown's clock.
func ends(s unix.Signal) bool {
	switch s {
	case unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM:
		return true
	}
	return false
}

// An inbox keeps the signals that came until somebody takes them. What waits, waits in
// poll(2), which knows only descriptors, so there is one. As a context it ends with the
// first signal that came, or with the job; that shows on its descriptors, and its Done
// never closes (lock.Pollable).
type inbox struct {
	context.Context
	wake int // eventfd: readable while something may be pending
	// children: it is told of them too, which ends no wait.
	children bool
	job      *jobWatch
	cause    error
}

// A signalError is a signal as the reason why something was given up.
type signalError unix.Signal

func (e signalError) Error() string { return unix.SignalName(unix.Signal(e)) }

// newInbox catches signals. What was ignored when we were started (nohup, a background job
// of a shell without job control) stays ignored, by us and by the command.
//
// The Go runtime tells that of HUP and INT only and has by now put its handler
// over any other. But a shell ignores INT and QUIT together (POSIX, Shell Command
// Language 2.11), so QUIT follows INT. A TERM that was ignored cannot be told.
func newInbox(kinds ...unix.Signal) (*inbox, error) {
	if proc.Ignored(unix.SIGINT) {
		signal.Ignore(unix.SIGQUIT)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for signals: %w", err)
	}
	proc.WakeBy(fd)
	for _, s := range kinds {
		if proc.Ignored(s) {
			continue
		}
		if err := proc.Catch(s); err != nil {
			return nil, fmt.Errorf("cannot listen for %s: %w", unix.SignalName(s), err)
		}
	}
	return &inbox{Context: context.Background(), wake: fd}, nil
}

// listen catches what is passed on to the command, and the end of children.
func listen() (*inbox, error) {
	in, err := newInbox(append(passedOn, unix.SIGCHLD)...)
	if err == nil {
		in.children = true
	}
	return in, err
}

// untilSignalled is a context that the same signals end. A second one ends us, wherever
// we are by then: at the guard, or with a reader that does not read.
func untilSignalled() (*inbox, error) {
	in, err := newInbox(passedOn...)
	if err != nil {
		return nil, err
	}
	go func() {
		for proc.Caught() == 0 {
			poll([]unix.PollFd{{Fd: int32(in.wake), Events: unix.POLLIN}}, 0)
		}
		letGo()
	}()
	return in, nil
}

// letGo has signals do to us again what they do to every program.
func letGo() {
	for _, s := range passedOn {
		_ = proc.Uncatch(s)
	}
}

// Descriptors are readable once the context may have ended.
func (in *inbox) Descriptors() []int {
	fds := []int{in.wake}
	for _, p := range in.job.fds() {
		fds = append(fds, int(p.Fd))
	}
	return fds
}

// Err is why a wait must end: a signalError or a jobError. It stays with the first.
func (in *inbox) Err() error {
	if in.cause != nil {
		return in.cause
	}
	if in.children {
		in.empty() // one of whoever exec'd us may have ended
	}
	came := proc.Caught()
	for _, s := range passedOn {
		if came.Has(s) && in.cause == nil {
			in.cause = signalError(s)
		}
	}
	if in.cause == nil {
		if p, ok := in.job.ended(); ok {
			in.cause = jobError{p}
		}
	}
	return in.cause
}

// marker is a signal that hostlock sends to itself to learn that all that came
// before it is in the inbox. Its number is above that of INT and QUIT: of several that
// are pending the kernel delivers the lowest first (next_signal in kernel/signal.c).
const marker = unix.SIGIO

// settle waits until the signals that the kernel has for us are in the inbox; they
// travel by way of a thread, which a busy machine delays.
func (in *inbox) settle() {
	if proc.Catch(marker) != nil {
		return
	}
	in.mark() // what was pending is with a thread now
	awaitHandlers(time.Second)
	in.mark()
}

// mark waits for a marker to come through.
func (in *inbox) mark() {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return
	}
	defer unix.Close(self)
	proc.Take(1 << marker) // one that came late speaks for what was before it
	if proc.SignalFD(self, marker) != nil {
		return
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		in.empty()
		if proc.Take(1 << marker).Has(marker) {
			return
		}
		poll([]unix.PollFd{{Fd: int32(in.wake), Events: unix.POLLIN}}, max(time.Until(end), time.Millisecond))
	}
}

// awaitHandlers waits until no thread of ours is in the runtime's signal
// handler. The limit is for a caller that started us with signals blocked.
func awaitHandlers(limit time.Duration) {
	for end := time.Now().Add(limit); handling() && time.Now().Before(end); {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil)
	}
}

// handling looks at the signals that our threads have blocked (field 32 of
// proc_pid_stat(5)): one in the handler has all (sa_mask in setsig,
// runtime/os_linux.go) but the one that it is about to die of (dieFromSignal), and so
// has, for a moment, one that starts or is being started.
func handling() bool {
	dir, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	var all uint64
	for _, s := range passedOn {
		all |= 1 << (s - 1)
	}
	buf := make([]byte, 4096)
	n, err := unix.Getdents(dir, buf)
	if err != nil {
		return false
	}
	_, _, threads := unix.ParseDirent(buf[:n], -1, nil) // more than a hundred of them
	for _, t := range threads {
		fd, err := unix.Openat(dir, t+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it has ended
		}
		n, _ := unix.Read(fd, buf)
		unix.Close(fd)
		text := buf[:max(n, 0)]
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // from field 3 on
		if len(fields) < 30 {
			continue
		}
		if blocked, err := strconv.ParseUint(string(fields[29]), 10, 64); err == nil && bits.OnesCount64(blocked&all) >= len(passedOn)-1 {
			return true
		}
	}
	return false
}

// take empties the inbox.
func (in *inbox) take() proc.Signals {
	in.empty() // before the set: what comes in between wakes us once too often
	return proc.Take(^proc.Signals(0))
}

func (in *inbox) empty() {
	var count [8]byte
	_, _ = unix.Read(in.wake, count[:])
}
