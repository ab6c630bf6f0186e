//go:build linux

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/org/hostlock-action/hook"
	"github.com/org/hostlock-action/lock"
)

// newProgress returns what tells somebody who waits, on stderr, what for: at
// once, and again when that changes. A look that finds nothing new prints
// nothing, so there is no timer in it. At a terminal it is one line, updated in
// place: it gives times of day, which stay true while nothing is redrawn.
func newProgress() func(lock.Event) {
	p := new(progress)
	return p.tell
}

type progress struct {
	told  bool
	front [2]uint64 // numbers of the holder and of whoever is nearest in the way
	state lock.Standing
	place int
}

func (p *progress) tell(e lock.Event) {
	switch {
	case len(e.Passed) > 0:
		for _, t := range e.Passed {
			say("%s", passed(t, e.Evicted))
		}
	case e.Text != "":
		say("%s", e.Text)
	case e.Blocker != nil:
		p.waiting(e)
	}
}

func (p *progress) waiting(e lock.Event) {
	holder := e.Holder
	if holder == nil {
		holder = e.Blocker
	}
	front := [2]uint64{holder.Seq, e.Blocker.Seq}
	switch {
	case p.told && p.front == front && p.state == holder.Standing && p.place == e.Place:
		return
	case screen.draw(waitingLine(holder, e)):
	case p.told && p.front[0] == holder.Seq && p.state == holder.Standing:
		say("still waiting for %s; now %s", who(holder), place(e))
	default:
		for _, line := range waitingFor(holder) {
			say("%s", line)
		}
		if p := place(e); p != "" {
			say("  we are %s", p)
		}
		if !e.Deadline.IsZero() {
			say("  the limit is %s (in %s): then exit 3, and nothing is held", moment(e.Deadline), span(time.Until(e.Deadline)))
			if _, ok := hook.CurrentJob(os.Getenv); ok {
				say("  the wait counts toward the job's timeout-minutes")
			}
		}
	}
	p.told, p.front, p.state, p.place = true, front, holder.Standing, e.Place
}

// waitingLine is the wait on one line, what matters most first: a narrow
// terminal cuts it off.
func waitingLine(holder *lock.Ticket, e lock.Event) string {
	s := "waiting"
	if p := place(e); p != "" {
		s += ", " + p
	}
	if !e.Deadline.IsZero() {
		s += ", until " + moment(e.Deadline)
	}
	if holder.Standing == lock.Waits {
		s += fmt.Sprintf(": %s waits as well, for: %s", who(holder), purpose(holder))
	} else {
		s += fmt.Sprintf(": %s %s %s since %s, for: %s", who(holder), verb(holder), machine(), sinceMoment(holder), purpose(holder))
	}
	if url := link(holder); url != "" {
		s += ", " + url
	}
	return s
}

// waitingFor says who is in the way, what for, and until when.
func waitingFor(t *lock.Ticket) []string {
	var lines []string
	if t.Standing == lock.Waits {
		lines = append(lines, fmt.Sprintf("waiting on %s behind %s, who waits as well: %s", machine(), who(t), purpose(t)))
	} else {
		lines = append(lines, fmt.Sprintf("waiting: %s %s %s %s: %s", who(t), verb(t), machine(), since(t), purpose(t)))
	}
	if url := link(t); url != "" {
		lines = append(lines, "  its run: "+url)
	}
	if t.Standing != lock.Waits {
		lines = append(lines, "  "+limit(t))
	}
	return lines
}

// place is our place in the queue; empty for somebody who is not in it.
func place(e lock.Event) string {
	if e.Place == 0 {
		return ""
	}
	s := ordinal(e.Place) + " in the queue"
	if b := e.Blocker; b.Standing == lock.Waits {
		s += ", behind " + who(b)
	}
	return s
}

// passed says how a hold was taken over. One from a live holder warns, and is
// never worded as a reap: both sets of numbers are in doubt.
func passed(t *lock.Ticket, evicted bool) string {
	if evicted {
		return fmt.Sprintf("WARNING: took the host over from a live holder, %s, which has held it %s; %s. It may still be running: both sets of numbers are suspect", who(t), since(t), limit(t))
	}
	switch t.Kind {
	case lock.Unverifiable:
		return fmt.Sprintf("took the host over from %s, who held it %s: nothing could vouch for that hold for 5 min (unverifiable)", who(t), since(t))
	case lock.TTLExpired:
		return fmt.Sprintf("WARNING: took the host over from %s, which is past its ttl: both sets of numbers are suspect", who(t))
	case lock.StalePID, lock.NoTakeover:
	}
	return fmt.Sprintf("reaped the lock of %s, which is dead and never released: held %s for %s", who(t), since(t), purpose(t))
}
