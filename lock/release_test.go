//go:build linux

package lock

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// Which hold a release is about, and whether the caller may.
func TestChoose(t *testing.T) {
	const none, notOurs, notHeld, nested = "", "not ours", "not held", "nested"
	kept := func(seq uint64, s Standing, uid int) *Ticket {
		k := tk(seq, "s", s)
		k.Record.Anchor, k.Record.Body, k.UID, k.anchor = anchorParty, keeperParty, uid, proc.Alive
		return k
	}
	run := func(seq uint64, l proc.Liveness) *Ticket {
		k := tk(seq, "s", Holds)
		k.anchor = l
		return k
	}
	unreadable := tk(9, "x", Opaque)
	me, other, root := Caller{UID: 1000}, Caller{UID: 1001}, Caller{UID: 0}
	in := func(c Caller, seq uint64) Caller { c.HoldID = idOf(seq); return c }
	for _, tt := range []struct {
		name  string
		id    string
		c     Caller
		q     queue
		force bool
		want  uint64 // 0: none
		err   string
	}{
		{"nothing is held", "", me, nil, false, 0, notHeld},
		{"nothing is held, by id", idOf(1), me, nil, true, 0, notHeld},
		{"only what is over", "", me, queue{kept(1, Over, 1000)}, false, 0, notHeld},
		{"by id", idOf(2), me, queue{kept(1, Holds, 1000), kept(2, Holds, 1000), kept(3, Holds, 1000)}, false, 2, none},
		{"another's by id", idOf(2), me, queue{kept(1, Holds, 1000), kept(2, Holds, 1001)}, false, 2, notOurs},
		{"another's by id and force", idOf(2), me, queue{kept(1, Holds, 1000), kept(2, Holds, 1001)}, true, 2, notOurs},
		{"root's by id and force", idOf(1), me, queue{kept(1, Holds, 0)}, true, 1, notOurs},
		{"by root and id", idOf(1), root, queue{kept(1, Holds, 1000)}, false, 1, notOurs},
		{"by root, id and force", idOf(1), root, queue{kept(1, Holds, 1000)}, true, 1, none},
		{"root's own", idOf(1), root, queue{kept(1, Holds, 0)}, false, 1, none},
		{"by an id that nobody has", idOf(7), me, queue{kept(1, Over, 1000), kept(2, Holds, 1000)}, true, 2, notOurs},
		{"of a stranger", "", me, queue{kept(1, Over, 1000), kept(2, Holds, 1001)}, false, 2, notOurs},
		{"inside", "", in(me, 2), queue{kept(1, Holds, 1000), kept(2, Holds, 1000)}, false, 2, none},
		{"inside, by force", "", in(me, 2), queue{kept(1, Holds, 1000), kept(2, Holds, 1000)}, true, 2, none},
		{"inside another's", "", in(other, 1), queue{kept(1, Holds, 1000)}, true, 0, nested},
		{"by force, the first of one's own", "", me, queue{kept(1, Holds, 1001), kept(2, Holds, 1000), kept(3, Holds, 1000)}, true, 2, none},
		{"by force, and only others hold", "", other, queue{kept(1, Holds, 1000)}, true, 1, notOurs},
		{"by root and force, the first", "", root, queue{kept(1, Holds, 1000), kept(2, Holds, 1001)}, true, 1, none},
		{"a run, which ends by itself", idOf(1), me, queue{run(1, proc.Alive)}, false, 1, notOurs},
		{"a run that is out of sight", idOf(1), me, queue{run(1, proc.Unknown)}, false, 1, notOurs},
		{"a run that is dead", idOf(1), me, queue{run(1, proc.Gone)}, false, 1, none},
		{"a run, by force", idOf(1), me, queue{run(1, proc.Alive)}, true, 1, none},
		{"what cannot be read", "", me, queue{unreadable}, false, 9, notOurs},
		{"what cannot be read, by force", "", me, queue{unreadable}, true, 9, none},
	} {
		got, err := choose(tt.id, tt.c, tt.q, tt.force)
		n := uint64(0)
		if got != nil {
			n = got.Seq
		}
		said := none
		switch {
		case errors.As(err, new(*NotOursError)):
			said = notOurs
			if named := err.(*NotOursError).Ticket; named != got {
				t.Errorf("%s: names %+v", tt.name, named)
			}
		case errors.Is(err, ErrNotHeld):
			said = notHeld
		case errors.As(err, new(*NestedError)):
			said = nested
		case err != nil:
			said = err.Error()
		}
		if n != tt.want || said != tt.err {
			t.Errorf("%s: %d, %q; want %d, %q", tt.name, n, said, tt.want, tt.err)
		}
	}
}

// What a release writes into the history is complete, and says who ended the hold.
func TestReleaseCloses(t *testing.T) {
	for force, end := range map[bool]string{false: endReleased, true: endRemoved} {
		w := newWorld(t)
		job := w.job()
		d, _ := w.process()
		w.pass(time.Minute)
		tk, err := d.ReleaseClosing(job.id, Caller{UID: unix.Getuid()}, force, func(r *Record) { r.Version = "closed" })
		if err != nil || tk.ID() != job.id {
			t.Fatalf("%+v, %v", tk, err)
		}
		w.want(Free)
		past, err := d.History()
		if err != nil || len(past) != 1 || past[0].End != end || past[0].Version != "closed" || past[0].HeldSecs != 60 {
			t.Errorf("force %v: history %+v, %v", force, past, err)
		}
	}
}

// A hold that was taken over is not the caller's to release any more: it is told so, and
// what is left of the ticket goes.
func TestReleaseOfWhatIsOver(t *testing.T) {
	w := newWorld(t)
	lapsed := w.actor(shared, ttl(time.Minute))
	w.entrust(lapsed.gets(), nil)
	w.pass(time.Minute)
	d, _ := w.process()
	if err := d.writeNote(lapsed.hold.entry, func(n *note) { n.Takeover, n.By = TTLExpired, anID }); err != nil {
		t.Fatal(err)
	}
	_, err := d.Release(lapsed.id, Caller{UID: unix.Getuid()}, false)
	var lost *TakenOverError
	if !errors.As(err, &lost) || lost.Kind != TTLExpired || lost.By != anID {
		t.Errorf("%+v", err)
	}
	if entries, _, err := d.list(); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	if n := w.pasts(); len(n) != 0 { // whoever took over has written it
		t.Errorf("history %v", n)
	}
}

func TestReleaseOfWhatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	w.write(h.entry.name()+recordSuffix, "{")
	d, _ := w.process()
	me := Caller{UID: unix.Getuid()}
	if _, err := d.Release("", me, false); !errors.As(err, new(*NotOursError)) {
		t.Errorf("%v", err)
	}
	w.want(HeldNow)
	if _, err := d.Release("", me, true); err != nil {
		t.Errorf("by force: %v", err)
	}
	w.want(Free)

	// What cannot be taken away is not released.
	h = w.actor().gets()
	lock := w.file(h.entry.name() + lockSuffix)
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Release("", me, true); !errors.As(err, new(*UnusableError)) {
		t.Errorf("a ticket that cannot be removed: %v", err)
	}
	w.want(HeldNow)
}

// Reap takes away what it was told of and nothing else, not even what cannot be told
// apart by its id or by its number.
func TestReapOnlyWhatWasSeen(t *testing.T) {
	w := newWorld(t)
	a, b := w.actor(shared), w.actor(shared)
	ea, eb := a.gets().entry, b.gets().entry
	a.dies()
	b.dies()
	d, _ := w.process()
	seen := w.want(Stale).Holders
	w.editRecord(ea, func(m map[string]any) { m["id"] = anID }) // another hold by now
	if reaped, err := d.Reap(seen); err != nil || len(reaped) != 1 || reaped[0].entry != eb {
		t.Errorf("reaped %v, %v", reaped, err)
	}
	if v := w.want(Stale); len(v.Holders) != 1 || v.Holders[0].ID() != anID {
		t.Errorf("%+v", v.Holders)
	}

	// Two that cannot be read have no id to tell them by.
	w = newWorld(t)
	a, b = w.actor(shared), w.actor(shared)
	ea, eb = a.gets().entry, b.gets().entry
	a.dies()
	b.dies()
	w.write(ea.name()+recordSuffix, "{")
	w.write(eb.name()+recordSuffix, "{")
	w.stamp()
	d, _ = w.process()
	if reaped, err := d.Reap(nil); err != nil || len(reaped) != 0 {
		t.Errorf("reaped %v, %v", reaped, err)
	}
	w.stamp()
	if v := w.want(HeldNow); v.Holders[0].note.Unseen == nil || v.Holders[1].note.Unseen == nil {
		t.Error("nobody noted that nothing vouches for them: whoever comes begins the grace anew")
	}
	w.pass(grace)
	if reaped, err := d.Reap(w.want(Stale).Holders[:1]); err != nil || len(reaped) != 1 || reaped[0].entry != ea || reaped[0].Kind != Unverifiable {
		t.Errorf("reaped %v, %v", reaped, err)
	}
	if v := w.want(Stale); len(v.Holders) != 1 || v.Holders[0].entry != eb {
		t.Errorf("%+v", v.Holders)
	}
	// What cannot be taken away is not reaped.
	lock := w.file(eb.name() + lockSuffix)
	seen = w.view().Holders
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)); err != nil {
		t.Fatal(err)
	}
	if reaped, err := d.Reap(seen); !errors.As(err, new(*UnusableError)) || len(reaped) != 0 {
		t.Errorf("reaped %v, %v", reaped, err)
	}
}

// A directory that does not exist yet holds nobody, and a guard that cannot be had stops
// whoever would change anything.
func TestChangesNeedADirectory(t *testing.T) {
	none := &Dir{Location: Location{Path: "/none"}, fd: -1}
	if _, err := none.Release("", Caller{}, true); !errors.Is(err, ErrNotHeld) {
		t.Errorf("release: %v", err)
	}
	if reaped, err := none.Reap(nil); reaped != nil || err != nil {
		t.Errorf("reap: %v, %v", reaped, err)
	}
	if ended, err := none.EndJob(proc.Identity{}, nil); ended != nil || err != nil {
		t.Errorf("end of a job: %v, %v", ended, err)
	}
	w := newWorld(t)
	a := w.actor()
	h := a.gets()
	waiter := w.actor().waits()
	fd := waiter.hold.lockFD
	if err := errors.Join(os.Remove(w.file(guardFile)), os.Mkdir(w.file(guardFile), 0o755)); err != nil {
		t.Fatal(err)
	}
	_, gone := waiter.step()
	if waiter.hold != nil || unix.Fstat(fd, new(unix.Stat_t)) != unix.EBADF {
		t.Error("a waiter that cannot ask any more keeps its ticket locked")
	}
	d, _ := w.process()
	for what, err := range map[string]error{
		"release":      func() error { _, err := d.Release(a.id, Caller{UID: unix.Getuid()}, true); return err }(),
		"reap":         func() error { _, err := d.Reap(nil); return err }(),
		"end of a job": func() error { _, err := d.EndJob(w.identity(7), func(*Record) {}); return err }(),
		"amend":        h.amend(func(*Record) {}),
		"become":       h.become(h.Record, nil),
		"own release":  h.Release(),
		"a turn":       gone,
		"a first turn": func() error { _, err := w.actor().step(); return err }(),
	} {
		if !errors.As(err, new(*UnusableError)) || errors.As(err, new(*TakenOverError)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if v := w.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].ID() != a.id {
		t.Errorf("%+v", v.Holders)
	}
}
