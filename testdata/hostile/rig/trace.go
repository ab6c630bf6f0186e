//go:build linux

package rig

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Call is one system call of a traced process, at its entry.
type Call struct {
	N     int // from 1, over all threads and all children
	PID   int // of the process, not the thread
	Exe   string
	After uint64 // the call that the thread made before
	Nr    uint64
	Args  [6]uint64
	Path  string // what a call that takes a path was given
}

// Changes reports whether the call changes something that others can see.
func (c Call) Changes() bool {
	switch c.Nr {
	case unix.SYS_OPENAT:
		return c.Args[2]&unix.O_CREAT != 0
	}
	return changes[Name(c.Nr)]
}

var changes = map[string]bool{
	"mkdir": true, "mkdirat": true, "rmdir": true, "renameat": true, "renameat2": true, "unlinkat": true, "linkat": true, "fchmod": true,
	"pwrite64": true, "write": true, "ftruncate": true, "flock": true, "clone": true, "clone3": true, "vfork": true, "fork": true, "execve": true,
	"socketpair": true, "wait4": true, "waitid": true, "pidfd_send_signal": true, "kill": true, "exit_group": true, "setsid": true, "close_range": true,
	"inotify_add_watch": true, "pidfd_open": true,
}

// An Action is what to do about a call.
type Action struct {
	Kill  bool          // SIGKILL of the process that makes the call, before it is made
	All   bool          // and of every other that is traced
	Errno syscall.Errno // the call is not made, and fails so
}

// A Trace is a program under ptrace with all its threads and children: one
// counter goes over the system calls of them all, which strace's when=N (a
// counter per thread) cannot do. The calls come one at a time to decide.
type Trace struct {
	Args   []string
	Env    []string
	Stdout *os.File
	Stderr *os.File
	Decide func(Call) Action

	Calls  int // entries so far
	Killed bool

	first  int
	done   chan struct{} // the first process is gone
	ended  chan struct{} // all are
	status syscall.WaitStatus
	usage  syscall.Rusage
	err    error
	once   sync.Once
}

// Start begins the program. The tracer is a thread of its own, because ptrace
// and the waiting for it are a thread's.
func (t *Trace) Start() error {
	t.done, t.ended = make(chan struct{}), make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and it dies with its thread, for it is never unlocked
		defer close(t.ended)
		defer t.once.Do(func() { close(t.done) })
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err == nil {
			t.first, err = syscall.ForkExec(t.Args[0], t.Args, &syscall.ProcAttr{
				Env: t.Env, Files: []uintptr{null.Fd(), t.Stdout.Fd(), t.Stderr.Fd()},
				Sys: &syscall.SysProcAttr{Ptrace: true, Setsid: true},
			})
			null.Close()
		}
		started <- err
		if err == nil {
			t.err = t.follow()
		}
	}()
	return <-started
}

// Wait waits until the first process has ended, or was killed.
func (t *Trace) Wait(patience time.Duration) (syscall.WaitStatus, error) {
	select {
	case <-t.done:
		return t.status, t.err
	case <-time.After(patience):
		t.shoot()
		return 0, fmt.Errorf("it has not ended after %s", patience)
	}
}

// WaitAll waits until nothing that was traced is left.
func (t *Trace) WaitAll(patience time.Duration) error {
	select {
	case <-t.ended:
		return t.err
	case <-time.After(patience):
		t.shoot()
		return fmt.Errorf("what it started has not ended after %s", patience)
	}
}

// CPU is the processor time of the first process and of what it waited for.
func (t *Trace) CPU() time.Duration {
	return time.Duration(t.usage.Utime.Nano() + t.usage.Stime.Nano())
}

// shoot ends the first process, which nobody else knows.
func (t *Trace) shoot() { _ = unix.Kill(t.first, unix.SIGKILL) }

const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// follow is the tracer. It returns when no tracee is left.
func (t *Trace) follow() error {
	known := map[int]bool{}
	group := map[int]int{} // thread: process
	fail := map[int]syscall.Errno{}
	exe := map[int]string{}  // process: its program
	last := map[int]uint64{} // thread: its last call
	killAll := false
	for {
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		// __WNOTHREAD: other threads of ours have children of their own.
		tid, err := syscall.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, &ru)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.ECHILD:
			return nil
		case err != nil:
			return err
		}
		if ws.Exited() || ws.Signaled() {
			if tid == t.first {
				t.status, t.usage = ws, ru
				t.once.Do(func() { close(t.done) })
			}
			delete(known, tid)
			delete(fail, tid)
			continue
		}
		if !ws.Stopped() {
			continue
		}
		if _, ok := group[tid]; !ok {
			group[tid] = processOf(tid)
		}
		if killAll {
			_ = unix.Kill(group[tid], unix.SIGKILL)
			continue
		}
		how, signal := unix.PTRACE_SYSCALL, 0
		switch sig := ws.StopSignal(); {
		case !known[tid]:
			// The stop that it begins with: SIGTRAP of the first process's exec,
			// SIGSTOP of what it started.
			known[tid] = true
			if tid == t.first {
				if err := syscall.PtraceSetOptions(tid, options); err != nil {
					return err
				}
			}
		case sig == syscall.SIGTRAP|0x80:
			entry, err := t.entered(tid)
			if err != nil {
				break // gone meanwhile: another thread's exit_group, or a kill
			}
			if entry == nil {
				if e := fail[tid]; e != 0 {
					delete(fail, tid)
					_ = setResult(tid, e)
				}
				break
			}
			t.Calls++
			entry.N, entry.PID = t.Calls, group[tid]
			if _, ok := exe[entry.PID]; !ok {
				exe[entry.PID], _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", entry.PID))
			}
			entry.Exe, entry.After = exe[entry.PID], last[tid]
			last[tid] = entry.Nr
			a := t.Decide(*entry)
			switch {
			case a.Kill:
				t.Killed = true
				killAll = a.All
				_ = unix.Kill(entry.PID, unix.SIGKILL)
				if killAll {
					for other := range known {
						_ = unix.Kill(group[other], unix.SIGKILL)
					}
				}
				continue
			case a.Errno != 0:
				if err := skipCall(tid); err == nil {
					fail[tid] = a.Errno
				}
			}
		case sig == syscall.SIGTRAP:
			// An event: a clone, an exec. An exec ends the other threads and
			// gives the caller the process's number.
			if ws.TrapCause() == unix.PTRACE_EVENT_EXEC {
				group[tid] = tid
				delete(exe, tid)
			}
		default:
			signal = int(sig)
		}
		if err := resume(how, tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
}

func resume(how, tid, signal int) error {
	_, _, e := syscall.Syscall6(syscall.SYS_PTRACE, uintptr(how), uintptr(tid), 0, uintptr(signal), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// processOf is the process of a thread.
func processOf(tid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err == nil {
		var pid int
		for line := range linesOf(b) {
			if n, _ := fmt.Sscanf(line, "Tgid: %d", &pid); n == 1 {
				return pid
			}
		}
	}
	return tid
}

// callInfo is struct ptrace_syscall_info of <linux/ptrace.h>.
type callInfo struct {
	Op   uint8
	_    [3]uint8
	Arch uint32
	IP   uint64
	SP   uint64
	Nr   uint64
	Args [6]uint64
	_    [2]uint64
}

const (
	getSyscallInfo = 0x420e
	atEntry        = 1
)

// entered is the call that a thread is about to make; nil at a call's end.
func (t *Trace) entered(tid int) (*Call, error) {
	var info callInfo
	_, _, e := syscall.Syscall6(syscall.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if e != 0 {
		return nil, e
	}
	if info.Op != atEntry {
		return nil, nil
	}
	c := &Call{Nr: info.Nr, Args: info.Args}
	switch c.Nr {
	case unix.SYS_OPENAT, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_STATX, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT:
		c.Path = text(tid, info.Args[1])
	case unix.SYS_READ, unix.SYS_WRITE, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_FSTAT, unix.SYS_FCHMOD, unix.SYS_FTRUNCATE, unix.SYS_FLOCK, unix.SYS_CLOSE, unix.SYS_GETDENTS64, unix.SYS_FSTATFS:
		c.Path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(info.Args[0])))
	}
	return c, nil
}

// text reads a string of a tracee.
func text(tid int, at uint64) string {
	var buf [256]byte
	n, _ := syscall.PtracePeekData(tid, uintptr(at), buf[:])
	for i, c := range buf[:n] {
		if c == 0 {
			return string(buf[:i])
		}
	}
	return ""
}
