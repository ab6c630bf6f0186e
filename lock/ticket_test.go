//go:build linux

package lock

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// Spans are measured on the clock that does not step wherever both ends have it.
func TestSpans(t *testing.T) {
	w := newWorld(t)
	d, id := w.process()
	i := w.clock.Add(-time.Minute)
	i.UTC = i.UTC.Add(-time.Hour)
	for _, tt := range []struct {
		name    string
		i       Instant
		boot    string
		timeNS  uint64
		since   time.Duration
		overdue time.Duration
	}{
		{"here", i, id.BootID, id.TimeNS, time.Minute, time.Minute},
		{"another boot", i, "b", id.TimeNS, time.Hour + time.Minute, time.Hour + time.Minute},
		{"another time namespace", i, id.BootID, 7, time.Hour + time.Minute, time.Hour + time.Minute},
		{"without a boot time", Instant{UTC: i.UTC}, id.BootID, id.TimeNS, time.Hour + time.Minute, w.clock.Boot},
		{"a boot time of a nanosecond", Instant{UTC: i.UTC, Boot: 1}, id.BootID, id.TimeNS, w.clock.Boot - 1, w.clock.Boot - 1},
		{"in the future", w.clock.Add(time.Second), id.BootID, id.TimeNS, 0, -time.Second},
	} {
		if got := d.since(tt.i, tt.boot, tt.timeNS); got != tt.since {
			t.Errorf("%s: since %v, want %v", tt.name, got, tt.since)
		}
		r := &Record{Deadline: &tt.i, Body: Party{Identity: proc.Identity{BootID: tt.boot, TimeNS: tt.timeNS}}}
		if got := d.overdue(r); got != tt.overdue {
			t.Errorf("%s: overdue by %v, want %v", tt.name, got, tt.overdue)
		}
	}
}

// Of a ticket that cannot be read nothing is made up.
func TestTicketWithoutARecord(t *testing.T) {
	none := &Ticket{}
	if none.Mode() != Exclusive || none.ID() != "" {
		t.Errorf("mode %v, id %q", none.Mode(), none.ID())
	}
	for _, r := range []*Record{nil, {}, {HeldAt: &Instant{}}} {
		if _, ok := (&Ticket{Record: r, heldFor: time.Hour}).HeldFor(); ok {
			t.Errorf("it is known since when %+v holds", r)
		}
	}
	if d, ok := (&Ticket{Record: &Record{HeldAt: &Instant{Boot: 1}}, heldFor: time.Hour}).HeldFor(); d != time.Hour || !ok {
		t.Errorf("held for %v, %t", d, ok)
	}
	for s, want := range map[Standing]bool{Holds: true, Opaque: true, Lapsed: false, Dead: false, Waits: false, Left: false, Over: false} {
		if got := (&Ticket{Standing: s}).Holding(); got != want {
			t.Errorf("standing %v: holding %t", s, got)
		}
	}
}

func TestListIsByNumber(t *testing.T) {
	w := newWorld(t)
	want := []entry{{kindShared, 1}, {kindExclusive, 2}, {kindJoined, 3}, {kindExclusive, 3}, {kindShared, 10}, {kindExclusive, maxSeq}}
	for _, i := range []int{5, 3, 0, 4, 2, 1} {
		w.write(want[i].name()+lockSuffix, "")
		w.write(want[i].name()+recordSuffix, "")
	}
	w.write(tmpPrefix+"x", "")
	d, _ := w.process()
	got, leavings, err := d.list()
	if fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(leavings) != "[.new-x]" || err != nil {
		t.Errorf("%v, %v, %v", got, leavings, err)
	}
}

// What is wrong with a ticket is said, and what is right is believed.
func TestReadTicket(t *testing.T) {
	trap := func(w *world, name, kind string) {
		os.Remove(w.file(name))
		if err := traps[kind](w.file(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		harm    func(w *world, lock, record string)
		root    bool // only root can do that
		state   State
		read    bool // the record
		uid     int  // less our own; -1: unknown
		problem string
	}{
		{name: "nothing", harm: func(w *world, lock, record string) {}, state: HeldNow, read: true},
		{name: "a lock that is none", harm: func(w *world, lock, record string) { trap(w, lock, "fifo") }, state: HeldNow, read: true,
			problem: "its lock file cannot be opened: it is not a plain file of this directory"},
		{name: "a lock that is none, and no record", harm: func(w *world, lock, record string) {
			trap(w, lock, "fifo")
			os.Remove(w.file(record))
		}, state: HeldNow, uid: -1, problem: "its lock file cannot be opened: it is not a plain file of this directory"},
		{name: "no lock", harm: func(w *world, lock, record string) { os.Remove(w.file(lock)) }, state: HeldNow, read: true},
		{name: "a record that is none", harm: func(w *world, lock, record string) { trap(w, record, "link") }, state: HeldNow,
			problem: "its record cannot be read: it is not a plain file of this directory"},
		{name: "a record with another name", harm: func(w *world, lock, record string) { os.Link(w.file(record), w.file("another")) }, state: HeldNow,
			problem: "its record cannot be read: it is not a plain file of this directory"},
		{name: "a lock with another name", harm: func(w *world, lock, record string) { os.Link(w.file(lock), w.file("another")) }, state: HeldNow, read: true},
		{name: "a large record", harm: func(w *world, lock, record string) { trap(w, record, "huge") }, state: HeldNow,
			problem: "its record cannot be read: it is too large"},
		{name: "an empty record", harm: func(w *world, lock, record string) { trap(w, record, "empty") }, state: HeldNow,
			problem: "record is damaged: unexpected end of JSON input"},
		{name: "a record that its name denies", harm: func(w *world, lock, record string) {
			e, _ := parseEntry(record)
			w.editRecord(e, func(m map[string]any) { m["joins"] = anID })
		}, state: HeldNow, problem: "its record contradicts its name"},
		{name: "a note that is too large", harm: func(w *world, lock, record string) {
			w.write(lock, `{"takeover":"stale_pid"}`+strings.Repeat(" ", maxNote))
		}, state: HeldNow, read: true},
		{name: "another user's record", harm: func(w *world, lock, record string) { os.Chown(w.file(record), 65534, -1) }, root: true, state: HeldNow,
			problem: "its record belongs to another user than its lock"},
		{name: "another user's record, no lock", harm: func(w *world, lock, record string) {
			os.Chown(w.file(record), 65534, -1)
			os.Remove(w.file(lock))
		}, root: true, state: HeldNow, read: true, uid: 65534},
		{name: "root's record", harm: func(w *world, lock, record string) { os.Chown(w.file(lock), 65534, -1) }, root: true, state: HeldNow, read: true, uid: 65534},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root && os.Getuid() != 0 {
				t.Skip("needs root to give a file away")
			}
			w := newWorld(t)
			bait(t, w)
			holder := w.actor()
			e := holder.gets().entry
			tt.harm(w, e.name()+lockSuffix, e.name()+recordSuffix)
			uid := os.Getuid() + tt.uid
			if tt.uid < 0 {
				uid = -1
			}
			tk := w.want(tt.state).Holders[0]
			if (tk.Record != nil) != tt.read || tk.UID != uid || tk.Problem != tt.problem {
				t.Errorf("record %v, uid %d, problem %q; want one: %t, uid %d, %q", tk.Record, tk.UID, tk.Problem, tt.read, uid, tt.problem)
			}
			if holder.dies(); !tt.read {
				w.want(HeldNow) // what it said is not known, so neither is that it is over
			}
		})
	}
}

// A holder whose record does not say since when it holds is judged by when it asked.
func TestHeldSinceItAsked(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"absent": func(m map[string]any) { delete(m, "held_at") },
		"empty":  func(m map[string]any) { m["held_at"] = map[string]any{} },
	} {
		w := newWorld(t)
		h := w.actor(ttl(time.Hour)).gets()
		w.pass(time.Minute)
		if d, ok := w.want(HeldNow).Holders[0].HeldFor(); d != time.Minute || !ok {
			t.Errorf("held for %v, %t", d, ok)
		}
		w.pass(-time.Minute)
		w.editRecord(h.entry, change)
		w.pass(time.Hour - 1)
		w.want(HeldNow)
		w.pass(1)
		if v := w.view(); v.State != Expired {
			t.Errorf("%s: %v", name, v.State)
		}
	}
}

// A note is one line, replaced in one write: what was longer is blanked, and cut only
// where no note can have been.
func TestWriteNote(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	e := entry{kindExclusive, 1}
	for _, tt := range []struct {
		name, old string
		left      bool
		want      string
	}{
		{"new", "", true, "{\"left\":true}\n"},
		{"the same", "{\"left\":true}\n", true, "{\"left\":true}\n"},
		{"shorter", "{\"left\":true}\n", false, "{}\n" + strings.Repeat(" ", 11)},
		{"another's is kept", "{\"takeover\":\"stale_pid\"}\n", true, "{\"takeover\":\"stale_pid\",\"left\":true}\n"},
		{"over what is no note", "\x00\xff{", true, "{\"left\":true}\n"},
		{"by nobody who has an id", `{"by":"../x"}`, true, "{\"left\":true}\n"},
		{"as large as can be", strings.Repeat(" ", maxNote), true, "{\"left\":true}\n" + strings.Repeat(" ", maxNote-14)},
		{"too large", strings.Repeat(" ", maxNote+1), true, "{\"left\":true}\n" + strings.Repeat(" ", maxNote-14)},
	} {
		w.write(e.name()+lockSuffix, tt.old)
		err := d.writeNote(e, func(n *note) { n.Left = tt.left })
		if b, rerr := os.ReadFile(w.file(e.name() + lockSuffix)); string(b) != tt.want || err != nil || rerr != nil {
			t.Errorf("%s: %q, %v, %v, want %q", tt.name, b, err, rerr, tt.want)
		}
	}
	if err := d.writeNote(entry{kindExclusive, 2}, func(*note) {}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("on no ticket: %v", err)
	}
	// Whoever gave it another name may have something else behind that name.
	if err := os.Link(w.file(e.name()+lockSuffix), w.file("another")); err != nil {
		t.Fatal(err)
	}
	if err := d.writeNote(e, func(*note) {}); !errors.Is(err, errNotRegular) {
		t.Errorf("on one with another name: %v", err)
	}
}

// A visitor who has nothing to note writes nothing: each write wakes who waits. (R9.)
func TestLookLeavesNoNote(t *testing.T) {
	w := newWorld(t)
	a := w.actor()
	a.gets()
	b := w.actor().waits()
	b.waits()
	w.actor(noWait).step()
	for _, e := range []entry{a.hold.entry, b.hold.entry} {
		if st, err := os.Stat(w.file(e.name() + lockSuffix)); err != nil || st.Size() != 0 {
			t.Errorf("%v, %v", st, err)
		}
	}
}

// Who waits, be it for another process's sake as acquire does, waits no longer than it
// lives itself; if it cannot be seen, no longer than it has its kernel lock. (Defect 48.)
func TestWaiterLeavesWithItsEnd(t *testing.T) {
	w := newWorld(t)
	w.actor().gets()
	w.lives(7, proc.Alive)
	forIt := func(r *Request) { r.Anchor = Party{Identity: w.identity(7)} }
	waits := func(when string, want int) {
		t.Helper()
		if v := w.want(HeldNow); len(v.Waiting) != want {
			t.Errorf("%s: %d wait, want %d", when, len(v.Waiting), want)
		}
	}
	a := w.actor(forIt).waits()
	waits("alive", 1)
	a.dies()
	waits("dead", 0)
	for _, l := range []proc.Liveness{proc.Unknown, proc.Running} {
		for _, whose := range []func(*Request){forIt, func(*Request) {}} {
			a = w.actor(whose).waits()
			w.lives(a.pid, l)
			waits(l.String()+", with its lock", 1)
			a.forget()
			waits(l.String()+", without", 0)
		}
	}
	for _, whose := range []func(*Request){forIt, func(*Request) {}} {
		a = w.actor(whose).waits()
		a.forget()
		waits("alive, without its lock", 1)
		a.dies()
		waits("dead, without its lock", 0)
	}
	w.actor(forIt).waits()
	waits("alive", 1)
	delete(w.life, 7)
	waits("for a dead process", 0)
}

// A ticket without a record to read is its kernel lock's: while somebody has that it is
// not over, whatever the grace, and once nobody has it was only just being made.
func TestKernelLockOfAnUnreadTicket(t *testing.T) {
	w := newWorld(t)
	w.write("t00000000000000000001.lock", "")
	w.want(Free)
	holder := w.actor()
	holder.gets()
	record := w.file(holder.hold.entry.name() + recordSuffix)
	for _, harm := range []func() error{func() error { return os.Truncate(record, 0) }, func() error { return os.Remove(record) }} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		visitor := w.actor(letBe, timeout(24*time.Hour)).waits()
		w.pass(2 * grace)
		visitor.waits()
		w.want(HeldNow)
		visitor.abandon()
	}
	holder.forget()
	w.want(Free)
}
