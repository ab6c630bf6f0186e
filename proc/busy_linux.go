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
	return busyWhile(ps, func() { time.Sleep(window) })
}

// busyWhile is Busy in the time that something takes.
func busyWhile(ps []Identity, do func()) []float64 {
	before := make([]sample, len(ps))
	for i, id := range ps {
		before[i] = sampleOf(id, readStat)
	}
	start := time.Now()
	do()
	cores := make([]float64, len(ps))
	for i, id := range ps {
		after := sampleOf(id, readStat)
		cores[i] = coresBetween(before[i], after, time.Since(start))
	}
	return cores
}

// A sample is one process at one end of a window.
type sample struct {
	ok       bool // read, and of this process; else only life counts
	life     Liveness
	ticks    uint64
	runnable bool
}

func coresBetween(before, after sample, elapsed time.Duration) float64 {
	switch {
	case before.ok && after.ok:
		cores := coresUsed(before.ticks, after.ticks, elapsed)
		if before.runnable && after.runnable {
			cores = max(cores, 1)
		}
		return cores
	case after.life == Gone:
		return 0
	}
	return math.Inf(1)
}

// sampleOf looks at this process and at no later one with its pid: it lives after
// its stat was read.
func sampleOf(id Identity, stat func(pid int) (stat, error)) sample {
	s, err := stat(id.PID)
	life := Look(id)
	if err != nil || life == Gone || life == Unknown {
		return sample{life: life}
	}
	return sample{true, life, s.cpu(), runnable(id.PID)}
}

// runnable reports whether a thread of a process runs or waits for a core: state
// R of proc_pid_stat(5) is both.
func runnable(pid int) bool {
	task := "/proc/" + strconv.Itoa(pid) + "/task"
	tids, _ := numbered(task)
	for _, tid := range tids {
		// What cannot be read is in no state.
		if s, _ := readStatFile(task + "/" + strconv.Itoa(tid) + "/stat"); s.State == 'R' {
			return true
		}
	}
	return false
}
