//go:build linux && (amd64 || arm64) && !ossignal

package proc

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// os/signal would do as well (catch_os_linux.go does so on other machines), and costs
// each of our starts 0.4 ms of the 1 ms that flock(1) takes in all: three threads, and a
// word between two of them for each signal (sigenable in runtime/sigqueue.go). The handler
// here is of a dozen instructions, calls no Go code, and is what os/signal asks of such
// a one: on the alternate stack. A child has it no more than the runtime's own: fork
// resets what the runtime believes to handle, before any signal is let in
// (runtime_AfterForkInChild), and exec resets the rest.

// handlerPC and restorerPC are where the handler begins, and what it returns to; 0 is the
// kernel's own.
var handlerPC, restorerPC uintptr

// An action is the kernel's struct sigaction (not the C library's).
type action struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	ignored     = 1          // SIG_IGN
	saRestorer  = 0x04000000 // SA_RESTORER
	saOnStack   = 0x08000000 // SA_ONSTACK
	saRestart   = 0x10000000 // SA_RESTART
	saResetHand = 0x80000000 // SA_RESETHAND
	everySignal = 1<<64 - 1
)

// replaced is what was there before us.
var replaced [32]*action

func sigaction(s unix.Signal, act, old *action) error {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(act.mask), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Catch has a signal entered in what Caught returns. Until Uncatch it does nothing else,
// whoever sends it.
func Catch(s unix.Signal) error { return catch(s, 0) }

// CatchOnce is Catch for one signal, of which the next does what it does to every program.
func CatchOnce(s unix.Signal) error { return catch(s, saResetHand) }

func catch(s unix.Signal, flags uint64) error {
	if s <= 0 || int(s) >= len(replaced) {
		return unix.EINVAL
	}
	act := &action{handler: handlerPC, flags: flags | saOnStack | saRestart, mask: everySignal}
	if restorerPC != 0 {
		act.flags, act.restorer = act.flags|saRestorer, restorerPC
	}
	old := new(action)
	if err := sigaction(s, act, old); err != nil {
		return err
	}
	if replaced[s] == nil {
		replaced[s] = old
	}
	return nil
}

// Uncatch has a signal do again what it did before Catch.
func Uncatch(s unix.Signal) error {
	if s <= 0 || int(s) >= len(replaced) || replaced[s] == nil {
		return errors.New("not caught")
	}
	return sigaction(s, replaced[s], nil)
}

// Ignored reports whether a signal is ignored, by whoever started us or by us.
func Ignored(s unix.Signal) bool {
	var now action
	return sigaction(s, nil, &now) == nil && now.handler == ignored
}
