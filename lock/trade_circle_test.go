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
