//go:build linux

package lock

import (
	"errors"
	"testing"

	"github.com/org/hostlock-action/proc"
)

// job takes a shared hold as a job hook does: anchored to the job's process, in
// the hands of a keeper.
func (w *world) job() *actor {
	w.t.Helper()
	a := w.actor(shared)
	w.entrust(a.gets(), nil)
	return a
}

// entrust leaves a hold to a keeper of this world, as the record told, or as it
// is with an anchor of its own.
func (w *world) entrust(h *Hold, told *Record) {
	w.t.Helper()
	if told == nil {
		r := h.Record
		w.next++
		r.Anchor = Party{Identity: w.identity(w.next), Comm: "Runner.Worker"}
		w.lives(w.next, proc.Alive)
		told = &r
	}
	w.next++
	told.Body = Party{Identity: w.identity(w.next), Comm: "hostlock"}
	w.lives(w.next, proc.Alive)
	if err := h.become(*told, nil); err != nil {
		w.t.Fatal(err)
	}
}

// back ends a trade in this world, where no real keeper can see the anchor.
func (w *world) back(h *Hold) {
	w.t.Helper()
	job := *h.job
	job.Seq = h.entry.seq
	w.entrust(h, &job)
}

// Defect 44. An exclusive run inside the job's shared hold measures alone: it
// neither joins nor passes a stranger who came before, and the stranger does not
// wait for the job.
func TestTradeStandsInLine(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	beside := w.actor(shared)
	beside.gets()
	stranger := w.actor().waits()
	trader := w.actor(within(job.id)).waits()
	if v := w.view(); len(v.Holders) != 1 || v.Holders[0].ID() != beside.id {
		t.Fatalf("held by %v, want the other build alone: the job's hold has ended", v.Holders)
	}
	if err := beside.hold.Release(); err != nil {
		t.Fatal(err)
	}
	trader.waits() // the stranger is first
	h := stranger.gets()
	trader.waits()
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	h = trader.gets()
	if r := h.Record; r.Resumes != job.id || r.Joins != "" || r.Outcome != "acquired" || r.Mode != Exclusive {
		t.Errorf("resumes %s, joins %q, %s, %s", r.Resumes, r.Joins, r.Outcome, r.Mode)
	}
	other := w.actor(shared).waits()
	w.back(h)
	if v := w.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].ID() != job.id || v.Holders[0].Mode() != Shared {
		t.Errorf("held by %v, want the job's shared hold again", v.Holders)
	}
	other.gets() // beside it
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

// Killed while it measures, a trade leaves the job nothing: no second holder,
// and the next in line takes over from the dead.
func TestTradeKilled(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	trader := w.actor(within(job.id))
	trader.gets()
	trader.dies()
	w.want(Stale)
	h := w.actor(letBe).gets()
	if h.Record.Outcome != "acquired_after_reap (stale_pid)" || h.Record.Previous.ID != trader.id {
		t.Errorf("%s after %+v", h.Record.Outcome, h.Record.Previous)
	}
	if v := w.want(HeldNow); len(v.Holders) != 1 {
		t.Errorf("%d holders", len(v.Holders))
	}
}

// A trade whose gate is not met gives the job its shared hold back, and a crash
// between our ticket and the end of the job's leaves the job's.
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

// What cannot be traded is refused: a shared run embodies its ticket, and an
// acquire could only wait for itself.
func TestNotTradable(t *testing.T) {
	w := newWorld(t)
	run := w.actor(shared)
	run.gets()
	job := w.job()
	for name, a := range map[string]*actor{
		"inside a shared run": w.actor(within(run.id)),
		"by acquire":          w.actor(within(job.id), func(r *Request) { r.Join = RefuseNested }),
		"by acquire, joining": w.actor(within(job.id), func(r *Request) { r.Join = JoinHold }),
	} {
		if ok, err := a.step(); ok || !errors.As(err, new(*NestedError)) {
			t.Errorf("%s: admitted %v, %v", name, ok, err)
		}
	}
	if v := w.want(HeldNow); len(v.Holders) != 2 || len(v.Waiting) != 0 {
		t.Errorf("%d hold, %d wait", len(v.Holders), len(v.Waiting))
	}
}
