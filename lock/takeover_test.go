//go:build linux

package lock

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

func TestTakeoverOfDeadIsReportedOnce(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	first.gets()
	w.want(HeldNow)
	first.dies()
	w.want(Stale)

	second := w.actor(letBe)
	h := second.gets()
	if h.Record.Outcome != "acquired_after_reap (stale_pid)" || h.Record.Takeover == nil || *h.Record.Takeover != StalePID {
		t.Errorf("outcome %q, takeover %v: the reap is not reported", h.Record.Outcome, h.Record.Takeover)
	}
	if p := h.Record.Previous; p == nil || p.ID != first.id {
		t.Errorf("previous %+v, want %s", p, first.id)
	}
	if len(second.events) != 1 || len(second.events[0].Passed) != 1 || second.events[0].Evicted {
		t.Errorf("told %+v, want the dead holder once", second.events)
	}
	w.want(HeldNow)
	if err := h.Release(); err != nil {
		t.Error(err)
	}
	w.want(Free)
	if h := w.actor().gets(); h.Record.Outcome != "acquired" || *h.Record.Takeover != NoTakeover {
		t.Errorf("a clean acquire after that: %q, %v", h.Record.Outcome, h.Record.Takeover)
	}
	if n := w.pasts(); n[endTakenOver] != 1 || n[endReleased] != 1 {
		t.Errorf("history %v", n)
	}
}

func TestEvictionOfLapsed(t *testing.T) {
	w := newWorld(t)
	first := w.actor(ttl(time.Minute))
	old := first.gets()
	w.pass(59 * time.Second)
	w.want(HeldNow)
	w.pass(time.Second)
	w.want(Expired)

	second := w.actor()
	h := second.gets()
	if h.Record.Outcome != "acquired_after_reap (ttl_expired)" || *h.Record.Takeover != TTLExpired {
		t.Errorf("outcome %q, takeover %v", h.Record.Outcome, h.Record.Takeover)
	}
	if len(second.events) != 1 || !second.events[0].Evicted {
		t.Errorf("told %+v, want the eviction of a live holder", second.events)
	}
	// The evicted must not touch what is its successor's.
	var lost *TakenOverError
	if err := old.amend(func(r *Record) { r.Gate = "satisfied:0<=1" }); !errors.As(err, &lost) {
		t.Errorf("the evicted wrote its gate: %v", err)
	}
	if err := old.Release(); !errors.As(err, &lost) || lost.Kind != TTLExpired || lost.By != second.id {
		t.Errorf("release of the evicted: %v (%+v)", err, lost)
	}
	v := w.want(HeldNow)
	if len(v.Holders) != 1 || v.Holders[0].ID() != second.id || v.Holders[0].Record.Gate != "none" {
		t.Errorf("holders %+v", v.Holders)
	}
	if n := w.pasts(); n[endTakenOver] != 1 || n[endReleased] != 0 {
		t.Errorf("history %v, want one takeover", n)
	}
}

// Of several that are passed, the gravest is reported, with its name.
func TestGravestTakeoverIsReported(t *testing.T) {
	w := newWorld(t)
	unseen, dead := w.actor(shared), w.actor(shared)
	dead.gets()
	h := unseen.gets()
	w.lives(7, proc.Unknown)
	if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
		t.Fatal(err)
	}
	unseen.dies()
	dead.dies()
	next := w.actor(letBe).waits()
	w.pass(grace)
	got := next.gets().Record
	if got.Outcome != "acquired_after_reap (unverifiable)" || *got.Takeover != Unverifiable || got.Previous.ID != unseen.id {
		t.Errorf("%s, %v, previous %+v", got.Outcome, got.Takeover, got.Previous)
	}
	if n := w.pasts(); n[endTakenOver] != 2 {
		t.Errorf("history %v", n)
	}
}

// fullDisk leaves room for empty files only, and for what is written into others in
// their place.
func fullDisk(d *Dir) (room func()) {
	write := d.host.write
	d.host.write = func(fd int, b []byte, off int64) error {
		if len(b) > 0 {
			return unix.ENOSPC
		}
		return write(fd, b, off)
	}
	return func() { d.host.write = write }
}

// A takeover is in the record of who takes over before the mark is on whom it takes over
// from. Cut short, as by a full disk, it is told again by the next, and never not at all.
func TestTakeoverIsRecordedBeforeItIsMarked(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	first.gets()
	first.dies()
	second := w.actor(letBe)
	if ok, err := second.step(); !ok {
		t.Fatal(err)
	}
	fullDisk(second.d)
	if err := second.settle(t.Context()); !errors.As(err, new(*UnusableError)) {
		t.Errorf("a takeover that cannot be recorded: %v", err)
	}
	v := w.want(Stale)
	if len(v.Holders) != 1 || v.Holders[0].ID() != first.id || v.Holders[0].note != (note{}) {
		t.Errorf("held by %+v", v.Holders)
	}
	if n := w.pasts(); n[endTakenOver] != 0 {
		t.Errorf("history %v", n)
	}
	if r := w.actor(letBe).gets().Record; r.Outcome != "acquired_after_reap (stale_pid)" || r.Previous.ID != first.id {
		t.Errorf("the next: %s, after %+v", r.Outcome, r.Previous)
	}
}

// A takeover that cannot be seen by anybody else is none, and is told by the next.
func TestTakeoverThatCannotBeMarked(t *testing.T) {
	for name, set := range map[string]func(w *world) *actor{
		"dead": func(w *world) *actor {
			a := w.actor()
			a.gets()
			a.dies()
			return a
		},
		"lapsed": func(w *world) *actor {
			a := w.actor(ttl(time.Minute))
			a.gets()
			w.pass(time.Minute)
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := set(w)
			state := w.view().State
			// It can be neither written to nor unlinked.
			lock := w.file(entry{kindExclusive, 1}.name() + lockSuffix)
			if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)); err != nil {
				t.Fatal(err)
			}
			second := w.actor(letBe)
			ok, err := second.step()
			if ok {
				err = second.settle(t.Context())
			}
			if !errors.As(err, new(*UnusableError)) {
				t.Errorf("%v", err)
			}
			if v := w.want(state); len(v.Holders) != 1 || v.Holders[0].ID() != first.id || len(v.Waiting) != 0 {
				t.Errorf("held by %+v", v.Holders)
			}
		})
	}
}

// What cannot be recorded has not changed.
func TestChangeThatCannotBeRecorded(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	room := fullDisk(h.d)
	for what, change := range map[string]func(func(*Record)) error{"update": h.update, "amend": h.amend} {
		if err := change(func(r *Record) { r.Gate = "satisfied:1<=1" }); err == nil || h.Record.Gate != "none" {
			t.Errorf("%s: %v, gate %s", what, err, h.Record.Gate)
		}
	}
	room()
	if g := w.want(HeldNow).Holders[0].Record.Gate; g != "none" {
		t.Errorf("gate %s", g)
	}
}

// A hold that cannot be recorded is none, and nothing of it is left.
func TestHoldThatCannotBeRecorded(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	waiter, comer := w.actor().waits(), w.actor()
	entry := waiter.hold.entry
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	const rounds = 10
	leaks := 0
	for i, a := range append([]*actor{waiter}, slices.Repeat([]*actor{comer}, rounds)...) {
		fullDisk(a.d)
		before := openFDs(t)
		if ok, err := a.step(); ok || !errors.Is(err, unix.ENOSPC) || !errors.As(err, new(*UnusableError)) || a.hold != nil {
			t.Errorf("%d: %v, %v", i, ok, err)
		}
		if a == comer {
			leaks += openFDs(t) - before
		}
		if v := w.want(Free); len(v.Waiting) != 0 {
			t.Errorf("%d: it waits", i)
		}
	}
	if leaks >= rounds {
		t.Errorf("%d descriptors are left", leaks)
	}
	names, err := os.ReadDir(w.path)
	if err != nil || len(names) != 2 { // the guard, the history
		t.Errorf("left %v, %v", names, err)
	}
	if h := w.actor().gets(); h.entry.seq <= entry.seq {
		t.Errorf("number %d after %d", h.entry.seq, entry.seq)
	}
}

// What is told of a takeover, by how grave it is. Unknown is graver than a dead holder,
// which harms nothing but what it left running.
func TestTookOver(t *testing.T) {
	kind := func(k Takeover) *Takeover { return &k }
	passed := func(k Takeover) *Ticket {
		tk := tk(1, "x", Dead)
		tk.Kind, tk.Record.Owner = k, "ann"
		return tk
	}
	for _, tt := range []struct {
		name    string
		had     *Takeover
		kind    Takeover
		joins   string
		want    *Takeover
		outcome string
	}{
		{"none before", kind(NoTakeover), StalePID, "", kind(StalePID), "acquired_after_reap (stale_pid)"},
		{"a graver one", kind(StalePID), TTLExpired, "", kind(TTLExpired), "acquired_after_reap (ttl_expired)"},
		{"a lesser one", kind(Unverifiable), StalePID, "", kind(Unverifiable), ""},
		{"as grave a one", kind(StalePID), StalePID, "", kind(StalePID), ""},
		{"a dead one, of unknown before", nil, StalePID, "", nil, ""},
		{"a live one, of unknown before", nil, TTLExpired, "", kind(TTLExpired), "acquired_after_reap (ttl_expired)"},
		{"joined", kind(NoTakeover), StalePID, anID, kind(StalePID), ""},
	} {
		r := &Record{Takeover: tt.had, Joins: tt.joins}
		r.tookOver(passed(tt.kind))
		if (r.Takeover == nil) != (tt.want == nil) || r.Takeover != nil && *r.Takeover != *tt.want || r.Outcome != tt.outcome {
			t.Errorf("%s: %v, %q", tt.name, r.Takeover, r.Outcome)
		}
		if r.Takeover != tt.had && (r.Previous == nil || *r.Previous != Previous{idOf(1), "ann"}) {
			t.Errorf("%s: after %+v", tt.name, r.Previous)
		}
	}
	// Of one whose record cannot be read nothing is known but how it ended.
	r := new(Record)
	r.tookOver(&Ticket{Kind: Unverifiable})
	if *r.Takeover != Unverifiable || *r.Previous != (Previous{}) {
		t.Errorf("%v after %+v", r.Takeover, r.Previous)
	}
}

// A run says of its window the worst that any hold around it says, in whatever order
// they are asked.
func TestInherit(t *testing.T) {
	kind := func(k Takeover) *Takeover { return &k }
	said := func(k *Takeover, survivors, gate string) *Record {
		return &Record{Takeover: k, Survivors: survivors, Gate: gate, Previous: &Previous{Owner: k.text()}}
	}
	clean := said(kind(NoTakeover), "none", "none")
	for _, tt := range []struct {
		name            string
		around          []*Record
		takeover        string
		survivors, gate string
	}{
		{"clean", []*Record{clean}, "none", "none", "none"},
		{"dead", []*Record{clean, said(kind(StalePID), "drained:1", "none")}, "stale_pid", "drained:1", "none"},
		{"not recorded", []*Record{clean, said(nil, "", "")}, "unknown", "", "none"},
		{"dead and not recorded", []*Record{said(kind(StalePID), "idle:1", "none"), said(nil, "", "")}, "unknown", "", "none"},
		{"not recorded and lapsed", []*Record{said(nil, "", ""), said(kind(TTLExpired), "unknown", "requested:1")}, "ttl_expired", "unknown", "requested:1"},
		{"unseen and lapsed", []*Record{said(kind(Unverifiable), "busy:1", "none"), said(kind(TTLExpired), "none", "none")}, "ttl_expired", "busy:1", "none"},
	} {
		for _, reversed := range []bool{false, true} {
			r := &Record{Takeover: kind(NoTakeover), Survivors: "none", Gate: "none"}
			around := slices.Clone(tt.around)
			if reversed {
				slices.Reverse(around)
			}
			for _, outer := range around {
				r.inherit(outer)
			}
			if r.Takeover.text() != tt.takeover || r.Survivors != tt.survivors || r.Gate != tt.gate {
				t.Errorf("%s, reversed %v: %s, %q, %q", tt.name, reversed, r.Takeover.text(), r.Survivors, r.Gate)
			}
			if r.Previous != nil && r.Previous.Owner != tt.takeover {
				t.Errorf("%s, reversed %v: after %+v", tt.name, reversed, r.Previous)
			}
		}
	}
	own := &Record{Gate: "satisfied:1<=1", Survivors: "busy:1"}
	own.inherit(said(kind(NoTakeover), "busy:2", "timed_out_proceeded:2>1"))
	if own.Gate != "satisfied:1<=1" || own.Survivors != "busy:1" {
		t.Errorf("its own: %s, %s", own.Gate, own.Survivors)
	}
}

func (k *Takeover) text() string {
	if k == nil {
		return "unknown"
	}
	return k.String()
}

// Whoever asks whether a holder lives gets the same answer, and from the same
// place: not one looks at the process itself. Whom all see alive is no process at all,
// and whom all see dead is this one. (Defect 12.)
func TestOnePredicate(t *testing.T) {
	none, ours := 1<<22+1, os.Getpid() // the first is beyond any pid_max
	for _, tt := range []struct {
		is  proc.Liveness
		pid int
	}{{proc.Alive, none}, {proc.Running, none}, {proc.Unknown, none}, {proc.Gone, ours}} {
		dead := tt.is == proc.Gone
		for name, says := range map[string]func(w *world, h *Hold, fd int) (alive bool){
			"status": func(w *world, _ *Hold, _ int) bool {
				v := w.view()
				if v.State != HeldNow && v.State != Stale {
					t.Errorf("%v: state %v", tt.is, v.State)
				}
				return v.State == HeldNow
			},
			"acquire": func(w *world, _ *Hold, _ int) bool {
				ok, err := w.actor(noWait, letBe).step()
				if ok == errors.As(err, new(*BusyError)) {
					t.Errorf("%v: acquired %v, %v", tt.is, ok, err)
				}
				return !ok
			},
			"acquire in the queue": func(w *world, _ *Hold, _ int) bool {
				ok, err := w.actor(letBe).step()
				if err != nil {
					t.Error(err)
				}
				return !ok
			},
			"wait": func(w *world, _ *Hold, _ int) bool {
				d, _ := w.process()
				err := d.WaitFree(t.Context(), Caller{UID: os.Getuid()}, time.Minute, func(Event) { w.pass(time.Minute) })
				if err != nil && !errors.As(err, new(*TimeoutError)) {
					t.Error(err)
				}
				return err != nil
			},
			"reap": func(w *world, h *Hold, _ int) bool {
				d, _ := w.process()
				reaped, err := d.Reap([]*Ticket{d.load(h.entry)})
				if err != nil {
					t.Error(err)
				}
				return len(reaped) == 0
			},
			"the keeper": func(w *world, h *Hold, fd int) bool {
				d, _ := w.process()
				k := &keeper{hold: &Hold{d: d, entry: h.entry, Record: h.Record, lockFD: fd}, anchor: h.Record.Anchor.Identity, anchorFD: -1}
				return !k.over()
			},
		} {
			w := newWorld(t)
			w.lives(tt.pid, proc.Alive)
			h := w.actor().gets()
			if err := h.HandOver(Party{Identity: w.identity(tt.pid)}); err != nil {
				t.Fatal(err)
			}
			w.lives(tt.pid, tt.is)
			w.asked = 0
			if alive := says(w, h, w.kept[h.Record.Body.PID]); alive == dead {
				t.Errorf("%v: %s takes it for alive: %v", tt.is, name, alive)
			}
			if w.asked == 0 {
				t.Errorf("%v: %s has not asked", tt.is, name)
			}
		}
	}
}
