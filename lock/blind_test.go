//go:build linux && (amd64 || arm64)

package lock

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied does what do does, on a thread on which a system call fails. It skips the
// test where that cannot be had.
func denied(t *testing.T, nr uint32, as unix.Errno, do func()) {
	t.Helper()
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number, by struct seccomp_data
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: nr},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(as)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its filter
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			_, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(filter)))
			if errno != 0 {
				err = errno
			}
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("no filter of system calls: %v", err)
	}
}

// A guard that cannot be looked at is no reason to ask again until the patience ends,
// and none to take another's word for it.
func TestGuardThatCannotBeLookedAt(t *testing.T) {
	old := guardPatience
	guardPatience = 100 * time.Millisecond
	defer func() { guardPatience = old }()
	w := newWorld(t)
	d, _ := w.process()
	var err error
	denied(t, unix.SYS_NEWFSTATAT, unix.EACCES, func() {
		_, err = d.enter()
	})
	if !errors.As(err, new(*UnusableError)) || !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "its guard file cannot be looked at") {
		t.Errorf("%v", err)
	}
	s, err := d.enter() // it was not left locked
	if err != nil {
		t.Fatal(err)
	}
	s.leave()
}
