package proc

import (
	"bytes"
	"errors"
)

// TicksPerSecond is the unit of every CPU and start time that the kernel
// shows in /proc: USER_HZ, 100 on each architecture that Go runs on, whatever
// the kernel's own HZ (include/asm-generic/param.h). sysconf(_SC_CLK_TCK) says the
// same from the auxiliary vector, but asking it takes cgo.
const TicksPerSecond = 100

var errMalformed = errors.New("unexpected format")

// Process is one line of /proc/PID/stat (proc_pid_stat(5)) and the real uid.
type Process struct {
	PID, PPID int
	// Comm is the name of the main thread, at most 15 bytes that the process
	// chooses itself: any byte but NUL, line feeds and parentheses included.
	Comm  string
	State byte   // R, S, D, T, t, Z, X, I
	Start uint64 // ticks since boot
	UID   int    // real uid as our user namespace names it; -1: unknown
	// Session, process group, controlling terminal (0: none) and that terminal's
	// foreground process group (-1: none).
	Session, PGRP, TTYNR, TPGID int
	// CPU in ticks: of its own, and of the children it has waited for.
	UTime, STime, CUTime, CSTime uint64
}

// stat is a Process and what only this package needs of the line.
type stat struct {
	Process
	flags            uint64 // PF_*, include/linux/sched.h
	threads          int
	envStart, envEnd uint64 // 0 where we may not know
}

// corpse: it has exited, every thread of it. State Z alone only says that the
// leader has.
func (s stat) corpse() bool {
	return (s.State == 'Z' || s.State == 'X') && s.threads <= 1
}

// kernelThread: PF_KTHREAD.
func (s stat) kernelThread() bool { return s.flags&0x00200000 != 0 }

// parseStat reads the content of /proc/PID/stat. The name is whatever stands
// between the first and the last parenthesis: only numbers follow it.
func parseStat(b []byte) (stat, error) {
	s := stat{Process: Process{UID: -1}}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return stat{}, errMalformed
	}
	pid, ok := parseInt(bytes.TrimSuffix(b[:open], []byte(" ")))
	if !ok {
		return stat{}, errMalformed
	}
	s.PID = pid
	s.Comm = string(b[open+1 : end])

	rest := bytes.TrimSuffix(b[end+1:], []byte("\n"))
	if len(rest) < 2 || rest[0] != ' ' {
		return stat{}, errMalformed
	}
	rest = rest[1:]
	n := 3 // fields are numbered as in the manual page
	for more := true; more; n++ {
		var f []byte
		f, rest, more = bytes.Cut(rest, []byte(" "))
		ok := true
		switch n {
		case 3:
			ok = len(f) == 1 && (f[0]|0x20 >= 'a' && f[0]|0x20 <= 'z')
			if ok {
				s.State = f[0]
			}
		case 4:
			s.PPID, ok = parseInt(f)
		case 5:
			s.PGRP, ok = parseInt(f)
		case 6:
			s.Session, ok = parseInt(f)
		case 7:
			s.TTYNR, ok = parseInt(f)
		case 8:
			s.TPGID, ok = parseInt(f)
		case 9:
			s.flags, ok = parseUint(f)
		case 14:
			s.UTime, ok = parseUint(f)
		case 15:
			s.STime, ok = parseUint(f)
		case 16:
			s.CUTime, ok = parseUint(f)
		case 17:
			s.CSTime, ok = parseUint(f)
		case 20:
			s.threads, ok = parseInt(f)
		case 22:
			s.Start, ok = parseUint(f)
		case 50:
			s.envStart, ok = parseUint(f)
		case 51:
			s.envEnd, ok = parseUint(f)
		}
		if !ok {
			return stat{}, errMalformed
		}
	}
	if n <= 22 {
		return stat{}, errMalformed
	}
	return s, nil
}

// parseUint reads decimal digits and nothing else.
func parseUint(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	var v uint64
	for _, c := range b {
		d := uint64(c - '0')
		if c < '0' || c > '9' || v > (1<<64-1-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, true
}

// parseInt reads a number of C's int.
func parseInt(b []byte) (int, bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	v, ok := parseUint(b)
	if !ok || v > 1<<31-1 {
		return 0, false
	}
	if neg {
		return -int(v), true
	}
	return int(v), true
}
