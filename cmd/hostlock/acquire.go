//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/org/hostlock-action/lock"
)

// acquire takes the host for a process that goes on when acquire has ended.
func acquire(args []string) error {
	t := newTaking("acquire")
	if err := t.parse(args); err != nil {
		return err
	}
	if err := noArguments("acquire", t.fs); err != nil {
		return err
	}
	if os.Getenv("HOSTLOCK_REFUSED") == "1" {
		return errors.Join(errRefused, putOn(stdout, "outcome="+outcomeOf(errRefused)+"\n"))
	}
	c := caller()
	anchor, ttl, err := t.anchor(c)
	if err != nil {
		return err
	}
	if !t.given("ttl") {
		t.ttl = ttl
	}
	ctx, err := untilSignalled()
	if err != nil {
		return err
	}
	err = t.acquireFor(ctx, c, anchor)
	if outcome := outcomeOf(err); outcome != "" {
		err = errors.Join(err, putOn(stdout, "outcome="+outcome+"\n"))
	}
	return err
}

// acquireFor takes the host and hands it over to a keeper. On an error nothing
// is held.
func (t *taking) acquireFor(ctx context.Context, c lock.Caller, anchor lock.Party) error {
	d, err := open(t.lockDir)
	if err != nil {
		return err
	}
	defer d.Close()
	defer warn(d)
	req := t.request(c, nil)
	req.Anchor, req.Notify = anchor, newProgress()
	if t.nested == "join" {
		req.Join = lock.JoinHold
	}
	speech.guard()
	defer speech.free()
	h, err := d.Acquire(ctx, req)
	screen.clear()
	if err != nil {
		return err
	}
	if h.Outer != nil {
		say("inside the hold of %s already: nothing was taken, and nothing is to be released", who(h.Outer))
		return putOn(stdout, "outcome="+lock.Joined.String()+"\nhold_id="+h.Outer.ID()+"\n")
	}
	if err = interrupted(ctx); err == nil {
		err = h.HandOver(anchor)
	}
	if err != nil {
		return errors.Join(err, h.Release())
	}
	if err = interrupted(ctx); err == nil {
		err = putOn(stdout, "outcome="+h.Outcome()+"\nhold_id="+h.Record.ID+"\n")
	}
	if err != nil {
		// Whoever asked is gone, or will never know what to release.
		_, rerr := d.Release(h.Record.ID, c, false)
		return errors.Join(err, rerr)
	}
	until := "until that ends or hostlock release is called"
	if ttl := h.Record.TTL(); ttl > 0 {
		until += fmt.Sprintf(", for %s at most", span(ttl))
	}
	say("%s is held for %s, as %s, %s", machine(), process(anchor), h.Record.Owner, until)
	return nil
}

func interrupted(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return &lock.InterruptedError{Cause: context.Cause(ctx)}
}

// outcomeOf is how an attempt that failed is published; empty where none of
// the outcomes says it.
func outcomeOf(err error) string {
	var (
		busy     *lock.BusyError
		timeout  *lock.TimeoutError
		refused  *lock.ReapRefusedError
		gate     *lock.GateError
		unusable *lock.UnusableError
		stopped  *lock.InterruptedError
		nested   *lock.NestedError
		taken    *lock.TakenOverError
	)
	switch {
	case errors.As(err, &busy):
		return lock.Busy.String()
	case errors.As(err, &timeout):
		return lock.TimedOut.String()
	case errors.As(err, &refused):
		return lock.ReapRefused.With(refused.Kind)
	case errors.As(err, &gate):
		return lock.GateFailed.String()
	case errors.As(err, &stopped), errors.As(err, &nested), errors.As(err, &taken):
		return ""
	case errors.As(err, &unusable):
		return lock.Unusable.String()
	}
	return ""
}

// warn tells what went wrong beside the lock itself.
func warn(d *lock.Dir) {
	for _, w := range d.Warnings {
		say("WARNING: %s", w)
	}
	d.Warnings = nil
}
