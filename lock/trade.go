//go:build linux

package lock

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A trade is exclusive inside one's own shared job hold. It is never a join:
// beside a shared hold the other builds run on. In one session the job's shared
// ticket ends and an exclusive one takes a number like a stranger's; when that
// ends, the same session that would release it makes it the job's shared hold
// again. If it kept the shared hold while it waits, an exclusive stranger before
// it would wait for the job, and the job for the stranger.
//
// While a trade waits and runs, the job's other steps are not covered.

// tradable returns the hold that a request would trade; nil if it would not.
func tradable(req Request, outer *Ticket) *Ticket {
	if outer == nil || req.Mode != Exclusive || req.Join != JoinTicket || outer.Mode() != Shared {
		return nil
	}
	// A shared run embodies its ticket and cannot give it up; another user's
	// hold could not be given back to it.
	if outer.Record.Embodied() || outer.Standing != Holds || outer.UID != unix.Geteuid() {
		return nil
	}
	return outer
}

// trade ends the job's shared hold, for which our ticket now stands. The
// caller holds the guard and has written our ticket: a crash in between leaves the
// shared hold as it was and a ticket that nobody stands for.
func (a *attempt) trade(t *Ticket) error {
	job := *t.Record
	h := *a.hold
	h.standFor(&job)
	if err := h.write(h.raw); err != nil {
		return err
	}
	if err := a.d.remove(t.entry); err != nil {
		return err
	}
	*a.hold = h
	return nil
}

// standFor makes h the ticket of a trade for the job's shared hold.
func (h *Hold) standFor(job *Record) {
	h.job = job
	h.Record.Resumes, h.Record.ResumesAnchor = job.ID, &job.Anchor
}

// trades finds those that the caller's own job is in, and waits for: when one ends
// the caller may be inside a hold again, and must judge anew. To find them the
// queue before us has to be read, so it is read only for who may have such a job.
func (a *attempt) trades(entries []entry, held []*Ticket, load func(entry) *Ticket) []*Ticket {
	c := a.req.Caller
	inJob := hexID(c.HoldID) || slices.ContainsFunc(c.Forebears, func(p proc.Process) bool { return p.Comm == "Runner.Worker" })
	all := slices.Clone(held)
	for _, e := range entries {
		if inJob && e.kind == kindExclusive && (a.hold == nil || e.seq < a.hold.entry.seq) {
			if t := load(e); t.Standing == Waits {
				all = append(all, t)
			}
		}
	}
	var found []*Ticket
	for t := inTrade(c, all); t != nil; t = inTrade(c, all) {
		if t != a.lastSeen {
			found = append(found, t)
		}
		all = slices.DeleteFunc(all, func(o *Ticket) bool { return o == t })
	}
	return found
}

// inTrade finds the first trade of the caller's own job among tickets.
func inTrade(c Caller, tickets []*Ticket) *Ticket {
	for _, t := range tickets {
		r := t.Record
		if r == nil || r.Resumes == "" || t.UID != c.UID && c.UID != 0 {
			continue
		}
		if r.Resumes == c.HoldID {
			return t
		}
		for _, p := range c.Forebears {
			if r.ResumesAnchor != nil && isProcess(*r.ResumesAnchor, p) {
				return t
			}
		}
	}
	return nil
}

// errJobOver keeps a trade from becoming the shared hold of a job that has ended.
var errJobOver = errors.New("the job has ended")

// jobOver reports whether the job that a trade stands for has ended: a hold
// that came back then would have nobody left to give it back, and read STALE. The
// caller holds the guard.
func (h *Hold) jobOver(anchor Party) bool {
	h.hearOfJobEnd()
	return h.Record.JobEndedAt != nil || h.d.host.look(anchor.Identity) == proc.Gone
}

// jobLives is jobOver in a session of its own: nil, or why nothing can come back.
func (h *Hold) jobLives() error {
	s, err := h.d.enter()
	if err != nil {
		return err
	}
	defer s.leave()
	if h.jobOver(h.job.Anchor) {
		return errJobOver
	}
	return nil
}

// hearOfJobEnd takes over what EndJob wrote into the record of a trade, the only
// thing there that is not written by the process of the hold itself.
func (h *Hold) hearOfJobEnd() {
	if r, _ := h.endedByJob(); r != nil {
		h.Record.JobEndedAt = r.JobEndedAt
	}
}

// turnBack makes the exclusive hold of a trade the job's shared hold again. If
// it cannot, the host is simply released: the job's later steps queue as strangers.
func (h *Hold) turnBack() error {
	job := *h.job
	if h.jobLives() != nil {
		h.job = nil
		return h.Release()
	}
	ended := h.Record
	job.Seq = h.entry.seq
	err := h.entrust(job, func() {
		h.Ended = h.d.past(&ended, unix.Geteuid(), endReleased)
		h.d.enterHistory(h.Ended)
		// Wakes those of the job who wait: they are inside again.
		_ = h.d.writeNote(h.entry, func(*note) {})
	})
	h.job = nil
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errJobOver): // meanwhile
		return h.Release()
	}
	h.Record = ended
	h.d.Warnings = append(h.d.Warnings, "the job's shared hold could not be restored, its later steps are strangers to the queue: "+err.Error())
	return h.Release()
}
