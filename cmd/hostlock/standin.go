//go:build linux

package main

import (
	"errors"

	"github.com/org/hostlock-action/lock"
)

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

func warn(d *lock.Dir) {
	for _, w := range d.Warnings {
		say("WARNING: %s", w)
	}
	d.Warnings = nil
}
