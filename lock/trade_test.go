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
	var news vigil
	defer news.close()
	hold.d.watchFile(&news, hold.entry)
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	if hold.Ended.End != endReleased || hold.Ended.ID != v.Holders[0].ID() {
		t.Errorf("ended %+v", hold.Ended)
	}
	if !ready(int(news.fds[0].Fd)) {
		t.Error("nothing wakes the steps of the job that wait beside it")
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

// If the job's shared hold cannot come back the host is free all the same, and the holder
// is told, unless the job has ended.
func TestTradeThatCannotTurnBack(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(t *testing.T, hold *Hold, anchor *helper)
		warn bool
	}{
		// Only the keeper notices.
		{"the anchor has died", func(t *testing.T, hold *Hold, anchor *helper) {
			anchor.killed(t)
			hold.d.host.look = func(proc.Identity) proc.Liveness { return proc.Alive }
		}, true},
		{"the job ends meanwhile", func(_ *testing.T, hold *Hold, anchor *helper) {
			looks := 0
			hold.d.host.look = func(id proc.Identity) proc.Liveness {
				if looks++; id.PID == anchor.Process.Pid && looks > 1 {
					return proc.Gone
				}
				return proc.Alive
			}
		}, false},
		// After it said that it is ready, before it is told to keep.
		{"the keeper is killed", func(t *testing.T, hold *Hold, _ *helper) {
			now, killed := hold.d.host.now, false
			hold.d.host.now = func() Instant {
				if b := hold.Record.Body; b.PID != hold.d.host.self.PID && !killed {
					killed = true
					if err := unix.Kill(b.PID, unix.SIGKILL); err != nil {
						t.Error(err)
					}
					waitDead(t, b.PID)
				}
				return now()
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, anchor, keeper, job := keptHost(t, errand{Shared: true})
			hold, err := h.acquire(func(r *Request) { r.Caller.HoldID = job.ID })
			if err != nil {
				t.Fatal(err)
			}
			ends(t, keeper)
			id := hold.Record.ID
			tt.fail(t, hold, anchor)
			if err := hold.Release(); err != nil || (len(hold.d.Warnings) > 0) != tt.warn {
				t.Errorf("%v, warnings %q", err, hold.d.Warnings)
			}
			h.want(Free)
			h.ends(map[string]int{endReleased: 1})
			if hold.Ended.End != endReleased || hold.Ended.ID != id || hold.Record.ID != id {
				t.Errorf("ended %+v, the record of %s", hold.Ended, hold.Record.ID)
			}
			for _, k := range h.keepers() {
				ends(t, k)
			}
		})
	}
	// Without the guard nobody can be asked, and nobody is told of a keeper.
	w := newWorld(t)
	job := w.job()
	hold := w.actor(within(job.id)).gets()
	if err := errors.Join(os.Remove(w.file(guardFile)), os.Mkdir(w.file(guardFile), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := hold.Release(); !errors.As(err, new(*UnusableError)) || len(hold.d.Warnings) > 0 {
		t.Errorf("without the guard: %v, warnings %q", err, hold.d.Warnings)
	}
	unix.Close(hold.lockFD)
	hold.lockFD = -1
}

// A trade whose job's hold cannot be taken away has not begun.
func TestTradeThatCannotBegin(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	lock := w.file(job.hold.entry.name() + lockSuffix)
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)); err != nil {
		t.Fatal(err)
	}
	trader := w.actor(within(job.id))
	if ok, err := trader.step(); ok || !errors.As(err, new(*UnusableError)) {
		t.Errorf("%v, %v", ok, err)
	}
	if v := w.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].ID() != job.id || len(v.Waiting) != 0 {
		t.Errorf("%+v", v.Holders)
	}
}

// A trade measures in a window of its own: what was wrong with the job's hold is not
// wrong with it.
func TestTradeInheritsNothing(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	w.editRecord(job.hold.entry, func(m map[string]any) { m["survivors"], m["gate"] = "busy:2", "timed_out_proceeded:9>1" })
	if r := w.actor(within(job.id)).gets().Record; r.Survivors != "none" || r.Gate != "none" {
		t.Errorf("survivors %s, gate %s", r.Survivors, r.Gate)
	}
}

// Whose trade a ticket is, for who asks.
func TestInTrade(t *testing.T) {
	here := proc.Here()
	party := func(pid int) *Party {
		return &Party{Identity: proc.Identity{PID: pid, Start: uint64(pid), PIDNS: here.PIDNS, BootID: here.BootID}}
	}
	trade := func(seq, of uint64, anchor *Party) *Ticket {
		k := tk(seq, "x", Holds)
		k.Record.Resumes, k.Record.ResumesAnchor = idOf(of), anchor
		return k
	}
	me := Caller{UID: 1000, HoldID: idOf(7), Forebears: []proc.Process{{PID: 51, Start: 51}, {PID: 50, Start: 50}}}
	as := func(uid int) Caller { c := me; c.UID = uid; return c }
	for _, tt := range []struct {
		name string
		c    Caller
		q    queue
		want uint64
	}{
		{"nobody", me, nil, 0},
		{"by id", me, queue{tk(1, "x", Holds), trade(2, 7, nil)}, 2},
		{"the first", me, queue{trade(2, 7, nil), trade(3, 7, nil)}, 2},
		{"another job's", me, queue{trade(2, 8, party(60))}, 0},
		{"another's, whose process nobody recorded", me, queue{trade(2, 8, nil)}, 0},
		{"by the job's process", me, queue{trade(2, 8, party(50))}, 2},
		{"no trade, and no id", Caller{UID: 1000}, queue{tk(1, "x", Holds)}, 0},
		{"another user's", as(1001), queue{trade(2, 7, party(50))}, 0},
		{"asked by a daemon's user", as(1), queue{trade(2, 7, party(50))}, 0},
		{"asked by root", as(0), queue{trade(2, 7, nil)}, 2},
		{"what cannot be read", me, queue{tk(1, "x", Opaque)}, 0},
	} {
		got := uint64(0)
		if k := inTrade(tt.c, tt.q); k != nil {
			got = k.Seq
		}
		if got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// Which trades of its own job a waiter watches beside whoever is in its way, and how much
// of the queue it reads to find them.
func TestTradesThatAreWatched(t *testing.T) {
	here := proc.Here()
	worker := proc.Process{PID: 50, Start: 50, Comm: "Runner.Worker"}
	anchor := &Party{Identity: proc.Identity{PID: 50, Start: 50, PIDNS: here.PIDNS, BootID: here.BootID}}
	trade := func(seq uint64, s Standing) *Ticket {
		k := tk(seq, "x", s)
		k.Record.Resumes, k.Record.ResumesAnchor = idOf(7), anchor
		return k
	}
	byID, byWorker := Caller{UID: 1000, HoldID: idOf(7)}, Caller{UID: 1000, Forebears: []proc.Process{worker}}
	shell := worker
	shell.Comm = "bash"
	byShell := Caller{UID: 1000, Forebears: []proc.Process{shell}}
	for _, tt := range []struct {
		name  string
		c     Caller
		q     queue
		held  int // how many of them hold
		seen  int // index of who is in the way
		own   uint64
		want  []uint64
		reads int
	}{
		{"one that waits", byID, queue{trade(1, Waits), tk(2, "x", Waits)}, 0, 1, 3, []uint64{1}, 2},
		{"by the worker", byWorker, queue{trade(1, Waits), tk(2, "x", Waits)}, 0, 1, 3, []uint64{1}, 2},
		{"not in a job: nothing is read", byShell, queue{trade(1, Waits), tk(2, "x", Waits)}, 0, 1, 3, nil, 0},
		{"not in a job, and it holds", byShell, queue{trade(1, Holds), tk(2, "x", Waits)}, 1, 1, 3, []uint64{1}, 0},
		{"it is in the way itself", byID, queue{trade(1, Waits)}, 0, 0, 3, nil, 1},
		{"one that has left", byID, queue{trade(1, Left), tk(2, "x", Waits)}, 0, 1, 3, nil, 2},
		{"two", byID, queue{trade(1, Waits), trade(2, Waits), tk(3, "x", Waits)}, 0, 2, 4, []uint64{1, 2}, 3},
		{"itself, and one behind it", byID, queue{tk(1, "x", Waits), trade(2, Waits), trade(3, Waits)}, 0, 0, 2, nil, 1},
		{"who has no ticket yet", byID, queue{trade(1, Waits), tk(2, "x", Waits)}, 0, 1, 0, []uint64{1}, 2},
		{"no trade is shared", byID, queue{tk(1, "s", Waits), tk(2, "s", Waits)}, 0, 0, 3, nil, 0},
	} {
		a := &attempt{req: Request{Caller: tt.c}}
		if tt.own != 0 {
			a.hold = &Hold{entry: entry{kindExclusive, tt.own}}
		}
		a.lastSeen = tt.q[tt.seen]
		reads := 0
		var got []uint64
		for _, k := range a.trades(tt.q.entries(), tt.q[:tt.held], func(e entry) *Ticket { reads++; return tt.q.load(e) }) {
			got = append(got, k.Seq)
		}
		if !slices.Equal(got, tt.want) || reads > tt.reads {
			t.Errorf("%s: %v with %d reads, want %v with %d", tt.name, got, reads, tt.want, tt.reads)
		}
	}
}

// In the queue: beside the one in the way the trade's ticket is watched, for its process
// may live on when the job holds again.
func TestWaiterWatchesItsJobsTrade(t *testing.T) {
	for name, tt := range map[string]struct {
		set   func(w *world, trade entry)
		fds   int
		limit time.Duration
	}{
		"it can be": {func(*world, entry) {}, 2, time.Minute},
		"it cannot be": {func(w *world, trade entry) {
			lock := w.file(trade.name() + lockSuffix)
			if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)); err != nil {
				w.t.Fatal(err)
			}
		}, 1, 5 * time.Second},
	} {
		w := newWorld(t)
		job := w.job()
		w.actor(shared).gets()
		trade := w.actor(within(job.id)).waits()
		w.actor().waits()
		tt.set(w, trade.hold.entry)
		second := w.actor(within(job.id))
		w.seeing(second.d)
		_, v, _, err := second.turn()
		if err != nil {
			t.Fatal(err)
		}
		if len(v.fds) != tt.fds || v.limit != tt.limit {
			t.Errorf("%s: %d descriptors, %s; want %d, %s", name, len(v.fds), v.limit, tt.fds, tt.limit)
		}
		v.close()
	}
	// Inside a hold there is no need: what it waits for is inside too.
	w := newWorld(t)
	outer := w.actor()
	outer.gets()
	w.actor(within(outer.id)).gets()
	inner := w.actor(within(outer.id))
	w.seeing(inner.d)
	_, v, _, err := inner.turn()
	if err != nil {
		t.Fatal(err)
	}
	if len(v.fds) != 2 || v.limit != 0 {
		t.Errorf("inside: %d descriptors, %s", len(v.fds), v.limit)
	}
	v.close()
}
