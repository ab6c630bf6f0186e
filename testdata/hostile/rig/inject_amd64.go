//go:build linux

package rig

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// The older calls that this machine has beside the ones in names.
func init() {
	for nr, name := range map[uint64]string{
		unix.SYS_OPEN: "open", unix.SYS_MKDIR: "mkdir", unix.SYS_RMDIR: "rmdir", unix.SYS_POLL: "poll", unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_LSTAT: "lstat",
		unix.SYS_VFORK: "vfork", unix.SYS_FORK: "fork", unix.SYS_PIPE: "pipe", unix.SYS_DUP2: "dup2", unix.SYS_READLINK: "readlink", unix.SYS_ACCESS: "access",
	} {
		names[nr] = name
	}
}

// CanInject says whether calls can be made to fail on this machine.
const CanInject = true

// skipCall makes the call that a thread is about to make one that does not exist.
func skipCall(tid int) error {
	var r syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	r.Orig_rax = ^uint64(0)
	return syscall.PtraceSetRegs(tid, &r)
}

// setResult sets what a call that has ended returned.
func setResult(tid int, e syscall.Errno) error {
	var r syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	r.Rax = uint64(-int64(e))
	return syscall.PtraceSetRegs(tid, &r)
}
