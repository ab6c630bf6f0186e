//go:build linux

package lock

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

const (
	// idleBelow is the share of a core under which a survivor is a daemon that
	// may stay, over a window of idleWindow.
	idleBelow  = 0.05
	idleWindow = time.Second
	// idleTogether is the share of a core that all idle ones together stay under.
	idleTogether = 0.25
	// drainPatience bounds what all that come after a dead holder wait for its
	// survivors, together: one orphan that spins for ever must not cost every
	// later job its whole patience.
	drainPatience = 15 * time.Minute
	// drainLook is how often survivors that were busy are looked at again: one
	// that has come to rest is let be like any other idle daemon.
	drainLook = 10 * time.Second
)

// The environment variables by which a dead holder's processes are known.
const (
	EnvHoldID     = "HOSTLOCK_HOLD_ID"
	envTrackingID = "RUNNER_TRACKING_ID"
	jobTrackingID = "runner_tracking_id" // in a record's job
)

// leftBehind matches the environment of what the dead holders started.
func leftBehind(dead []*Ticket) func(environ []byte) bool {
	return func(environ []byte) bool {
		return slices.ContainsFunc(dead, func(t *Ticket) bool {
			r := t.Record
			if r == nil {
				return false
			}
			return proc.HasEnv(environ, EnvHoldID, r.ID) ||
				t.anchor == proc.Gone && proc.HasEnv(environ, envTrackingID, r.Job[jobTrackingID])
		})
	}
}

func describe(p proc.Process) string {
	return fmt.Sprintf("%d (%s, uid %d)", p.PID, Flatten(p.Comm, 64), p.UID)
}

// Survivors are the processes that dead holders left running.
type Survivors struct {
	Busy []string // used more than idleBelow of a core while they were looked at
	Idle []string // daemons that may stay
	// Unreadable counts the processes that may be survivors too: their
	// environment, by which they are known, cannot be read.
	Unreadable int

	busy  []proc.Identity
	ended []int // pids of those that ended meanwhile
}

// LookForSurvivors looks once, for idleWindow if there are any, at what dead
// holders left running. It signals nobody.
func LookForSurvivors(dead []*Ticket) Survivors { return lookForSurvivors(dead, proc.Carrying) }

func lookForSurvivors(dead []*Ticket, carrying func(func([]byte) bool) ([]proc.Process, int)) Survivors {
	var s Survivors
	found, unreadable := carrying(leftBehind(dead))
	s.Unreadable = unreadable
	ids := make([]proc.Identity, 0, len(found))
	var who []proc.Process
	for _, p := range found {
		if id, err := p.Identify(); err == nil {
			ids, who = append(ids, id), append(who, p)
		}
	}
	if len(ids) == 0 {
		return s
	}
	s.sort(who, ids, proc.Busy(ids, idleWindow), proc.Look)
	return s
}

// sort tells processes apart by what each used, in cores, while it was looked at.
func (s *Survivors) sort(who []proc.Process, ids []proc.Identity, used []float64, look func(proc.Identity) proc.Liveness) {
	limit := idleLimit(used)
	for i, used := range used {
		switch {
		case look(ids[i]) == proc.Gone:
			s.ended = append(s.ended, ids[i].PID)
		case used < limit:
			s.Idle = append(s.Idle, describe(who[i]))
		default:
			s.busy, s.Busy = append(s.busy, ids[i]), append(s.Busy, describe(who[i]))
		}
	}
}

// idleLimit is what a survivor must stay under to be idle, given what all of
// them used. Many that share the host leave little to each: together they are a load,
// and then none of those that did anything is idle.
func idleLimit(used []float64) float64 {
	sum := 0.0
	for _, u := range used {
		if u < idleBelow {
			sum += u
		}
	}
	if sum >= idleTogether {
		return math.SmallestNonzeroFloat64
	}
	return idleBelow
}

// traceable reports whether what dead holders started would be known by its
// environment. What a shell starts that holds the host by acquire carries nothing.
func traceable(dead []*Ticket) bool {
	return !slices.ContainsFunc(dead, func(t *Ticket) bool {
		return t.Record == nil || !t.Record.Embodied() && t.Record.Job[jobTrackingID] == ""
	})
}

// drain waits for what dead holders left running, kills nobody, and returns
// the record's word for what it found. Idle daemons are named and left.
func (a *attempt) drain(ctx context.Context, dead []*Ticket) (string, error) {
	drained := make(map[int]struct{})
	for began := time.Duration(0); ; {
		s := a.d.host.survivors(dead)
		for _, p := range s.ended {
			drained[p] = struct{}{}
		}
		for _, p := range s.Idle {
			a.say("left running by the dead holder, idle, and let be: " + p)
		}
		if len(s.busy) == 0 {
			switch {
			case s.Unreadable > 0:
				return "unknown", nil
			case len(s.Idle) > 0:
				return "idle:" + strconv.Itoa(len(s.Idle)), nil
			case len(drained) > 0:
				return "drained:" + strconv.Itoa(len(drained)), nil
			case !traceable(dead):
				return "unknown", nil
			}
			return "none", nil
		}
		names := s.Busy
		left, err := a.drainTime(dead)
		if err != nil {
			return "", err
		}
		// Whatever a peer writes there, or a disk loses.
		now := a.d.host.now().Boot
		if began == 0 {
			began = now
		}
		left = min(left, began+drainPatience-now)
		switch {
		case left <= 0:
			a.say(fmt.Sprintf("WARNING: still busy %s after their holder died, and not waited for any longer: %s. The measurement runs beside them", drainPatience, join(names)))
			return "busy:" + strconv.Itoa(len(names)), nil
		case !a.req.Wait:
			return "", &BusyError{Reason: "the last holder died and left running: " + join(names)}
		}
		a.say("waiting for what a dead holder left running: " + join(names))
		rest := a.deadline - now
		vigil := a.d.watchSurvivors(s.busy, min(left, rest), drained)
		if rest > 0 { // the look took a second: the deadline may have passed in it
			vigil.wait(a.waker, a.own)
		}
		vigil.close()
		if err := a.outOfTime(ctx, names); err != nil {
			return "", err
		}
	}
}

// watchSurvivors sets up the vigil over survivors, and enters those that it will see
// end among the drained.
func (d *Dir) watchSurvivors(busy []proc.Identity, left time.Duration, drained map[int]struct{}) *vigil {
	v := new(vigil)
	v.within(min(left, drainLook))
	for _, id := range busy {
		if d.watchProcess(v, id) {
			drained[id.PID] = struct{}{}
		} else {
			v.within(blindLook)
		}
	}
	return v
}

// outOfTime is over, while survivors are waited for.
func (a *attempt) outOfTime(ctx context.Context, names []string) error {
	err := a.over(ctx)
	if timeout, ok := err.(*TimeoutError); ok {
		timeout.Survivors = names
	}
	return err
}

func join(names []string) string {
	const most = 5
	out := ""
	for i, n := range names {
		if i == most {
			return out + fmt.Sprintf(" and %d more", len(names)-most)
		}
		if i > 0 {
			out += ", "
		}
		out += n
	}
	return out
}

// drainTime is what is left of the patience with the survivors of these
// tickets. The first to ask begins it, for all who come after.
func (a *attempt) drainTime(dead []*Ticket) (time.Duration, error) {
	d := a.d
	s, err := d.enter()
	if err != nil {
		return 0, err
	}
	defer s.leave()
	left := drainPatience
	for _, t := range dead {
		now := d.load(t.entry)
		if n := now.note.Drain; n != nil {
			left = min(left, drainPatience-d.since(n.Instant, n.BootID, n.TimeNS))
		} else if now.Standing == Dead {
			_ = d.writeNote(t.entry, func(n *note) { n.Drain = d.noted() })
		}
	}
	return left, nil
}

// settle makes a hold out of an admission: what a dead holder left behind is
// waited for, the takeover is noted, the gate is passed. On an error nothing
// is held.
func (a *attempt) settle(ctx context.Context) (err error) {
	h := a.hold
	defer func() {
		if err != nil {
			if h.Release() != nil {
				unix.Close(h.lockFD) // if it is still there, the ticket has lost its kernel lock and ends with us
				h.lockFD = -1
			}
		}
	}()
	if a.evicted != nil {
		a.notify(Event{Passed: a.evicted, Evicted: true})
	}
	if len(a.dead) > 0 {
		survivors := "unknown"
		if !a.req.IgnoreSurvivors {
			if survivors, err = a.drain(ctx, a.dead); err != nil {
				return err
			}
		}
		if err := a.acknowledge(survivors); err != nil {
			return err
		}
	}
	return a.gate(ctx)
}

// acknowledge marks the dead. The takeover is recorded by whoever writes the
// mark: of two shared holders that saw the same dead one, one.
func (a *attempt) acknowledge(survivors string) error {
	h, d := a.hold, a.d
	s, err := d.enter()
	if err != nil {
		return err
	}
	var passed []*Ticket
	err = h.lost()
	for _, t := range a.dead {
		if err != nil {
			break
		}
		if t := d.load(t.entry); t.Standing == Dead {
			if err = d.evict(h, t); err == nil {
				passed = append(passed, t)
			}
		}
	}
	if err == nil {
		err = h.update(func(r *Record) { r.Survivors = survivors })
	}
	s.leave()
	if err != nil {
		return d.cannot("acknowledge the dead holder", err)
	}
	if len(passed) > 0 {
		a.notify(Event{Passed: passed})
	}
	return nil
}

// gate waits until the host is quiet enough and records what it found.
func (a *attempt) gate(ctx context.Context) error {
	g, h := a.req.Gate, a.hold
	if !g.set() {
		return nil
	}
	r, err := g.await(ctx, a.waker, a.own, &a.d.host, a.say)
	if err != nil {
		return err
	}
	result := g.record(r, "satisfied", "<=")
	if !r.met {
		result = g.record(r, "timed_out_proceeded", ">")
	}
	if !r.met && !g.Proceed {
		return &GateError{Gate: g.record(r, "timed_out", ">"), Waited: g.Timeout}
	}
	return h.amend(func(rec *Record) {
		rec.Gate = result
		if n, err := a.d.host.runnable(); err == nil {
			rec.RunnableAtAcquire = &n
		}
	})
}

// say passes a line on, once.
func (a *attempt) say(text string) {
	if text != a.told {
		a.told = text
		a.notify(Event{Text: text})
	}
}
