//go:build linux

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A signalled wait was ended by a signal. Nothing is held.
type signalled struct{ signal syscall.Signal }

func (s signalled) Error() string { return unix.SignalName(s.signal) }

// untilSignalled returns a context that INT, TERM and HUP end, with a
// signalled cause. The handlers stay until we end, which is soon after: to take them
// away is a word between two threads for each, 0.2 ms in all. A signal that our caller ignores stays ignored (nohup(1),
// a background job of a shell).
func untilSignalled() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	// A reader of our output that is gone is an error of the write, which we
	// can undo something after, and not our end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		s := <-signals
		cancel(signalled{s.(syscall.Signal)})
		signal.Stop(signals) // a second one ends us
	}()
	return ctx
}
