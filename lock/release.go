//go:build linux

package lock

import (
	"slices"

	"github.com/org/hostlock-action/proc"
)

// Release gives back a hold that another process of the same job took: the one
// with an id, else the one the caller is inside of. Without force it must be the
// caller's; with force any of the caller's uid, and for root any.
//
// ErrNotHeld: there is none. *NotOursError: it is somebody else's, and nothing
// was done. *TakenOverError: it was ours and has been taken over.
func (d *Dir) Release(id string, c Caller, force bool) (*Ticket, error) {
	return d.ReleaseClosing(id, c, force, func(*Record) {})
}

// ReleaseClosing is Release that completes the record before it goes into the
// history. closing is called under the guard and must only reckon.
func (d *Dir) ReleaseClosing(id string, c Caller, force bool, closing func(*Record)) (*Ticket, error) {
	if d.fd < 0 {
		return nil, ErrNotHeld
	}
	s, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	entries, _, err := d.list()
	if err != nil {
		return nil, d.cannot("list it", err)
	}
	held := holders(entries, d.load)
	t, err := choose(id, c, held, force)
	if err != nil {
		return t, err
	}
	if t.Standing == Over {
		// Marked by whoever took over, and still there because it is another
		// user's. What the history says of it is said.
		d.clear(t)
		return t, &TakenOverError{Kind: t.note.Takeover, By: t.note.By}
	}
	end := endReleased
	if force {
		end = endRemoved
	}
	if err := d.remove(t.entry); err != nil {
		return t, d.cannot("remove the ticket", err)
	}
	if t.Record != nil {
		closing(t.Record)
		d.finish(t.Record, t.UID, end)
	}
	return t, nil
}

// choose decides which hold a release is about, and whether the caller may.
func choose(id string, c Caller, held []*Ticket, force bool) (*Ticket, error) {
	mine := func(t *Ticket) bool { return t.UID == c.UID || c.UID == 0 && force }
	var t *Ticket
	if id != "" {
		for _, h := range held {
			if h.ID() == id {
				t = h
			}
		}
	} else {
		var err error
		if t, err = inside(c, held); err != nil {
			return nil, err
		}
		if t == nil && force {
			for _, h := range held {
				if mine(h) {
					t = h
					break
				}
			}
		}
	}
	switch {
	case t == nil:
		for _, h := range held {
			if h.Standing != Over {
				return h, &NotOursError{h}
			}
		}
		return nil, ErrNotHeld
	case !mine(t):
		return t, &NotOursError{t}
	case !force && t.Record.Embodied() && t.anchor != proc.Gone: // without force it has a record: it was told by that
		return t, &NotOursError{t}
	}
	return t, nil
}

// Reap acknowledges dead holders of a STALE lock and takes their tickets away;
// it returns those that were still there. It kills nobody and leaves alone what is
// not among dead, whose survivors nobody has looked for, and what lives.
func (d *Dir) Reap(dead []*Ticket) ([]*Ticket, error) {
	if d.fd < 0 {
		return nil, nil
	}
	s, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	entries, _, err := d.list()
	if err != nil {
		return nil, d.cannot("list it", err)
	}
	var reaped []*Ticket
	for _, e := range entries {
		t := d.load(e)
		d.noteUnseen(t)
		known := func(k *Ticket) bool { return k.entry == t.entry && k.ID() == t.ID() }
		if t.Standing != Dead || !slices.ContainsFunc(dead, known) {
			continue
		}
		if err := d.evict(nil, t); err != nil {
			return reaped, d.cannot("acknowledge the dead holder", err)
		}
		reaped = append(reaped, t)
	}
	return reaped, nil
}
