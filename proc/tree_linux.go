package proc

import (
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// Ancestors are the parent of a process, the parent's parent and so on. It ends
// at what cannot be read and below pid 0, which is outside our pid namespace. Their
// UID is -1: it costs more than all the rest, and of a dozen ancestors it matters for
// one. Process.RealUID asks for it.
func Ancestors(pid int) []Process {
	return ancestors(pid, func(pid int) (Process, error) {
		s, err := readStat(pid)
		s.UID = -1
		return s.Process, err
	})
}

// Lineage is this process and its Ancestors. It costs no more than these: of our own
// process the uid is known.
func Lineage() []Process {
	var self Process
	as := ancestors(unix.Getpid(), func(pid int) (Process, error) {
		s, err := readStat(pid)
		s.UID = -1
		if pid == unix.Getpid() {
			self = s.Process
		}
		return s.Process, err
	})
	if self.PID == 0 {
		return nil
	}
	self.UID = unix.Getuid()
	return append([]Process{self}, as...)
}

func ancestors(pid int, stat func(pid int) (Process, error)) []Process {
	var as []Process
	child, _ := stat(pid) // what cannot be read has no parent, and began at 0
	for tries := 0; child.PPID != 0; {
		parent, perr := stat(child.PPID)
		// A parent is never younger than its child. If it seems to be, or is not
		// there, it has died since the child was read, its pid may have gone to
		// another, and the child has a new parent: ask the child again.
		if perr != nil || parent.Start > child.Start {
			c, _ := stat(child.PID)
			if tries++; tries > 3 || c.Start != child.Start || c.PPID == child.PPID {
				break
			}
			child = c
			continue
		}
		if parent.PID == pid || slices.ContainsFunc(as, func(p Process) bool { return p.PID == parent.PID }) {
			break
		}
		as = append(as, parent)
		child = parent
	}
	return as
}

// Descendants are the children of a process, their children and so on, nearest
// first and zombies included, by one walk through /proc. What is started during the
// walk may be missed, and what lost its parent and went to another is not below.
func Descendants(pid int) []Process {
	pids, err := pids()
	if err != nil {
		return nil
	}
	all := make([]Process, 0, len(pids))
	for _, p := range pids {
		if s, err := readStat(p); err == nil {
			all = append(all, s.Process)
		}
	}
	ds := below(pid, all)
	// The uid, which costs the most, only of those that matter.
	for i, d := range ds {
		ds[i].UID = d.RealUID()
	}
	return ds
}

// below are the descendants of pid among all, each once: read while pids were
// given away anew, all need not be a tree.
func below(pid int, all []Process) (ds []Process) {
	children := make(map[int][]Process, len(all))
	for _, p := range all {
		children[p.PPID] = append(children[p.PPID], p)
	}
	seen := map[int]bool{pid: true}
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			if !seen[p.PID] {
				seen[p.PID] = true
				queue = append(queue, p.PID)
				ds = append(ds, p)
			}
		}
	}
	return ds
}

// pids lists the processes of /proc in ascending order (proc_pid_readdir in
// fs/proc/base.c walks them so).
func pids() ([]int, error) {
	if !Here().ProcOurs {
		return nil, errForeignProc
	}
	return numbered("/proc")
}

// numbered lists the entries of a directory that are positive numbers.
func numbered(dir string) ([]int, error) {
	fd, err := openAt(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var ns []int
	buf := make([]byte, 16<<10)
	names := make([]string, 0, 512)
	for {
		var n int
		if err := retry(func() (err error) { n, err = unix.Getdents(fd, buf); return }); err != nil {
			return nil, &fs.PathError{Op: "readdir", Path: dir, Err: err}
		}
		if n == 0 {
			return ns, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if v, ok := parseInt([]byte(name)); ok && v > 0 {
				ns = append(ns, v)
			}
		}
	}
}

func gone(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}
