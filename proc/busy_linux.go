package proc

import (
	"math"
	"time"
)

// Busy is how many cores each process used on average over the window that
// starts now and that it sleeps through, including what children that it reaped
// meanwhile used in their whole lives (so it errs on the side of busy). One that is
// gone used 0. One that cannot be read is +Inf, so that nobody takes it for idle.
// A tick is 10 ms.
func Busy(ps []Identity, window time.Duration) []float64 {
	before := make([]uint64, len(ps))
	readable := make([]bool, len(ps))
	for i, id := range ps {
		before[i], readable[i] = ticksOf(id)
	}
	start := time.Now()
	time.Sleep(window)
	cores := make([]float64, len(ps))
	for i, id := range ps {
		after, ok := ticksOf(id)
		elapsed := time.Since(start)
		switch {
		case ok && readable[i]:
			cores[i] = coresUsed(before[i], after, elapsed)
		case Look(id) == Gone:
			cores[i] = 0
		default:
			cores[i] = math.Inf(1)
		}
	}
	return cores
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
