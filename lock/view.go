//go:build linux

package lock

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A View is what a look at the directory showed, without taking anything.
type View struct {
	State   State
	Holders []*Ticket // who holds, or held and died unacknowledged; by number
	Waiting []*Ticket // by number
	At      Instant

	dir *Dir
}

// derive is the state that a set of tickets amounts to.
func derive(tickets []*Ticket) State {
	state := Free
	for _, t := range tickets {
		switch t.Standing {
		case Holds, Opaque:
			return HeldNow
		case Lapsed:
			state = Expired
		case Dead:
			if state == Free {
				state = Stale
			}
		case Left, Waits, Over:
		}
	}
	return state
}

// Look reads the directory without the guard, so that a reader that is stopped
// is in nobody's way. It looks again while the directory changes under it.
func (d *Dir) Look() (*View, error) {
	var v *View
	for range 5 {
		before, err := d.fingerprint()
		if err != nil {
			return nil, d.cannot("list it", err)
		}
		v = &View{At: d.host.now(), dir: d}
		var all []*Ticket
		for _, f := range before {
			t := d.load(f.entry)
			all = append(all, t)
			switch t.Standing {
			case Waits:
				v.Waiting = append(v.Waiting, t)
			case Holds, Opaque, Lapsed, Dead:
				v.Holders = append(v.Holders, t)
			case Left, Over:
			}
		}
		v.State = derive(all)
		after, err := d.fingerprint()
		if err != nil {
			return nil, d.cannot("list it", err)
		}
		if slices.Equal(before, after) {
			break
		}
	}
	return v, nil
}

// A revision tells one version of a ticket's record from another.
type revision struct {
	entry entry
	ino   uint64
	mtime unix.Timespec
}

func (d *Dir) fingerprint() ([]revision, error) {
	entries, _, err := d.list()
	if err != nil {
		return nil, err
	}
	revisions := make([]revision, 0, len(entries))
	for _, e := range entries {
		p := revision{entry: e}
		var st unix.Stat_t
		if unix.Fstatat(d.fd, e.name()+recordSuffix, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			p.ino, p.mtime = st.Ino, st.Mtim
		}
		revisions = append(revisions, p)
	}
	return revisions, nil
}

// Own is the hold that a caller is inside of, or nil.
func (v *View) Own(c Caller) *Ticket {
	t, err := inside(c, v.Holders)
	if err != nil {
		return nil
	}
	return t
}

// Main is the ticket that a one-holder form speaks of: the caller's own hold,
// else the one that decides the state, by the lowest number.
func (v *View) Main(c Caller) *Ticket {
	if t := v.Own(c); t != nil {
		return t
	}
	for _, want := range [][]Standing{{Holds, Opaque}, {Lapsed}, {Dead}} {
		for _, t := range v.Holders {
			if slices.Contains(want, t.Standing) {
				return t
			}
		}
	}
	return nil
}

// HeldFor is how long a ticket has held the host; false if that is unknown.
func (v *View) HeldFor(t *Ticket) (time.Duration, bool) {
	if t.Record == nil || t.Record.HeldAt == nil || t.Record.HeldAt.IsZero() {
		return 0, false
	}
	return v.dir.age(t.Record, *t.Record.HeldAt), true
}

// WaitFree waits until an exclusive acquire would be admitted at once, and
// takes nothing.
func (d *Dir) WaitFree(ctx context.Context, c Caller, timeout time.Duration, notify func(Event)) error {
	if d.fd < 0 {
		return nil
	}
	w, err := newWaker(ctx)
	if err != nil {
		return d.cannot("wait", err)
	}
	defer w.close()
	a := &attempt{d: d, req: Request{Wait: true, Notify: notify}, own: -1, started: d.host.now().Boot, waker: w}
	defer a.unfollow()
	a.deadline = a.started + timeout
	var holder *Ticket
	look := func() (*Ticket, error) {
		entries, _, err := d.list()
		if err != nil {
			return nil, d.cannot("list it", err)
		}
		held := holders(entries, d.load)
		holder = holding(held)
		outer, err := inside(c, held)
		if err != nil {
			return nil, err
		}
		if outer != nil {
			return nil, &NestedError{Hold: outer, Problem: "this is inside a hold of its own and could only wait for itself"}
		}
		return admit(claim{mode: Exclusive}, entries, d.load).blocker, nil
	}
	for {
		before, err := d.fingerprint()
		if err != nil {
			return d.cannot("list it", err)
		}
		t, err := look()
		if err != nil {
			return err
		}
		if t == nil {
			// Nobody is in the way only if nothing changed meanwhile: a hold that
			// went from one ticket to another is in neither for who reads both.
			after, err := d.fingerprint()
			if err != nil {
				return d.cannot("list it", err)
			}
			if slices.Equal(before, after) {
				return nil
			}
			continue
		}
		// Without the guard the watch is set first and the look repeated:
		// what happened in between shows in the second look.
		v := d.watch(t)
		again, err := look()
		if err != nil {
			v.close()
			return err
		}
		if again != nil && again.entry == t.entry && again.Standing == t.Standing {
			a.lastSeen = t
			a.notify(Event{Blocker: t, Holder: holder})
			a.sleep(v, t)
		} else {
			v.close()
		}
		if err := a.over(ctx); err != nil {
			if late, ok := err.(*TimeoutError); ok {
				late.Holder = d.holder()
			}
			return err
		}
	}
}

// holder looks, without the guard, who has the host now; nil if nobody.
func (d *Dir) holder() *Ticket { return holding(d.holders()) }

// Inside looks, without the guard, which hold the caller is inside of; nil if there is
// none, or it cannot be told. Unlike Look it reads none of those who wait.
func (d *Dir) Inside(c Caller) *Ticket {
	t, err := inside(c, d.holders())
	if err != nil {
		return nil
	}
	return t
}

func (d *Dir) holders() []*Ticket {
	entries, _, err := d.list()
	if err != nil {
		return nil
	}
	return holders(entries, d.load)
}
