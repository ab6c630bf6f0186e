package lock

import (
	"time"

	"github.com/org/hostlock-action/proc"
)

const (
	// grace is how long a holder that nothing can vouch for counts as alive.
	grace = 300 * time.Second
	// deadlineSlack is how long past its own deadline a waiting ticket still
	// stands: its process needs a moment to leave, and a stopped one never does.
	deadlineSlack = 5 * time.Second
)

// Standing is what a ticket amounts to for everybody else, by their own look.
type Standing uint8

const (
	Left   Standing = iota // nothing is there any more: released, timed out, or died while it waited
	Waits                  // alive in the queue
	Holds                  // alive, and the host is its
	Opaque                 // its record cannot be read: counts as an exclusive hold
	Lapsed                 // holds, alive, past its own ttl
	Dead                   // held the host and died; nobody has acknowledged that yet
	Over                   // dead or lapsed, and marked so by whoever took over
)

func (s Standing) String() string {
	return textOf([]string{"left", "waits", "holds", "opaque", "lapsed", "dead", "over"}, uint8(s))
}

// kernelLock is the state of the flock on a ticket's .lock file.
type kernelLock uint8

const (
	lockUnasked kernelLock = iota // or it could not be probed
	lockHeld
	lockFree
)

// evidence is everything that is known of a ticket when it is judged.
type evidence struct {
	record     *Record // nil: absent, or unreadable
	unreadable bool
	lockAbsent bool // there is no .lock file
	anchor     proc.Liveness
	body       proc.Liveness
	kernel     kernelLock
	marked     bool          // somebody has taken over, or says so
	heldFor    time.Duration // since the record says it held
	overdue    time.Duration // past the deadline of its wait; negative: not yet
	unseen     time.Duration // how long nothing has vouched for it, as far as anybody noted
}

// verdict is what follows from evidence.
type verdict struct {
	standing Standing
	kind     Takeover      // what passing it would be
	unseen   bool          // nothing vouches for it: note since when
	in       time.Duration // the clock alone may change the verdict after this; 0: it cannot
}

// judge is the evidence table of the protocol. The anchor decides; the kernel
// lock is the second witness, heard when the anchor cannot be seen.
//
//	held      anchor Alive                                     holds, or lapsed past its ttl
//	          anchor Running                                   the same; past max_hold too
//	          anchor Gone                                      dead: stale_pid
//	          anchor Unknown, kernel lock held                 holds, or lapsed
//	          anchor Unknown, lock free, a run's own ticket    dead: stale_pid
//	          anchor Unknown, lock free or not to be probed    holds for the grace, then dead: unverifiable
//	waiting   anchor or body Gone, or long past its deadline   left
//	          body Unknown or Running, kernel lock free        left
//	          else                                             waits
//	record absent, kernel lock free                            left
//	record absent or unreadable, kernel lock held              opaque
//	record unreadable                                          opaque for the grace, then dead: unverifiable
//	.lock absent                                               left, unless it is a run whose process is proven alive
func judge(e evidence) verdict {
	r := e.record
	if e.lockAbsent {
		// A release removes the .lock first, so this is a release that was
		// killed half way, or somebody who deletes files by hand. A run that
		// is alive has not released.
		if r == nil || r.Phase != Held || !r.Embodied() || e.anchor != proc.Alive {
			return verdict{standing: Left}
		}
	}
	if r == nil {
		switch {
		case e.kernel == lockHeld:
			return verdict{standing: Opaque}
		case !e.unreadable && e.kernel == lockFree:
			return verdict{standing: Left}
		default:
			return unvouched(e, Opaque)
		}
	}
	if r.Phase == Waiting {
		switch {
		case e.anchor == proc.Gone, e.body == proc.Gone, e.overdue > deadlineSlack:
			return verdict{standing: Left}
		case e.body != proc.Alive && e.kernel == lockFree:
			return verdict{standing: Left}
		}
		v := verdict{standing: Waits}
		if r.Deadline != nil {
			v.in = deadlineSlack - e.overdue + time.Millisecond
		}
		return v
	}
	switch e.anchor {
	case proc.Gone:
		return ended(e, StalePID)
	case proc.Unknown:
		switch {
		case e.kernel == lockHeld:
			return living(e, r.TTL())
		case e.kernel == lockFree && r.Embodied():
			return ended(e, StalePID)
		default:
			return unvouched(e, Holds)
		}
	case proc.Running:
		limit := r.maxHold()
		if ttl := r.TTL(); ttl > 0 && ttl < limit {
			limit = ttl
		}
		return living(e, limit)
	case proc.Alive:
		return living(e, r.TTL())
	}
	panic("unreachable: a Liveness has four values")
}

// living judges a holder that is alive or counts as alive; limit 0 is none.
func living(e evidence, limit time.Duration) verdict {
	if limit <= 0 {
		return verdict{standing: Holds}
	}
	if left := limit - e.heldFor; left > 0 {
		return verdict{standing: Holds, in: left}
	}
	if e.marked {
		return verdict{standing: Over, kind: TTLExpired}
	}
	return verdict{standing: Lapsed, kind: TTLExpired}
}

// ended judges a holder that is dead. A mark alone frees nothing: it is heard
// only here, beside our own look.
func ended(e evidence, kind Takeover) verdict {
	if e.marked {
		return verdict{standing: Over, kind: kind}
	}
	return verdict{standing: Dead, kind: kind}
}

// unvouched judges what nothing vouches for: alive within the grace. A ttl
// that the holder set itself counts as ever.
func unvouched(e evidence, alive Standing) verdict {
	left := grace - e.unseen
	if e.record != nil && e.record.TTL() > 0 {
		if e.heldFor >= e.record.TTL() {
			return living(e, e.record.TTL())
		}
		left = min(left, e.record.TTL()-e.heldFor)
	}
	if e.unseen < grace {
		return verdict{standing: alive, unseen: true, in: left}
	}
	v := ended(e, Unverifiable)
	v.unseen = true
	return v
}
