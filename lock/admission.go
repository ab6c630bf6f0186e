//go:build linux

package lock

import "slices"

// A claim is who wants the host, as far as admission asks.
type claim struct {
	seq   uint64 // 0: has no ticket, and stands behind every ticket there is
	kind  byte   // of the ticket's name
	mode  Mode
	joins string // id of the hold inside which this is asked; empty: a stranger
	chain chain  // that hold and those it is inside of, innermost first
}

// A chain is the holds that a claim is inside of.
type chain struct {
	ids  []string
	root uint64 // number of the outermost
	live bool   // the innermost holds, within its ttl
}

func (c chain) has(t *Ticket) bool { return t.Record != nil && slices.Contains(c.ids, t.Record.ID) }

// A decision is what admission found.
type decision struct {
	blocker *Ticket   // the nearest ticket in the way; nil: admitted
	passed  []*Ticket // dead or lapsed holders that the claim passes: a takeover
	left    []*Ticket // tickets that nobody stands for any more
}

// admit decides whether a claim holds the host. It does when no live,
// unexpired hold conflicts with it, whatever its number, and no live waiting
// ticket before it does. load reads and judges one ticket; admit calls it for
// as few as the names allow.
//
// A claim inside a hold never conflicts with its chain. While the chain lives,
// only those wait before it that wait inside the same hold: a stranger in
// front of it waits for the very job that it belongs to.
func admit(c claim, entries []entry, load func(entry) *Ticket) decision {
	var d decision
	inside := c.chain.live
	look := func(e entry) {
		t := load(e)
		switch t.Standing {
		case Left, Over:
			d.left = append(d.left, t)
		case Dead:
			if !c.chain.has(t) {
				d.passed = append(d.passed, t)
			}
		case Lapsed:
			// One that lives and is not in the way is left alone.
			if !c.chain.has(t) && c.mode.Conflicts(t.Mode()) {
				d.passed = append(d.passed, t)
			}
		case Waits:
			before := c.seq == 0 || t.Seq < c.seq
			if before && c.mode.Conflicts(t.Mode()) && (!inside || t.Record.Joins == c.joins) {
				d.block(t)
			}
		case Holds, Opaque:
			if !c.chain.has(t) && c.mode.Conflicts(t.Mode()) {
				d.block(t)
			}
		}
	}
	// The nearest first: whoever is found in the way ends the search, and is
	// the one to watch.
	var harmless []entry
	for i := len(entries) - 1; i >= 0 && d.blocker == nil; i-- {
		e := entries[i]
		switch {
		case e.seq == c.seq && e.kind == c.kind: // our own
		case e.kind == kindJoined:
			// May hold before its turn: asked about wherever it stands.
			look(e)
		case c.seq != 0 && e.seq > c.seq:
		case inside && e.seq > c.chain.root:
			// Numbered after our job took the host: it waits for that.
		case e.kind == kindShared && c.mode == Shared:
			harmless = append(harmless, e) // cannot be in the way; may be dead
		default:
			look(e)
		}
	}
	if d.blocker == nil {
		for _, e := range harmless {
			look(e)
		}
	}
	return d
}

func (d *decision) block(t *Ticket) {
	if d.blocker == nil {
		d.blocker = t
	}
}

// takeover is what passing these tickets is to be called: the gravest of
// them.
func takeover(passed []*Ticket) (kind Takeover, from *Ticket) {
	for _, t := range passed {
		if graver(&t.Kind, &kind) {
			kind, from = t.Kind, t
		}
	}
	return kind, from
}

// graver: a live holder's takeover is graver than that of one that nobody
// could see, and that than a dead one's. Of one that was not recorded (nil) nobody
// knows which it was; it does not hide that a holder lived.
func graver(k, than *Takeover) bool {
	rank := func(k *Takeover) int {
		if k == nil {
			return 2
		}
		return []int{NoTakeover: 0, StalePID: 1, Unverifiable: 3, TTLExpired: 4}[*k]
	}
	return rank(k) > rank(than)
}

// holders returns the tickets that hold the host, held it and died, or cannot
// be read, by number. Behind a live exclusive ticket nothing can hold but what
// was taken inside another hold, so the rest of a long queue is not read.
func holders(entries []entry, load func(entry) *Ticket) []*Ticket {
	var held []*Ticket
	closed := false
	for _, e := range entries {
		if closed && e.kind != kindJoined {
			continue
		}
		t := load(e)
		switch t.Standing {
		case Holds, Opaque, Lapsed, Dead, Over:
			held = append(held, t)
		case Left, Waits:
		}
		live := t.Standing == Waits || t.Standing == Holds || t.Standing == Opaque
		if live && e.kind != kindJoined && t.Mode() == Exclusive {
			closed = true
		}
	}
	return held
}

// holding is the first of the holders that counts as holding the host.
func holding(held []*Ticket) *Ticket {
	for _, t := range held {
		if t.Holding() {
			return t
		}
	}
	return nil
}
