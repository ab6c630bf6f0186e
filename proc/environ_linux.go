package proc

import (
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxEnviron is more than execve(2) takes (6 MiB of arguments and environment,
// fs/exec.c), and a bound on a process that moved its environment by prctl(2).
const maxEnviron = 8 << 20

// Carrying finds the processes whose environment, as it was at their exec,
// satisfies match; without ourselves and our ancestors. match must not keep its
// argument. unreadable counts the processes whose environment we may not read or that
// we cannot see at all (hidepid; a /proc of another pid namespace counts as one).
// Kernel threads and zombies have none and do not count.
//
// It is one walk in the order of pids while processes come and go: a child
// that is started meanwhile and gets a lower number is missed, so a caller that must be
// sure looks again. Reading waits for the other process's memory, which its owner
// can stall: never call this with a lock that others need.
func Carrying(match func(environ []byte) bool) (found []Process, unreadable int) {
	pids, err := pids()
	if err != nil {
		return nil, 1
	}
	if !slices.Contains(pids, 1) {
		unreadable++ // every namespace has a 1: we are not shown what others run
	}
	self := unix.Getpid()
	skip := []int{self}
	for _, p := range Ancestors(self) {
		skip = append(skip, p.PID)
	}
	var buf []byte
	for _, pid := range pids {
		if slices.Contains(skip, pid) {
			continue
		}
		var ok bool
		buf, ok = environ(pid, buf)
		if !ok {
			unreadable++
			continue
		}
		if len(buf) > 0 && match(buf) {
			if p, err := Stat(pid); err == nil {
				found = append(found, p)
			}
		}
	}
	return found, unreadable
}

// environ reads a process's environment into buf. It is empty for one that has
// none or has gone; ok is false if there may be one that we cannot read.
func environ(pid int, buf []byte) (_ []byte, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	return environOf(buf,
		func(buf []byte) ([]byte, error) { return readEnviron(dir+"/environ", buf) },
		func() (stat, error) { return readStat(pid) },
		func(buf []byte) ([]byte, bool) { return threadEnviron(dir+"/task", buf) })
}

func environOf(buf []byte, read func([]byte) ([]byte, error), look func() (stat, error), ofThreads func([]byte) ([]byte, bool)) (_ []byte, ok bool) {
	for try := 0; ; try++ {
		var err error
		if buf, err = read(buf); len(buf) > 0 {
			return buf, true
		}
		s, serr := look() // whose zero value is of no kind
		switch {
		case gone(serr), s.kernelThread(), s.corpse():
			return buf, true
		case s.State == 'Z':
			return ofThreads(buf) // the leader has left its threads
		case err != nil && !gone(err):
			return buf, false
		case s.envEnd != 0 && s.envStart == s.envEnd:
			return buf, true
		case try == 20:
			return buf, false
		}
		// Within execve: the new memory is there, its environment is not yet.
		time.Sleep(time.Millisecond)
	}
}

// threadEnviron reads the environment through any thread that still has memory.
// Those that have none belong to root and may not be read (task_dump_owner in
// fs/proc/base.c), which says nothing about the others.
func threadEnviron(dir string, buf []byte) (_ []byte, ok bool) {
	tids, err := numbered(dir)
	if err != nil {
		return buf[:0], gone(err)
	}
	ok = true
	for _, tid := range tids {
		buf, err = readEnviron(dir+"/"+strconv.Itoa(tid)+"/environ", buf)
		if len(buf) > 0 {
			return buf, true
		}
		ok = ok && (err == nil || gone(err))
	}
	return buf[:0], ok
}

func readEnviron(path string, buf []byte) ([]byte, error) {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return buf[:0], err
	}
	defer unix.Close(fd)
	if cap(buf) == 0 {
		buf = make([]byte, 0, 16<<10)
	}
	if buf, err = readAll(fd, buf, maxEnviron); err != nil {
		return buf[:0], err // half of it might not have what is looked for
	}
	return buf, nil
}
