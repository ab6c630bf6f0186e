//go:build linux && (amd64 || arm64) && !ossignal

package proc

import (
	"errors"
	"runtime"
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

// Catch has a signal entered in what Caught returns, also one that whoever started us has
// blocked. Until Uncatch it does nothing else, whoever sends it.
func Catch(s unix.Signal) error {
	if int(s) >= len(replaced) { // what is below 1 the kernel refuses
		return unix.EINVAL
	}
	act := &action{handler: handlerPC, flags: saOnStack | saRestart, mask: everySignal}
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
	return unblock(s)
}

// unblock has a signal that is blocked let in by one thread. Not by ours: the command is
// started from there and inherits its mask, as it came to us. Every thread has that, but
// for what the runtime lets in (blockableSig in runtime/signal_unix.go).
func unblock(s unix.Signal) error {
	bit := uint64(1) << (s - 1)
	blocked, err := sigmask(unix.SIG_UNBLOCK, 0)
	if blocked&bit == 0 {
		return err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		_, err := sigmask(unix.SIG_UNBLOCK, bit)
		done <- err
		select {}
	}()
	return <-done
}

// sigmask changes the signals that this thread has blocked, and returns those before.
func sigmask(how int, set uint64) (old uint64, err error) {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, uintptr(how), uintptr(unsafe.Pointer(&set)), uintptr(unsafe.Pointer(&old)), unsafe.Sizeof(set), 0, 0)
	if e != 0 {
		return 0, e
	}
	return old, nil
}

// Uncatch has a signal do again what it did before Catch.
func Uncatch(s unix.Signal) error {
	if s < 0 || int(s) >= len(replaced) || replaced[s] == nil {
		return errors.New("not caught")
	}
	return sigaction(s, replaced[s], nil)
}

// Ignored reports whether a signal is ignored, by whoever started us or by us.
func Ignored(s unix.Signal) bool {
	var now action
	return sigaction(s, nil, &now) == nil && now.handler == ignored
}
