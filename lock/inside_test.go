//go:build linux

package lock

import (
	"testing"
	"time"

	"github.com/org/hostlock-action/proc"
)

// Whatever does not fit makes a stranger: to be taken for inside is to be let in beside
// the holder. (Defects 33, 45.)
func TestInsideNeedsEverything(t *testing.T) {
	here := proc.Here()
	forebear := proc.Process{PID: 50, Start: 500}
	held := func(change func(t *Ticket)) []*Ticket {
		k := tk(1, "x", Holds)
		k.Record.Anchor = Party{Identity: proc.Identity{PID: 50, Start: 500, PIDNS: here.PIDNS, BootID: here.BootID}, Comm: "bash"}
		k.Record.Body = keeperParty
		change(k)
		return []*Ticket{k}
	}
	c := Caller{UID: 1000, Forebears: []proc.Process{{PID: 49, Start: 1}, forebear}}
	if in, err := inside(c, held(func(*Ticket) {})); in == nil || err != nil {
		t.Fatalf("the control is a stranger: %v", err)
	}
	for name, change := range map[string]func(t *Ticket){
		"another pid":           func(t *Ticket) { t.Record.Anchor.PID = 51 },
		"a recycled one":        func(t *Ticket) { t.Record.Anchor.Start++ },
		"another pid namespace": func(t *Ticket) { t.Record.Anchor.PIDNS++ },
		"another boot":          func(t *Ticket) { t.Record.Anchor.BootID = worldBoot },
		"still waiting":         func(t *Ticket) { t.Record.Phase, t.Standing = Waiting, Waits },
		"dead":                  func(t *Ticket) { t.Standing = Dead },
		"over":                  func(t *Ticket) { t.Standing = Over },
		"another user's":        func(t *Ticket) { t.UID = 1001 },
		"root's":                func(t *Ticket) { t.UID = 0 },
		"unreadable":            func(t *Ticket) { t.Record, t.Standing = nil, Opaque },
		"of several jobs":       func(t *Ticket) { t.Record.Anchor.Comm = "act" },
	} {
		if in, err := inside(c, held(change)); in != nil || err != nil {
			t.Errorf("%s: inside, %v", name, err)
		}
	}
	// A start time that nobody could read is no proof on either side.
	blind := c
	blind.Forebears = []proc.Process{{PID: 50}}
	if in, _ := inside(blind, held(func(t *Ticket) { t.Record.Anchor.Start = 0 })); in != nil {
		t.Error("without a start time: inside")
	}
	c.UID = 0
	for _, uid := range []int{1000, 0} {
		if in, _ := inside(c, held(func(t *Ticket) { t.UID = uid })); in == nil {
			t.Errorf("root is a stranger to what uid %d holds", uid)
		}
	}
	// By its id, root may join anybody's, and nobody else may.
	id := Caller{UID: 1001, HoldID: idOf(1)}
	if _, err := inside(id, held(func(*Ticket) {})); err == nil {
		t.Error("another user's id is silently a stranger's")
	}
}

// A waiter whose process is proven alive waits, whatever the kernel says of its lock.
func TestWaiterProvenAlive(t *testing.T) {
	for _, k := range []kernelLock{lockUnasked, lockHeld, lockFree} {
		if v := judge(evidence{record: waiting(false), anchor: proc.Alive, body: proc.Alive, kernel: k}); v.standing != Waits {
			t.Errorf("kernel lock %d: %v", k, v.standing)
		}
	}
}

// Of several that are passed the gravest is reported, in whatever order they are met.
func TestGravestInEitherOrder(t *testing.T) {
	for _, deadFirst := range []bool{false, true} {
		w := newWorld(t)
		a, b := w.actor(shared), w.actor(shared)
		blind, dead := a, b
		if deadFirst {
			blind, dead = b, a
		}
		a.gets()
		b.gets()
		w.lives(7, proc.Unknown)
		if err := blind.hold.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
			t.Fatal(err)
		}
		a.dies()
		b.dies()
		next := w.actor(letBe).waits()
		w.pass(grace)
		if r := next.gets().Record; *r.Takeover != Unverifiable || r.Previous.ID != blind.id || r.Outcome != "acquired_after_reap (unverifiable)" {
			t.Errorf("dead first %v: %s, previous %+v (dead: %s)", deadFirst, r.Outcome, r.Previous, dead.id)
		}
	}
}

// How a hold ended is told to its holder too.
func TestEnded(t *testing.T) {
	w := newWorld(t)
	h := w.actor(ttl(time.Minute)).gets()
	w.pass(time.Minute)
	next := w.actor().gets()
	if err := h.Release(); err == nil || h.Ended.End != endTakenOver || h.Ended.HeldSecs != 60 {
		t.Errorf("%v, ended %q after %v s", err, h.Ended.End, h.Ended.HeldSecs)
	}
	if h.lockFD != -1 {
		t.Error("its descriptor is open")
	}
	w.pass(5 * time.Second)
	if err := next.Release(); err != nil || next.Ended.End != endReleased || next.Ended.HeldSecs != 5 {
		t.Errorf("%v, ended %q after %v s", err, next.Ended.End, next.Ended.HeldSecs)
	}
}
