//go:build linux

package main

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// used is what the command and all that it started have used, by what the
// kernel says of each child that we take: its own and, in sum, that of all that it
// waited for itself (wait4(2)). Orphans come to us.
type used struct {
	cpu      time.Duration
	switches uint64
	peak     uint64 // bytes of resident memory of the largest process
	lost     bool   // the command ignored SIGCHLD
	whole    bool   // the window is over: nothing is added any more
}

func (u *used) add(ru *unix.Rusage) {
	if u.whole {
		return
	}
	u.cpu += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	u.switches += uint64(ru.Nvcsw) + uint64(ru.Nivcsw)
	u.peak = max(u.peak, uint64(ru.Maxrss)<<10)
}

// own is for the judge.
func (u used) own() lock.Own {
	own := lock.Own{Lost: u.lost}
	if !u.whole {
		return own
	}
	own.CPU, own.ContextSwitches = &u.cpu, &u.switches
	// Until it execs, a child is in our memory, and the kernel keeps the peak of
	// that as the child's (exec_mmap in fs/exec.c). What is not above ours may be ours.
	var ours unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ours) == nil && u.peak > uint64(ours.Maxrss)<<10 {
		own.MemoryPeakBytes = &u.peak
	}
	return own
}

// used is what the family that still runs has used so far, by /proc: in ticks.
func (f family) used() time.Duration {
	below := proc.Descendants(f.self)
	if len(f.foreign) > 0 {
		below = f.withoutForeign(below)
	}
	var ticks uint64
	for _, p := range below {
		ticks += p.UTime + p.STime + p.CUTime + p.CSTime
	}
	return time.Duration(ticks) * (time.Second / proc.TicksPerSecond)
}
