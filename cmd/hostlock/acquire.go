//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"

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
	c := caller()
	anchor, ttl, err := t.anchor(c)
	if err != nil {
		return err
	}
	if !t.given("ttl") {
		t.ttl = ttl
	}
	ctx, stop := untilSignalled()
	defer stop()
	outcome, id, err := t.acquireFor(ctx, c, anchor)
	if outcome != "" {
		// Where this cannot be told, the hold is of no use to anybody.
		if _, werr := fmt.Println("outcome=" + outcome); werr != nil && err == nil {
			err = fmt.Errorf("the outcome cannot be written: %w", werr)
		}
	}
	if id != "" && err == nil {
		_, err = fmt.Println("hold_id=" + id)
	}
	return err
}

// acquireFor takes the host and hands it over to a keeper. On an error nothing
// is held.
func (t *taking) acquireFor(ctx context.Context, c lock.Caller, anchor lock.Party) (outcome, id string, err error) {
	d, err := open(t.lockDir)
	if err != nil {
		return outcomeOf(err), "", err
	}
	defer warn(d)
	req := t.request(c, nil)
	req.Anchor, req.Notify = anchor, newProgress()
	if t.nested == "join" {
		req.Join = lock.JoinHold
	}
	h, err := d.Acquire(ctx, req)
	if err != nil {
		return outcomeOf(err), "", err
	}
	if h.Outer != nil {
		say("inside the hold of %s already: nothing was taken, and nothing is to be released", who(h.Outer))
		return lock.Joined.String(), h.Outer.ID(), nil
	}
	if ctx.Err() == nil {
		err = h.HandOver(anchor)
	} else {
		err = &lock.InterruptedError{Cause: context.Cause(ctx)}
	}
	if err != nil {
		if rerr := h.Release(); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return outcomeOf(err), "", err
	}
	if ctx.Err() != nil { // while it was handed over
		_, rerr := d.Release(h.Record.ID, c, false)
		return "", "", errors.Join(&lock.InterruptedError{Cause: context.Cause(ctx)}, rerr)
	}
	until := "until that ends or hostlock release is called"
	if ttl := h.Record.TTL(); ttl > 0 {
		until += fmt.Sprintf(", for %s at most", span(ttl))
	}
	say("%s is held for %s, as %s, %s", machine(), process(anchor), h.Record.Owner, until)
	return h.Outcome(), h.Record.ID, nil
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
