//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/bits"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync/atomic"
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

// A signals is a set of signal numbers.
type signals uint32

func (s signals) has(n unix.Signal) bool { return s&(1<<n) != 0 }

// An inbox keeps the signals that came until the loop takes them. The loop
// sleeps in poll(2), which knows only descriptors, so there is one. Like the
// kernel it keeps one of each number.
type inbox struct {
	wake    int // eventfd: readable while something may be pending
	pending atomic.Uint32
	marked  chan struct{} // the marker came
	heard   chan os.Signal
	// ctx ends with the first signal of passedOn; its cause is a signalError.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// A signalError is a signal as the reason why something was given up.
type signalError unix.Signal

func (e signalError) Error() string { return unix.SignalName(unix.Signal(e)) }

// listen installs the handlers. What was ignored when we were started (nohup, a
// background job of a shell without job control) stays ignored, by us and by the
// command.
//
// The Go runtime tells that of HUP and INT only and has by now put its handler
// over any other. But a shell ignores INT and QUIT together (POSIX, Shell Command
// Language 2.11), so QUIT follows INT. A TERM that was ignored cannot be told.
func listen() (*inbox, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	in := &inbox{wake: fd, marked: make(chan struct{}, 1)}
	// More than there are kinds: the kernel keeps one of each, and whoever
	// empties the channel waits for nothing.
	in.heard = make(chan os.Signal, 256)
	in.ctx, in.cancel = context.WithCancelCause(context.Background())
	if signal.Ignored(unix.SIGINT) {
		signal.Ignore(unix.SIGQUIT)
	}
	// A reader of our stderr that has gone must not kill us in front of the
	// command. The handler does not reach the command: exec resets it.
	hear := []os.Signal{unix.SIGCHLD, unix.SIGPIPE}
	for _, s := range passedOn {
		if !signal.Ignored(s) {
			hear = append(hear, s)
		}
	}
	signal.Notify(in.heard, hear...)
	go in.collect()
	return in, nil
}

func (in *inbox) collect() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	for got := range in.heard {
		s := got.(unix.Signal)
		if s == marker {
			select {
			case in.marked <- struct{}{}:
			default:
			}
			continue
		}
		in.pending.Or(1 << s)
		if slices.Contains(passedOn, s) {
			in.cancel(signalError(s)) // the first counts
		}
		_, _ = unix.Write(in.wake, one)
	}
}

// marker is a signal that hostlock sends to itself to learn that all that came
// before it is in the inbox. Its number is above that of INT and QUIT: of several that
// are pending the kernel delivers the lowest first (next_signal in kernel/signal.c), and
// so does the Go runtime.
const marker = unix.SIGIO

// settle waits until the signals that the kernel has for us are in the inbox;
// they travel by way of a thread and two goroutines, which a busy machine delays.
func (in *inbox) settle() {
	signal.Notify(in.heard, marker)
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
	if proc.SignalFD(self, marker) != nil {
		return
	}
	select {
	case <-in.marked:
	case <-time.After(time.Second): // blocked by whoever started us
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
func (in *inbox) take() signals {
	var count [8]byte
	_, _ = unix.Read(in.wake, count[:]) // before the set: what comes in between wakes us once too often
	return signals(in.pending.Swap(0))
}
