//go:build linux

package main

import (
	"time"

	"github.com/org/hostlock-action/lock"
)

// wait waits until an exclusive acquire would be admitted, and takes nothing.
func wait(args []string) error {
	fs := flagSet("wait")
	timeout := time.Duration(defaultTimeout)
	fs.Var(seconds{&timeout}, "timeout", "")
	lockDir := addLockDir(fs)
	if err := parseAll("wait", fs, args); err != nil {
		return err
	}
	if timeout <= 0 {
		return usageError("wait", "--timeout must be above 0")
	}
	d, err := openToAct(*lockDir)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, err := untilSignalled()
	if err != nil {
		return err
	}
	if err := d.WaitFree(ctx, caller(), timeout, newProgress()); err != nil {
		return err
	}
	v, err := d.Look()
	if err != nil {
		return err
	}
	switch v.State {
	case lock.Free, lock.HeldNow:
		say("nothing is in the way of an acquire on %s (it is not reserved: somebody else may come first)", machine())
	case lock.Stale:
		say("nothing alive is in the way of an acquire on %s: it is STALE, and acquire would reap it", machine())
	case lock.Expired:
		say("an acquire on %s would be let in: it is EXPIRED, and acquire would take it from a live holder", machine())
	}
	return nil
}
