//go:build linux

package lock

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// sharingJob makes a shared hold that another process anchors, as a job hook leaves
// one: the hold of an actor whose record names pid.
func (w *world) sharingJob(pid int) *actor {
	w.t.Helper()
	a := w.actor(shared)
	h := a.gets()
	w.lives(pid, proc.Alive)
	if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(pid), Comm: "Runner.Worker"} }); err != nil {
		w.t.Fatal(err)
	}
	return a
}

// A build that shares the host and measures in a step must not measure beside the
// other builds, and not have its share while it waits either: an exclusive stranger
// before it would wait for that. (Defect 44.)
func TestTradeWaitsWithoutItsShare(t *testing.T) {
	w := newWorld(t)
	job := w.sharingJob(7)
	other := w.actor(shared)
	oh := other.gets() // the control: shared beside shared
	if v := w.want(HeldNow); len(v.Holders) != 2 {
		t.Fatalf("%d hold", len(v.Holders))
	}
	stranger := w.actor().waits()
	bench := w.actor(within(job.id)).waits()
	v := w.want(HeldNow)
	if len(v.Holders) != 1 || v.Holders[0].ID() != other.id {
		t.Errorf("while the trade waits %d hold: %+v", len(v.Holders), v.Holders)
	}
	if r := bench.hold.Record; r.Resumes != job.id || r.ResumesAnchor == nil || r.ResumesAnchor.PID != 7 || r.Joins != "" || r.Mode != Exclusive {
		t.Errorf("the trade's record: %+v", r)
	}
	if err := oh.Release(); err != nil {
		t.Fatal(err)
	}
	bench.waits() // first come, first served
	sh := stranger.gets()
	late := w.actor(shared).waits()
	if err := sh.Release(); err != nil {
		t.Fatal(err)
	}
	late.waits()
	bench.gets()
	if v := w.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].Mode() != Exclusive || v.Holders[0].ID() == job.id {
		t.Errorf("%+v", v.Holders)
	}
	late.waits()
	// Killed, it leaves the job with nothing, and the next is told of one dead holder.
	bench.dies()
	w.want(Stale)
	late.req.IgnoreSurvivors = true
	if h := late.gets(); h.Record.Outcome != "acquired_after_reap (stale_pid)" {
		t.Error(h.Record.Outcome)
	}
}

// In a shared run, which embodies its ticket, and for another mode or way of nesting
// there is nothing to trade.
func TestTradable(t *testing.T) {
	uid := unix.Geteuid()
	kept := func(mode string, s Standing) *Ticket {
		k := tk(1, mode, s)
		k.Record.Anchor, k.Record.Body, k.UID = anchorParty, keeperParty, uid
		return k
	}
	run := tk(1, "s", Holds)
	run.UID = uid
	foreign := kept("s", Holds)
	foreign.UID++
	for name, tt := range map[string]struct {
		req   Request
		outer *Ticket
		want  bool
	}{
		"exclusive in a job's shared hold": {Request{Mode: Exclusive, Join: JoinTicket}, kept("s", Holds), true},
		"not inside":                       {Request{Mode: Exclusive, Join: JoinTicket}, nil, false},
		"shared":                           {Request{Mode: Shared, Join: JoinTicket}, kept("s", Holds), false},
		"acquire":                          {Request{Mode: Exclusive, Join: RefuseNested}, kept("s", Holds), false},
		"acquire that joins":               {Request{Mode: Exclusive, Join: JoinHold}, kept("s", Holds), false},
		"in an exclusive hold":             {Request{Mode: Exclusive, Join: JoinTicket}, kept("x", Holds), false},
		"in a shared run":                  {Request{Mode: Exclusive, Join: JoinTicket}, run, false},
		"in one that has lapsed":           {Request{Mode: Exclusive, Join: JoinTicket}, kept("s", Lapsed), false},
		"in another user's":                {Request{Mode: Exclusive, Join: JoinTicket}, foreign, false},
	} {
		if got := tradable(tt.req, tt.outer); (got != nil) != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	w := newWorld(t)
	outer := w.actor(shared)
	outer.gets()
	if _, err := w.actor(within(outer.id)).step(); !errors.As(err, new(*NestedError)) {
		t.Errorf("exclusive in a shared run: %v", err)
	}
}

// When the run ends the job shares the host again: same hold, same anchor, a keeper
// of its own; and it ends with the job.
func TestTradeTurnsBack(t *testing.T) {
	h, anchor, keeper, job := keptHost(t, errand{Shared: true})
	beside := send(t, errand{Dir: h.path, Shared: true})
	beside.hears(t, "held")
	beside.in.Close()
	beside.hears(t, "released")

	hold, err := h.acquire(func(r *Request) { r.Caller.HoldID = job.ID })
	if err != nil {
		t.Fatal(err)
	}
	ends(t, keeper) // its ticket is over
	v := h.want(HeldNow)
	if len(v.Holders) != 1 || v.Holders[0].Mode() != Exclusive || v.Holders[0].Record.Resumes != job.ID {
		t.Fatalf("%+v", v.Holders)
	}
	send(t, errand{Dir: h.path, Shared: true}).hears(t, "busy")
	waiter := send(t, errand{Dir: h.path, Shared: true, Wait: true})
	waiter.hears(t, "waiting")
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	waiter.hears(t, "held")
	v = h.want(HeldNow)
	back := v.Holders[0]
	if len(v.Holders) != 2 || back.ID() != job.ID || back.Mode() != Shared || back.Record.Anchor.PID != anchor.Process.Pid || back.Record.Embodied() || back.Record.Resumes != "" {
		t.Fatalf("%d hold; the first: %+v", len(v.Holders), back.Record)
	}
	h.ends(map[string]int{endReleased: 2})
	waiter.in.Close()
	waiter.hears(t, "released")
	anchor.killed(t)
	ends(t, back.Record.Body.PID)
	h.want(Stale)
}
