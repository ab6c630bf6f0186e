//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/org/hostlock-action/hook"
	"github.com/org/hostlock-action/lock"
)

// dispatch runs one subcommand and returns its exit code.
func dispatch(name string, args []string) int {
	switch name {
	case lock.KeeperCommand:
		return lock.Keep()
	case "acquire":
		return report(acquire(args))
	case "release":
		return report(release(args))
	case "status":
		return report(status(args))
	case "wait":
		return report(wait(args))
	case "assert-held":
		return report(assertHeld(args))
	case "reap":
		return report(reap(args))
	case "provenance":
		return report(provenance(args))
	case "log":
		return report(history(args))
	case "doctor":
		return report(doctor(args))
	case "hook":
		return jobHook(args)
	case "action":
		return action(args)
	case "run":
		return run(args)
	}
	return report(usageError("hostlock", "there is no command %q", lock.Flatten(name, 60)))
}

// A usageErr is a call whose words are off.
type usageErr struct{ command, text string }

func (e *usageErr) Error() string { return e.text }

func usageError(command, format string, args ...any) error {
	return &usageErr{command, fmt.Sprintf(format, args...)}
}

// An exitError is an exit code whose message, if any, has been printed.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// report tells an error, and where somebody is in the way, who and what can be
// done; it returns the exit code.
func report(err error) int {
	var exit exitError
	if errors.As(err, &exit) {
		return int(exit)
	}
	if err == nil {
		return exitOK
	}
	say("%s", message(err))
	for _, line := range advice(err) {
		say("  %s", line)
	}
	return exitCode(err)
}

// exitCode maps an error to the code that the design promises for it.
func exitCode(err error) int {
	var (
		usage    *usageErr
		busy     *lock.BusyError
		timeout  *lock.TimeoutError
		refused  *lock.ReapRefusedError
		gate     *lock.GateError
		taken    *lock.TakenOverError
		unusable *lock.UnusableError
		nested   *lock.NestedError
		notOurs  *lock.NotOursError
		doubtful *doubtfulError
		setup    *hook.SetupError
		signal   signalError
	)
	switch {
	case errors.As(err, &usage), errors.As(err, &setup):
		return exitUsage
	case errors.As(err, &signal):
		return 128 + int(signal)
	case errors.As(err, &doubtful):
		return exitDoubtful
	case errors.Is(err, lock.ErrAnchorGone):
		return exitBusy
	case errors.As(err, &busy), errors.As(err, &notOurs), errors.Is(err, lock.ErrNotHeld):
		return exitBusy
	case errors.As(err, &timeout):
		return exitTimeout
	case errors.As(err, &refused):
		return exitReapRefused
	case errors.As(err, &gate):
		return exitGate
	case errors.As(err, &taken):
		return exitDoubtful
	case errors.As(err, &nested):
		return exitNested
	case errors.As(err, &unusable):
		return exitUnusable
	}
	return exitUnusable
}

// A doubtfulError is a hold that is there and not to be believed.
type doubtfulError struct{ text string }

func (e *doubtfulError) Error() string { return e.text }

// message is an error as one line.
func message(err error) string {
	var (
		usage   *usageErr
		busy    *lock.BusyError
		timeout *lock.TimeoutError
		refused *lock.ReapRefusedError
		nested  *lock.NestedError
		notOurs *lock.NotOursError
	)
	switch {
	case errors.As(err, &usage):
		if usage.command == "hostlock" {
			return usage.text + " (see hostlock --help)"
		}
		return usage.text + " (see hostlock " + usage.command + " --help)"
	case errors.As(err, &busy) && busy.Blocker != nil:
		return "busy: " + inTheWay(busy.Blocker)
	case errors.As(err, &timeout) && timeout.InTheWay() != nil:
		return fmt.Sprintf("timed out after %s of waiting: %s", span(timeout.Waited), inTheWay(timeout.InTheWay()))
	case errors.As(err, &refused):
		return fmt.Sprintf("--strict-reap refuses the host: %s did not release it (%s)", who(refused.Ticket), refused.Kind)
	case errors.As(err, &nested) && nested.Hold != nil:
		return fmt.Sprintf("%s (it is the hold of %s)", nested.Problem, who(nested.Hold))
	case errors.As(err, &notOurs) && notOurs.Ticket != nil:
		return "that is not yours to release: " + inTheWay(notOurs.Ticket)
	}
	return err.Error()
}

// inTheWay says who has the host or stands before us, since when and what for.
func inTheWay(t *lock.Ticket) string {
	if t.Standing == lock.Waits {
		return fmt.Sprintf("%s waits for %s before us: %s", who(t), machine(), purpose(t))
	}
	text := fmt.Sprintf("%s %s %s %s", who(t), verb(t), machine(), since(t))
	if p := purpose(t); p != "" {
		text += ": " + p
	}
	return text
}

// advice is what can be done about an error.
func advice(err error) []string {
	var (
		busy    *lock.BusyError
		timeout *lock.TimeoutError
		refused *lock.ReapRefusedError
		gate    *lock.GateError
		notOurs *lock.NotOursError
		run     *runError
		lines   []string
	)
	about := func(t *lock.Ticket) {
		if url := link(t); url != "" {
			lines = append(lines, "its run: "+url)
		}
		if t != nil && t.Standing != lock.Waits {
			lines = append(lines, limit(t))
		}
	}
	switch {
	case errors.Is(err, errRefused): // for as long as the job lasts
	case errors.As(err, &busy):
		about(busy.Blocker)
		queue := "--wait queues for it"
		if errors.As(err, &run) {
			queue = "without --no-wait it queues"
		}
		lines = append(lines, "nothing was taken; "+queue+", hostlock status shows the queue")
	case errors.As(err, &timeout):
		about(timeout.InTheWay())
		if len(timeout.Survivors) > 0 {
			lines = append(lines, "left running by a dead holder: "+strings.Join(timeout.Survivors, ", "))
		}
		lines = append(lines, "nothing is held; --timeout sets how long to wait, hostlock status shows the queue")
	case errors.As(err, &refused) && refused.Kind == lock.TTLExpired:
		about(refused.Ticket)
		lines = append(lines, "nothing was taken; that holder lives: wait for it, take the host over from it without --strict-reap, or end its hold with hostlock release --force, as its user or root")
	case errors.As(err, &refused):
		lines = append(lines, "nothing was taken and the lock is as it was; hostlock reap acknowledges a dead holder")
	case errors.As(err, &notOurs):
		lines = append(lines, "nothing was released; --hold-id ID names a hold of your user, --force takes away any of your user, and for root anybody's")
	case errors.As(err, &gate) && errors.As(err, &run) && run.outer != nil:
		lines = append(lines, fmt.Sprintf("the hold of %s that this is inside of goes on; see what keeps the host busy, or give the gate another --gate-timeout", who(run.outer)))
	case errors.As(err, &gate):
		lines = append(lines, "the host was released; see what keeps it busy, or give the gate another --gate-timeout")
	}
	return lines
}
