package proc

import (
	"math"
	"strconv"
	"time"
)

// Busy is how many cores each process used on average over the window that
// starts now and that it sleeps through, including what children that it reaped
// meanwhile used in their whole lives (so it errs on the side of busy). One that
// waits for a core at both ends counts as using one: on a loaded machine it gets
// little, and would take more as soon as there is more. One that is gone used 0. One
// that cannot be read is +Inf, so that nobody takes it for idle. A tick is 10 ms.
func Busy(ps []Identity, window time.Duration) []float64 {
	before := make([]sample, len(ps))
	for i, id := range ps {
		before[i] = sampleOf(id)
	}
	start := time.Now()
	time.Sleep(window)
	cores := make([]float64, len(ps))
	for i, id := range ps {
		after := sampleOf(id)
		elapsed := time.Since(start)
		switch {
		case before[i].ok && after.ok:
			cores[i] = coresUsed(before[i].ticks, after.ticks, elapsed)
			if before[i].runnable && after.runnable {
				cores[i] = max(cores[i], 1)
			}
		case Look(id) == Gone:
			cores[i] = 0
		default:
			cores[i] = math.Inf(1)
		}
	}
	return cores
}

type sample struct {
	ticks    uint64
	runnable bool
	ok       bool
}

// sampleOf looks at this process and at no later one with its pid.
func sampleOf(id Identity) sample {
	ticks, ok := ticksOf(id)
	if !ok {
		return sample{}
	}
	return sample{ticks, runnable(id.PID), true}
}

// runnable reports whether a thread of a process runs or waits for a core: state
// R of proc_pid_stat(5) is both.
func runnable(pid int) bool {
	task := "/proc/" + strconv.Itoa(pid) + "/task"
	tids, err := numbered(task)
	if err != nil {
		return false
	}
	for _, tid := range tids {
		b, err := readFile(task+"/"+strconv.Itoa(tid)+"/stat", maxStat)
		if err != nil {
			continue
		}
		if s, err := parseStat(b); err == nil && s.State == 'R' {
			return true
		}
	}
	return false
}

// ticksOf reads the ticks of this process and of no later one with its pid.
func ticksOf(id Identity) (uint64, bool) {
	s, err := readStat(id.PID)
	if err != nil {
		return 0, false
	}
	switch Look(id) {
	case Alive, Running:
		return s.cpu(), true
	case Unknown, Gone:
	}
	return 0, false
}
