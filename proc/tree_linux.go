package proc

import (
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// Ancestors are the parent of a process, the parent's parent and so on. It ends
// at what cannot be read and below pid 0, which is outside our pid namespace.
func Ancestors(pid int) []Process {
	var as []Process
	child, err := Stat(pid)
	for err == nil && child.PPID != 0 && len(as) < 1<<12 {
		var parent Process
		// A parent is never younger than its child. If it seems to be, it has died
		// in between and its pid went to another, and the child has a new parent.
		for range 3 {
			if parent, err = Stat(child.PPID); err == nil && parent.Start <= child.Start {
				break
			}
			ppid := child.PPID
			if c, cerr := Stat(child.PID); cerr != nil || c.Start != child.Start || c.PPID == ppid {
				return as
			} else {
				child = c
			}
			err = ErrGone
		}
		if err != nil {
			break
		}
		if parent.PID == pid || slices.ContainsFunc(as, func(p Process) bool { return p.PID == parent.PID }) {
			break
		}
		as = append(as, parent)
		child = parent
	}
	return as
}

// Descendants are the children of a process, their children and so on, zombies
// included, in the order of one walk through /proc. What is started during the
// walk may be missed, and so is what lost its parent and went to another.
func Descendants(pid int) []Process {
	pids, err := pids()
	if err != nil {
		return nil
	}
	children := map[int][]stat{}
	for _, p := range pids {
		if s, err := readStat(p); err == nil {
			children[s.PPID] = append(children[s.PPID], s)
		}
	}
	var ds []Process
	seen := map[int]bool{pid: true}
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, s := range children[queue[0]] {
			if seen[s.PID] {
				continue
			}
			seen[s.PID] = true
			queue = append(queue, s.PID)
			// The uid of those that matter only.
			if p, err := Stat(s.PID); err == nil && p.Start == s.Start {
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
