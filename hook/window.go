//go:build linux

package hook

import (
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// A job's own CPU time is that of its job process, of the children that this has
// waited for (the steps) and of what still runs below it. What a step leaves
// behind is nobody's child then, and counts as foreign; so does a container, which
// another daemon started.

// jobTicks is the CPU time of a job so far, nil if it cannot be read.
func jobTicks(worker int) *uint64 {
	p, err := proc.Stat(worker)
	if err != nil {
		return nil
	}
	n := p.UTime + p.STime + p.CUTime + p.CSTime
	for _, d := range proc.Descendants(worker) {
		n += d.UTime + d.STime + d.CUTime + d.CSTime
	}
	return &n
}

// openWindow reads what is counted when a hold for a job begins. A process that
// runs several jobs at once does not show what one of them used.
func openWindow(anchor lock.Party) *lock.Window {
	w := lock.ReadWindow()
	if anchor.Comm == workerComm {
		w.OwnTicks = jobTicks(anchor.PID)
	}
	return &w
}

// closeWindow reads what is counted now, and returns what judges a record's
// window by it.
func closeWindow(anchor int, b lock.Bounds) func(*lock.Record) {
	closed, now := lock.ReadWindow(), jobTicks(anchor)
	var own lock.Own
	own.Lost, _ = proc.LosesChildren(anchor)
	return func(r *lock.Record) {
		if r.Window == nil {
			return
		}
		own := own
		if began := r.Window.OwnTicks; began != nil && now != nil && *now >= *began {
			used := time.Duration(*now-*began) * time.Second / proc.TicksPerSecond
			own.CPU = &used
		}
		e := lock.Judged(*r.Window, closed, own, b, lock.FactsOf(r))
		r.Evidence = &e
	}
}
