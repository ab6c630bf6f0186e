//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/org/hostlock-action/lock"
)

// dispatch runs one subcommand and returns its exit code.
func dispatch(name string, args []string) int {
	switch name {
	case lock.KeeperCommand:
		return lock.Keep()
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

// report prints an error as one line and returns its exit code.
func report(err error) int {
	var exit exitError
	if errors.As(err, &exit) {
		return int(exit)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(os.Stderr, "hostlock: "+lock.Flatten(message(err), 4096))
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
	)
	switch {
	case errors.As(err, &usage):
		return exitUsage
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

// message is an error with what to do about it.
func message(err error) string {
	var usage *usageErr
	if errors.As(err, &usage) {
		if usage.command == "hostlock" {
			return usage.text + " (see hostlock --help)"
		}
		return usage.text + " (see hostlock " + usage.command + " --help)"
	}
	return err.Error()
}
