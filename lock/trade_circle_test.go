//go:build linux

package lock

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/org/hostlock-action/proc"
)

// job takes a shared hold as a job hook does: anchored to the job's process, in
// the hands of a keeper.
func (w *world) job() *actor {
	w.t.Helper()
	a := w.actor(shared)
	h := a.gets()
	w.next++
	w.lives(w.next, proc.Alive)
	if err := h.HandOver(Party{Identity: w.identity(w.next), Comm: "Runner.Worker"}); err != nil {
		w.t.Fatal(err)
	}
	return a
}

// back ends a trade, and checks that the job holds again.
func (w *world) back(h *Hold) {
	w.t.Helper()
	id := h.Record.Resumes
	if err := h.Release(); err != nil || len(h.d.Warnings) > 0 {
		w.t.Fatal(err, h.d.Warnings)
	}
	if h.Record.ID != id || h.Record.Mode != Shared || h.Ended.End != endReleased {
		w.t.Fatalf("after the trade %+v; the trade: %q", h.Record, h.Ended.End)
	}
}

// While a job measures, a step of the same job asks for the host behind a
// stranger. When the job holds again, the stranger waits for the job and the job for
// its step: the step is inside, and must not wait for the stranger.
func TestTradeEndsInNoCircle(t *testing.T) {
	for name, ask := range map[string]func(*Request){"shared": shared, "exclusive": func(*Request) {}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			job := w.job()
			trader := w.actor(within(job.id))
			h := trader.gets()
			stranger := w.actor().waits()
			step := w.actor(within(job.id), ask).waits()
			if got := inTrade(step.req.Caller, w.view().Holders); got == nil || got.ID() != trader.id {
				t.Fatalf("the step watches %v, want the trade that it is part of", got)
			}
			w.back(h)
			stranger.waits()
			if name == "shared" {
				if got := step.gets(); got.Record.Joins != "" && got.Record.Joins != job.id || got.Record.Mode != Shared {
					t.Errorf("joins %q, %s", got.Record.Joins, got.Record.Mode)
				}
				stranger.waits()
				return
			}
			// A second trade: it gives up the job's hold once more, and stands
			// behind the stranger.
			step.waits()
			stranger.gets()
			step.waits()
			if err := stranger.hold.Release(); err != nil {
				t.Fatal(err)
			}
			if h := step.gets(); h.Record.Resumes != job.id {
				t.Errorf("resumes %q", h.Record.Resumes)
			}
		})
	}
}

// A trade that loses its place queues again, and stands for its job as before: for
// the note on a waiting ticket may be a peer's, and the files anybody's to remove.
func TestTradeThatLostItsPlace(t *testing.T) {
	for name, lose := range map[string]func(w *world, e entry){
		"noted as left": func(w *world, e entry) { w.write(e.name()+lockSuffix, `{"left":true}`) },
		"removed":       func(w *world, e entry) { os.Remove(w.file(e.name() + lockSuffix)) },
	} {
		for _, ended := range []bool{false, true} {
			w := newWorld(t)
			job := w.job()
			other := w.actor(shared)
			other.gets()
			trader := w.actor(within(job.id)).waits()
			first := trader.hold.entry
			if ended {
				d, _ := w.process()
				if _, err := d.EndJob(trader.hold.job.Anchor.Identity, func(*Record) {}); err != nil {
					t.Fatal(err)
				}
			}
			lose(w, first)
			trader.waits()
			if r := trader.hold.Record; trader.hold.entry == first || r.Resumes != job.id || r.ResumesAnchor == nil || r.ResumesAnchor.PID != trader.hold.job.Anchor.PID {
				t.Fatalf("%s: %+v", name, r)
			}
			if err := other.hold.Release(); err != nil {
				t.Fatal(err)
			}
			h := trader.gets()
			if !ended {
				w.back(h)
				continue
			}
			if err := h.Release(); err != nil {
				t.Fatal(err)
			}
			w.want(Free)
		}
	}
}

// Who does not want to wait and is refused has given nothing up.
func TestTradeNotBegun(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	trader := w.actor(within(job.id), noWait)
	other := w.actor(shared)
	other.gets()
	if ok, err := trader.step(); ok || !errors.As(err, new(*BusyError)) {
		t.Fatalf("admitted %v, %v", ok, err)
	}
	v := w.want(HeldNow)
	if len(v.Holders) != 2 || v.Holders[0].ID() != job.id {
		t.Errorf("held by %v, want the job's hold still", v.Holders)
	}
}

// The same while the first trade still waits: nothing of the job holds then, and
// the second step is behind a stranger all the same.
func TestTradeBehindAWaitingTradeWatchesIt(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	beside := w.actor(shared)
	beside.gets()
	first := w.actor(within(job.id)).waits()
	stranger := w.actor().waits()
	second := w.actor(within(job.id)).waits()
	entries, _, err := second.d.list()
	if err != nil {
		t.Fatal(err)
	}
	got := second.trades(entries, nil, second.d.load)
	if len(got) != 1 || got[0].ID() != first.hold.Record.ID {
		t.Fatalf("the second step watches %v, want the trade that waits", got)
	}
	if got := stranger.trades(entries, nil, stranger.d.load); len(got) != 0 {
		t.Errorf("a stranger watches %v", got)
	}
	if err := beside.hold.Release(); err != nil {
		t.Fatal(err)
	}
	first.gets()
	w.back(first.hold)
	second.waits() // woken, it gives up the job's hold once more
	h := stranger.gets()
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	second.gets()
}

// A job's hold lapses while a run inside it lives. A stranger waits for the run;
// what the run starts must not wait for the stranger. (Defects 33 and 54.)
func TestNestedInALiveRunOfALapsedJob(t *testing.T) {
	w := newWorld(t)
	job := w.actor(ttl(time.Minute))
	job.gets()
	run := w.actor(within(job.id))
	run.gets()
	w.pass(time.Minute)
	stranger := w.actor().waits()
	w.actor(within(run.id)).gets()
	stranger.waits()
}

// A run inside a hold measures in that hold's window: what was wrong with it is
// wrong with the run. (R2)
func TestJoinedRunTellsOfTheHoldAroundIt(t *testing.T) {
	w := newWorld(t)
	lapsed := w.actor(ttl(time.Minute))
	lapsed.gets()
	w.pass(time.Minute)
	outer := w.actor()
	outer.gets()
	if err := outer.hold.amend(func(r *Record) { r.Survivors, r.Gate = "busy:2", "timed_out_proceeded:9>1" }); err != nil {
		t.Fatal(err)
	}
	r := w.actor(within(outer.id)).gets().Record
	if *r.Takeover != TTLExpired || r.Survivors != "busy:2" || r.Gate != "timed_out_proceeded:9>1" || r.Outcome != "joined" || r.Previous.ID != lapsed.id {
		t.Errorf("takeover %s, survivors %s, gate %s, %s, after %+v", r.Takeover, r.Survivors, r.Gate, r.Outcome, r.Previous)
	}
	clean := newWorld(t)
	outer = clean.actor()
	outer.gets()
	if r := clean.actor(within(outer.id)).gets().Record; *r.Takeover != NoTakeover || r.Survivors != "none" || r.Gate != "none" {
		t.Errorf("control: takeover %s, survivors %s, gate %s", r.Takeover, r.Survivors, r.Gate)
	}
}

// A shared acquirer has no quarrel with a shared holder past its ttl.
func TestSharedLeavesALapsedSharedHolderAlone(t *testing.T) {
	w := newWorld(t)
	old := w.actor(shared, ttl(time.Minute))
	old.gets()
	w.pass(time.Minute)
	if r := w.actor(shared).gets().Record; *r.Takeover != NoTakeover {
		t.Errorf("takeover %s", r.Takeover)
	}
	if err := old.hold.Release(); err != nil {
		t.Error(err)
	}
}

// The directory removed and made anew under a holder: somebody else may have had
// the host, and the holder says so.
func TestReleaseOfARemovedDirectory(t *testing.T) {
	for _, anew := range []bool{false, true} {
		w := newWorld(t)
		h := w.actor().gets()
		if err := os.RemoveAll(w.path); err != nil {
			t.Fatal(err)
		}
		if anew {
			if err := os.Mkdir(w.path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.Release(); !errors.As(err, new(*TakenOverError)) || h.Ended.End != endTakenOver {
			t.Errorf("made anew %v: %v, %q", anew, err, h.Ended.End)
		}
	}
}

// A keeper that is killed is no news for those who see the anchor: nobody spins.
func TestKilledKeeperWakesNobody(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	v := w.view()
	d, _ := w.process()
	w.lives(v.Holders[0].Record.Body.PID, proc.Gone)
	vigil := d.watch(d.load(job.hold.entry))
	defer vigil.close()
	if vigil.limit > 0 && vigil.limit < time.Second {
		t.Errorf("looks again every %v", vigil.limit)
	}
}
