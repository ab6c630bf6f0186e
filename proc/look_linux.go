package proc

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Look says whether the process that was recorded as id lives. It is the one
// predicate of the whole project: see judge for the rows it decides by.
//
// On a kernel with pidfs it costs pidfd_open, poll, fstat and close, and needs
// no /proc, so it works across users and under hidepid.
func Look(id Identity) Liveness {
	fd, l := Open(id)
	if fd >= 0 {
		unix.Close(fd)
	}
	return l
}

// Open is Look, and hands back the pidfd it looked through (close-on-exec, the
// caller closes it) for poll(2) if there is one and l is Alive or Running; else
// -1. The pidfd turns readable when the last thread of the process has exited.
// For Running it is that of whichever process has the pid now.
func Open(id Identity) (pidfd int, l Liveness) {
	pidfd, l, _ = look(id, Here(), linux)
	return pidfd, l
}

// Self is the identity of this process. What cannot be read is zero.
func Self() Identity {
	id, _ := Identify(unix.Getpid())
	return id
}

// Identify is the identity of the process that has this pid now, in our pid
// namespace. What cannot be read is zero. The error is ErrGone when there is no
// such process or it is a zombie, and EINVAL for what is no pid.
func Identify(pid int) (Identity, error) {
	return identify(pid, Here(), linux)
}

// Identify is the identity of this process. The error is ErrGone when it has
// ended, even if its pid has gone to another since. A start time that cannot be
// read now proves neither, and stays zero.
func (p Process) Identify() (Identity, error) {
	return p.identify(Here(), linux)
}

func (p Process) identify(here Vantage, k kernel) (Identity, error) {
	id, err := identify(p.PID, here, k)
	if id.Start != 0 && id.Start != p.Start {
		return Identity{}, ErrGone
	}
	return id, err
}

func identify(pid int, here Vantage, k kernel) (Identity, error) {
	id := Identity{PID: pid, PIDNS: here.PIDNS, BootID: here.BootID, TimeNS: here.TimeNS}
	// Nothing that could prove it alive is recorded yet, so all is asked.
	fd, l, e := look(id, here, k)
	if fd >= 0 {
		k.close(fd)
	}
	switch l {
	case Gone:
		return Identity{}, ErrGone
	case Unknown:
		return Identity{}, unix.EINVAL
	case Running, Alive:
	}
	id.PIDFSIno, id.Start = e.ino, e.start
	return id, nil
}

// kernel is what look asks. It is a seam for tests, which only Go code of this
// package can reach: no flag and no variable leads here.
type kernel struct {
	pidfdOpen func(pid int) (fd int, err error)
	exited    func(pidfd int) answer
	inode     func(pidfd int) uint64
	exists    func(pid int) answer
	stat      func(pid int) (stat, error)
	close     func(fd int)
}

var linux = kernel{pidfdOpen, exited, pidfsInode, exists, readStat, func(fd int) { unix.Close(fd) }}

// look gathers evidence in the order of its price and stops as soon as judge is
// sure.
func look(id Identity, here Vantage, k kernel) (pidfd int, l Liveness, e evidence) {
	fd := -1
	steps := [...]func(){
		func() {}, // what the record and our vantage settle between them
		func() {
			opened, err := k.pidfdOpen(id.PID)
			switch err {
			case nil:
				fd, e.pidfd = opened, had
				e.exited = k.exited(fd)
			case unix.ESRCH, unix.ENOENT:
				// ENOENT: a thread's id, so no process has it (Linux ≥ 6.15;
				// before that EINVAL, left to the rows without a pidfd).
				e.pidfd = noProcess
			default:
				e.pidfd = refused
			}
		},
		func() {
			if e.pidfd == had {
				e.ino = k.inode(fd)
			} else {
				e.exists = k.exists(id.PID)
			}
		},
		func() {
			// Refused where /proc is not of our pid namespace.
			if s, err := k.stat(id.PID); err == nil {
				e.start = s.Start
				e.corpse = s.corpse()
			}
			if e.pidfd == had {
				// Still running after its stat was read, so the stat was its
				// own and not that of the next process with its pid.
				e.exited = k.exited(fd)
			}
		},
	}
	for _, step := range steps {
		step()
		l = judge(id, here, e)
		if l != Running {
			break
		}
	}
	if fd >= 0 && l == Gone {
		k.close(fd)
		fd = -1
	}
	return fd, l, e
}

// pidfdOpen: the descriptor is close-on-exec by itself (pidfd_open(2)).
func pidfdOpen(pid int) (int, error) {
	for {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// exited says whether every thread of the process has exited (pidfd_poll in
// kernel/fork.c, since 6.9 in fs/pidfs.c).
func exited(pidfd int) answer {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil, fds[0].Revents&unix.POLLNVAL != 0:
			return unasked
		case fds[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0:
			return yes
		}
		return no
	}
}

// onPidfs caches whether this kernel's pidfds live on pidfs.
var onPidfs atomic.Uint32 // answer

// pidfsInode is the inode number of a pidfd, or 0 where that is no identity:
// before pidfs (Linux 6.9) all pidfds share one anonymous inode.
func pidfsInode(pidfd int) uint64 {
	if answer(onPidfs.Load()) == unasked {
		var fs unix.Statfs_t
		if retry(func() error { return unix.Fstatfs(pidfd, &fs) }) != nil {
			return 0
		}
		a := no
		if uint32(fs.Type) == unix.PID_FS_MAGIC {
			a = yes
		}
		onPidfs.Store(uint32(a))
	}
	if answer(onPidfs.Load()) != yes {
		return 0
	}
	var st unix.Stat_t
	if retry(func() error { return unix.Fstat(pidfd, &st) }) != nil {
		return 0
	}
	return st.Ino
}

// exists asks by kill(2) with signal 0, which sends nothing. EPERM is a process
// too. It cannot tell a zombie.
func exists(pid int) answer {
	switch unix.Kill(pid, 0) {
	case nil, unix.EPERM:
		return yes
	case unix.ESRCH:
		return no
	}
	return unasked
}

func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
