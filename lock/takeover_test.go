//go:build linux

package lock

import (
	"errors"
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
