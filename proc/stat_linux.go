package proc

import (
	"errors"
	"io/fs"
	"math"
	"strconv"

	"golang.org/x/sys/unix"
)

const maxStat = 4096 // 52 numbers of at most 20 digits, and a name

// Stat reads /proc/PID/stat and the real uid from /proc/PID/status. (The owner
// of /proc/PID will not do: it is the effective uid, and root for whatever is not
// dumpable: task_dump_owner in fs/proc/base.c.) The uid is -1 where it cannot be read.
// A zombie is read like any other process. The error is ErrGone, wrapped, when
// /proc shows no such process; under hidepid that is also how another user's looks,
// so it is no evidence of death: ask Look for that.
func Stat(pid int) (Process, error) {
	if err := usable(pid); err != nil {
		return Process{}, err
	}
	path := "/proc/" + strconv.Itoa(pid)
	// Through one handle, so that both files speak of the same process.
	dir, err := openAt(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return Process{}, vanished(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(dir)
	b, err := readFileAt(dir, "stat", path+"/stat", maxStat)
	if err != nil {
		return Process{}, vanished(err)
	}
	s, err := parseStat(b)
	if err != nil {
		return Process{}, &fs.PathError{Op: "parse", Path: path + "/stat", Err: err}
	}
	if b, err := readFileAt(dir, "status", path+"/status", 1<<16); err == nil {
		if uid, err := parseStatusUID(b); err == nil {
			s.UID = uid
		}
	}
	return s.Process, nil
}

// RealUID is the real uid of the process, asked now; -1 where it cannot be read
// or the process is gone.
func (p Process) RealUID() int {
	if now, err := Stat(p.PID); err == nil && now.Start == p.Start {
		return now.UID
	}
	return -1
}

// CPUTicks is the CPU that the process has used so far, in ticks, its reaped
// children's included.
func CPUTicks(pid int) (uint64, error) {
	s, err := readStat(pid)
	return s.cpu(), err
}

// LosesChildren reports whether the process ignores SIGCHLD. The kernel reaps the
// children of such a one and counts their CPU towards nobody (exit_notify in
// kernel/exit.c), so what it has used is less than what it and its children have. A
// zombie can be asked until it is waited for.
func LosesChildren(pid int) (bool, error) {
	if err := usable(pid); err != nil {
		return false, err
	}
	path := "/proc/" + strconv.Itoa(pid) + "/status"
	b, err := readFile(path, 1<<16)
	if err != nil {
		return false, vanished(err)
	}
	ignores, err := parseStatusIgnores(b, int(unix.SIGCHLD))
	if err != nil {
		err = &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	return ignores, err
}

// readStat is Stat without the uid, which costs more than all the rest.
func readStat(pid int) (stat, error) {
	if err := usable(pid); err != nil {
		return stat{}, err
	}
	return readStatFile("/proc/" + strconv.Itoa(pid) + "/stat")
}

func readStatFile(path string) (stat, error) {
	var buf [maxStat + 1]byte
	b, err := readRecord(path, buf[:])
	if err != nil {
		return stat{}, vanished(err)
	}
	s, err := parseStat(b)
	if err != nil {
		return stat{}, &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	return s, nil
}

var errForeignProc = errors.New("/proc is not mounted, or shows another pid namespace")

// usable refuses what would read the wrong process.
func usable(pid int) error {
	if pid <= 0 || pid > math.MaxInt32 {
		return unix.EINVAL
	}
	if !Here().ProcOurs {
		return errForeignProc
	}
	return nil
}

// vanished turns the two ways in which /proc says that a process has gone
// (ENOENT on open, ESRCH on read) into ErrGone.
func vanished(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		var p *fs.PathError
		if errors.As(err, &p) {
			return &fs.PathError{Op: p.Op, Path: p.Path, Err: ErrGone}
		}
		return ErrGone
	}
	return err
}

// cpu is what the process has used, its reaped children's included, in ticks.
func (p Process) cpu() uint64 { return p.UTime + p.STime + p.CUTime + p.CSTime }
