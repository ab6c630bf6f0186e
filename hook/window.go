//go:build linux

package hook

import (
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// A job's own CPU time is that of its job process and of the children that
// this has waited for: the steps. What a step leaves behind is nobody's child
// then, and counts as foreign.

// jobTicks is the CPU time of a job so far, nil if it cannot be read.
func jobTicks(worker int) *uint64 {
	p, err := proc.Stat(worker)
	if err != nil {
		return nil
	}
	n := p.UTime + p.STime + p.CUTime + p.CSTime
	return &n
}

// openWindow reads what is counted when a job begins.
func openWindow(worker int) *lock.Window {
	w := lock.ReadWindow()
	w.OwnTicks = jobTicks(worker)
	return &w
}

// closeWindow reads what is counted now, and returns what judges a record's
// window by it.
func closeWindow(worker int) func(*lock.Record) {
	closed, now := lock.ReadWindow(), jobTicks(worker)
	var own lock.Own
	own.Lost, _ = proc.LosesChildren(worker)
	return func(r *lock.Record) {
		if r.Window == nil {
			return
		}
		own := own
		if began := r.Window.OwnTicks; began != nil && now != nil && *now >= *began {
			used := time.Duration(*now-*began) * time.Second / proc.TicksPerSecond
			own.CPU = &used
		}
		e := lock.Judged(*r.Window, closed, own, lock.Bounds{}, lock.FactsOf(r))
		r.Evidence = &e
	}
}
