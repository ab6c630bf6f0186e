//go:build linux

package lock

import (
	"errors"
	"os"
	"testing"
	"time"

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
