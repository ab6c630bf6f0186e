//go:build linux

package lock

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

const guardFile = "guard"

// guardCrowd is how many times as long a guard is waited for that goes from hand to
// hand: a thousand who wake at once take it one after the other.
const guardCrowd = 12

// guardPatience bounds the wait for a guard that is held for microseconds at a
// time: past it whoever has it is stopped, or means harm. A variable for tests only.
var guardPatience = 10 * time.Second

var errCrowd = errors.New("a crowd is at the guard")

// A session is a hold of the guard, under which the set of tickets changes.
// While it lasts: no output, no fork, no look into another process's memory
// (environ, cmdline). A session that is stopped stops the host.
type session struct {
	d       *Dir
	fd      int
	counter uint64
	damaged bool
}

// enter takes the guard.
func (d *Dir) enter() (*session, error) {
	deadline := time.Now().Add(guardPatience)
	for {
		fd, _, err := d.openFile(guardFile, unix.O_RDWR)
		if errors.Is(err, unix.ENOENT) {
			if err := d.createGuard(); err != nil {
				return nil, &UnusableError{Path: d.Path, Problem: "its guard file cannot be created", Err: err}
			}
			continue
		}
		if errors.Is(err, errNotRegular) {
			return nil, &UnusableError{Path: d.Path, Problem: "its guard file is none: remove it when no process uses the directory", Err: err}
		}
		if err != nil {
			return nil, &UnusableError{Path: d.Path, Problem: "its guard file cannot be opened", Err: err}
		}
		if err := flockWithin(fd, guardPatience, func() int { return guardOwner(fd) }); err != nil {
			who := guardHolder(fd)
			unix.Close(fd)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, &UnusableError{Path: d.Path, Problem: fmt.Sprintf("its guard has been held for %s by %s, which may be stopped: nothing was taken", guardPatience, who)}
			}
			if errors.Is(err, errCrowd) {
				return nil, &UnusableError{Path: d.Path, Problem: fmt.Sprintf("its guard has gone from hand to hand for %s and not to us, just now by %s: nothing was taken", guardCrowd*guardPatience, who)}
			}
			return nil, &UnusableError{Path: d.Path, Problem: "its guard cannot be locked", Err: err}
		}
		s := &session{d: d, fd: fd}
		if !s.current() {
			// Deleted or replaced while we waited: locking it excludes nobody.
			unix.Close(fd)
			var st unix.Stat_t
			if err := unix.Fstatat(d.fd, guardFile, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
				return nil, &UnusableError{Path: d.Path, Problem: "its guard file cannot be looked at", Err: err}
			}
			if time.Now().After(deadline) {
				return nil, &UnusableError{Path: d.Path, Problem: "its guard file is being replaced again and again"}
			}
			continue
		}
		if err := s.read(); err != nil {
			unix.Close(fd)
			return nil, err
		}
		return s, nil
	}
}

// leave gives the guard back.
func (s *session) leave() { unix.Close(s.fd) }

// current reports whether the guard's path still names the file that is
// locked, and nothing else does.
func (s *session) current() bool {
	var mine, named unix.Stat_t
	return unix.Fstat(s.fd, &mine) == nil &&
		unix.Fstatat(s.d.fd, guardFile, &named, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		mine.Dev == named.Dev &&
		mine.Ino == named.Ino &&
		mine.Nlink == 1
}

// The guard's content is one line: the format of the directory and the last
// number given. What it says is a hint: next also heeds the tickets that exist.
const guardLine = "hostlock %d %020d\n"

func (s *session) read() error {
	b, err := readUpTo(s.fd, maxNote)
	if err != nil {
		s.damaged = true
		return nil
	}
	var format int
	s.counter, format, s.damaged = parseGuard(b)
	return s.d.known(format)
}

func (d *Dir) known(format int) error {
	if format > Format {
		return &UnusableError{Path: d.Path, Problem: fmt.Sprintf("it has format %d and this hostlock knows %d: install the newer version", format, Format)}
	}
	return nil
}

// knownFormat is the question for who only looks, without the guard. A guard
// that cannot be read is for who takes it to complain of.
func (d *Dir) knownFormat() error {
	b, _, err := d.readFile(guardFile, maxNote)
	if err != nil {
		return nil
	}
	_, format, _ := parseGuard(b)
	return d.known(format)
}

// parseGuard reads the guard's line. A format that is newer than ours is told
// whatever follows it; of anything else that is damaged nothing is believed.
func parseGuard(b []byte) (counter uint64, format int, damaged bool) {
	fields := strings.Fields(string(b))
	if len(fields) < 2 || fields[0] != "hostlock" {
		return 0, 0, true
	}
	format, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0, 0, true
	}
	if len(fields) == 3 {
		counter, err = strconv.ParseUint(fields[2], 10, 64)
	}
	if err != nil || len(fields) != 3 || counter > maxSeq {
		return 0, format, true
	}
	return counter, format, false
}

// next gives the next number: above the counter and above every ticket there
// is, so that a lost or damaged guard cannot begin the count again.
func (s *session) next(entries []entry) (uint64, error) {
	seq := s.counter
	if n := len(entries); n > 0 {
		seq = max(seq, entries[n-1].seq)
	}
	seq++
	if seq > maxSeq {
		return 0, &UnusableError{Path: s.d.Path, Problem: "its numbers are used up: remove it when nobody holds the host"}
	}
	if s.damaged {
		if err := unix.Ftruncate(s.fd, 0); err != nil {
			return 0, &UnusableError{Path: s.d.Path, Problem: "its guard cannot be written", Err: err}
		}
	}
	if err := writeAt(s.fd, fmt.Appendf(nil, guardLine, Format, seq), 0); err != nil {
		return 0, &UnusableError{Path: s.d.Path, Problem: "its guard cannot be written", Err: err}
	}
	s.counter = seq
	return seq, nil
}

// createGuard makes an empty guard, unless somebody else does. Of all files it
// alone is made without the guard, so that whoever has one by now may take our
// temporary file for a crash's.
func (d *Dir) createGuard() error {
	tmp := tmpPrefix + "guard-" + randomHex(8)
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Fchmod(fd, 0o666)
	if err == nil {
		err = writeAt(fd, fmt.Appendf(nil, guardLine, Format, 0), 0)
	}
	if err == nil {
		if err = renameNew(d.fd, tmp, guardFile); errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
			_ = unix.Unlinkat(d.fd, tmp, 0)
			return nil // there is another now
		}
	}
	if err != nil {
		_ = unix.Unlinkat(d.fd, tmp, 0)
	}
	return err
}

// flockWithin takes an exclusive flock, and gives up when the same owner has had it for
// that long, or it has gone from hand to hand for much longer. flock(2) knows no
// time-out; the free case, which is nearly every case, needs no second thread.
func flockWithin(fd int, patience time.Duration, owner func() int) error {
	_, err := retry(func() (int, error) { return 0, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	// The waiting thread has a descriptor of its own, for the same open file:
	// if it gets the lock after we gave up, closing that is all it has to do.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := retry(func() (int, error) { return 0, unix.Flock(own, unix.LOCK_EX) })
		unix.Close(own)
		done <- err
	}()
	// Counted in looks and not by the clock: who was itself kept from running for so long
	// has seen nothing of what others did meanwhile.
	const looks = 4
	since, last := 0, -1 // whoever has it at the first look has had it all along
	for n := 1; ; n++ {
		select {
		case err := <-done:
			return err
		case <-time.After(patience / looks):
		}
		if who := owner(); who != last {
			if last != -1 {
				since = n
			}
			last = who
		}
		switch {
		case n-since >= looks:
			return os.ErrDeadlineExceeded
		case n >= guardCrowd*looks:
			return errCrowd
		}
	}
}

// guardOwner is the pid of who has a file flock'd, from /proc/locks (proc_locks(5)); 0
// if it cannot be seen from here.
func guardOwner(fd int) int {
	var st unix.Stat_t
	_ = unix.Fstat(fd, &st)
	table, _ := os.ReadFile("/proc/locks")
	return flockOwner(string(table), st.Ino)
}

// guardHolder names the process that has a file flock'd, for the message that it is
// stuck.
func guardHolder(fd int) string {
	if pid := guardOwner(fd); pid > 0 {
		if p, err := proc.Stat(pid); err == nil {
			return fmt.Sprintf("pid %d (%s)", pid, Flatten(p.Comm, 64))
		}
		return fmt.Sprintf("pid %d", pid)
	}
	return "a process that cannot be seen from here"
}

// flockOwner finds the pid that holds a FLOCK on an inode. Lines with "->" are
// of those who wait.
func flockOwner(table string, ino uint64) int {
	for line := range strings.SplitSeq(table, "\n") {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		_, inode, _ := strings.Cut(f[5], ":")
		if _, inode, _ = strings.Cut(inode, ":"); inode != strconv.FormatUint(ino, 10) {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil {
			return pid
		}
	}
	return 0
}
