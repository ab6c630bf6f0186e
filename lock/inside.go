//go:build linux

package lock

import (
	"fmt"
	"slices"

	"github.com/org/hostlock-action/proc"
)

// A Caller is who asks whether it is inside a hold.
type Caller struct {
	UID    int
	HoldID string // $HOSTLOCK_HOLD_ID
	// Forebears are the caller's process and its ancestors, nearest first.
	Forebears []proc.Process
}

// shells are the programs whose hold covers what is started from them, when
// they took it themselves. What runs several jobs in one process (act, make,
// gitlab-runner) is an ancestor of parallel strangers and is not among them.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "tcsh", "csh", "pwsh"}

// oneJob reports whether a hold's anchor stands for one job only, so that
// being below it is being inside.
func oneJob(r *Record) bool {
	return r.Embodied() || r.Anchor.Comm == "Runner.Worker" || slices.Contains(shells, r.Anchor.Comm)
}

// inside finds the hold that a caller is inside of among those who hold the
// host; nil is none. Another uid's hold named by id is an error: the caller
// must neither join it nor wait for what may be its own ancestor.
func inside(c Caller, held []*Ticket) (*Ticket, error) {
	if hexID(c.HoldID) {
		for _, t := range held {
			if t.ID() != c.HoldID || t.Standing == Dead || t.Standing == Over {
				continue
			}
			if t.UID != c.UID && c.UID != 0 {
				return nil, &NestedError{Hold: t, Problem: fmt.Sprintf("$HOSTLOCK_HOLD_ID names a hold of uid %d and this is uid %d: run as that user, or unset it to queue as a stranger", t.UID, c.UID)}
			}
			return t, nil
		}
	}
	for _, p := range c.Forebears {
		var found *Ticket
		for _, t := range held {
			r := t.Record
			if r == nil || r.Phase != Held || t.Standing == Dead || t.Standing == Over || t.UID != c.UID && c.UID != 0 {
				continue
			}
			if isProcess(r.Anchor, p) && oneJob(r) {
				found = t // the latest of one anchor's holds is the innermost
			}
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, nil
}

// isProcess reports whether a recorded party is a process that runs here now
// as one of our ancestors.
func isProcess(p Party, q proc.Process) bool {
	here := proc.Here()
	return p.PID == q.PID && p.Start != 0 && p.Start == q.Start && p.PIDNS == here.PIDNS && p.BootID == here.BootID
}

// chainOf follows a hold outwards. It lives while its innermost hold does: as
// long as that is held, whoever conflicts waits for it, so to stand behind them would
// be to wait for oneself, whatever has become of the holds further out.
func chainOf(t *Ticket, held []*Ticket) chain {
	c := chain{live: t.Standing == Holds}
	for !c.has(t) { // until there is no outer one, it is gone, or the records form a ring
		c.ids, c.root = append(c.ids, t.Record.ID), t.Seq
		outer := t.Record.Joins
		for _, h := range held {
			if outer != "" && h.ID() == outer {
				t = h
			}
		}
	}
	return c
}

// exclusive reports whether a hold of the chain is: every run inside it then
// joins as exclusive, so that two steps of one job take turns.
func (c chain) exclusive(held []*Ticket) bool {
	for _, t := range held {
		if c.has(t) && t.Mode() == Exclusive {
			return true
		}
	}
	return false
}
