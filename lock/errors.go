//go:build linux

package lock

import (
	"errors"
	"fmt"
	"time"
)

// An UnusableError is a lock directory that can vouch for nothing. It is
// neither busy nor free.
type UnusableError struct {
	Path    string
	Problem string // one line, with what to do about it
	Err     error  // what the kernel said, if it was asked
}

func (e *UnusableError) Error() string {
	s := fmt.Sprintf("lock directory %s is unusable: %s", Flatten(e.Path, MaxText), e.Problem)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *UnusableError) Unwrap() error { return e.Err }

// A BusyError is the answer to somebody who did not want to wait.
type BusyError struct {
	Blocker *Ticket // who is in the way
	Reason  string  // set when it is not a ticket that refuses
}

func (e *BusyError) Error() string {
	if e.Reason != "" {
		return "the host is busy: " + e.Reason
	}
	return "the host is busy"
}

// A TimeoutError is a wait that reached its limit. Nothing is held.
type TimeoutError struct {
	Waited    time.Duration
	Blocker   *Ticket  // who was in the way then
	Holder    *Ticket  // who had the host then; nil if nobody
	Survivors []string // what was left of a dead holder, when that was waited for
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("timed out after %s of waiting for the host", e.Waited.Round(time.Second))
}

// InTheWay is who to name for it: who had the host, else who was before us.
func (e *TimeoutError) InTheWay() *Ticket {
	if e.Holder != nil {
		return e.Holder
	}
	return e.Blocker
}

// An InterruptedError is a wait that a signal, or the end of the process it
// was for, cut short. Nothing is held.
type InterruptedError struct{ Cause error }

func (e *InterruptedError) Error() string {
	return "stopped waiting for the host: " + e.Cause.Error()
}
func (e *InterruptedError) Unwrap() error { return e.Cause }

// ErrAnchorGone is the end of the process that a hold was wanted for.
var ErrAnchorGone = errors.New("the process that the lock was for has ended")

// A ReapRefusedError is strict-reap's answer to a dead or lapsed holder, which
// is left as it was.
type ReapRefusedError struct {
	Kind   Takeover
	Ticket *Ticket
}

func (e *ReapRefusedError) Error() string {
	return fmt.Sprintf("strict-reap: the last holder did not release (%s)", e.Kind)
}

// A GateError is a gate that was not met in time. The host has been released.
type GateError struct {
	Gate   string // as recorded
	Waited time.Duration
}

func (e *GateError) Error() string {
	return fmt.Sprintf("the gate was not met within %s (%s)", e.Waited.Round(time.Second), e.Gate)
}

// A NestedError is a request that could only wait for the caller's own hold.
type NestedError struct {
	Hold    *Ticket
	Problem string
}

func (e *NestedError) Error() string { return e.Problem }

// A TakenOverError tells a holder that the host was not its own until the end.
type TakenOverError struct {
	Kind Takeover // NoTakeover: the ticket was removed by hand or by --force
	By   string   // id of who did it, or empty
}

func (e *TakenOverError) Error() string {
	switch {
	case e.Kind == NoTakeover:
		return "the lock was gone before it was released: somebody removed it, and the host was not ours to the end"
	default:
		return fmt.Sprintf("the lock was taken over before it was released (%s): the host was not ours to the end", e.Kind)
	}
}

// ErrNotHeld says that there is nothing to release or to assert.
var ErrNotHeld = errors.New("no such hold")

// A NotOursError refuses to release somebody else's hold.
type NotOursError struct{ Ticket *Ticket }

func (e *NotOursError) Error() string { return "that hold is somebody else's" }
