//go:build linux

package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// gated is an actor behind a gate that reads these numbers one after the other, the
// last for ever; for a gate on busy cores they are hundredths of a core. Each look takes
// 10 ms of the world's time. look, if set, is called with each.
func (w *world) gated(g Gate, look func(n int), numbers []int, change ...func(*Request)) *actor {
	a := w.actor(append(change, func(r *Request) { r.Gate = g })...)
	n := 0
	next := func() int {
		v := numbers[min(n, len(numbers)-1)]
		n++
		w.pass(10 * time.Millisecond)
		if look != nil {
			look(n)
		}
		return v
	}
	a.d.host.busy = func(time.Duration) (float64, error) { return float64(next()) / 100, nil }
	a.d.host.runnable = func() (int, error) {
		// There is one for the record too.
		if g.Runnable == 0 || a.hold == nil || a.hold.Record.Phase != Held {
			return numbers[0], nil
		}
		return next(), nil
	}
	return a
}

func (a *actor) settles() error {
	a.w.t.Helper()
	if ok, err := a.step(); err != nil || !ok {
		a.w.t.Fatalf("not admitted: %v", err)
	}
	return a.settle(context.Background())
}

// What was asked for is recorded as such until it is found, and what was found never
// as what was asked for. (Defects 17, 18.)
func TestGate(t *testing.T) {
	g := Gate{Runnable: 3, Timeout: 25 * time.Millisecond}
	proceed := g
	proceed.Proceed = true
	onLook := Gate{Runnable: 3, Timeout: 20 * time.Millisecond} // it falls together with the end of the second
	busy := Gate{CPU: 0.5, Timeout: 25 * time.Millisecond}
	for _, tt := range []struct {
		name    string
		g       Gate
		numbers []int
		want    string // in the record; of the error where it begins with timed_out:
		told    string
	}{
		{"met at once", g, []int{3}, "satisfied:3<=3", ""},
		{"met later", g, []int{5, 2}, "satisfied:2<=3", "gate: 5 > 3; looking once a second for up to 25ms"},
		{"met in the end", proceed, []int{5, 4, 1}, "satisfied:1<=3", "gate: 5 > 3; looking once a second for up to 25ms"},
		{"not met", g, []int{5, 4}, "timed_out:4>3", "gate: 5 > 3; looking once a second for up to 25ms"},
		{"not met, and gone on", proceed, []int{5, 4}, "timed_out_proceeded:4>3", "gate: 5 > 3; looking once a second for up to 25ms"},
		{"not met when its time is up to the moment", onLook, []int{5, 4, 1}, "timed_out:4>3", "gate: 5 > 3; looking once a second for up to 20ms"},
		{"cores at the bound", busy, []int{50}, "satisfied:0.50cores<=0.50cores", ""},
		{"cores above, then below", busy, []int{75, 0}, "satisfied:0.00cores<=0.50cores", "gate: 0.75cores > 0.50cores; looking once a second for up to 25ms"},
		{"cores never met", busy, []int{51}, "timed_out:0.51cores>0.50cores", "gate: 0.51cores > 0.50cores; looking once a second for up to 25ms"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.gated(tt.g, func(n int) {
				if v := w.view(); n == 1 && (v.State != HeldNow || v.Holders[0].Record.Gate != tt.g.requested()) {
					t.Errorf("while the gate runs: %v, gate %q", v.State, v.Holders[0].Record.Gate)
				}
			}, tt.numbers)
			err := a.settles()
			var told []string
			for _, e := range a.events {
				told = append(told, e.Text)
			}
			if strings.Join(told, "\n") != tt.told { // once
				t.Errorf("told %q, want %q", told, tt.told)
			}
			var failed *GateError
			if errors.As(err, &failed) {
				if failed.Gate != tt.want || failed.Waited != tt.g.Timeout {
					t.Errorf("%s after %s, want %s", failed.Gate, failed.Waited, tt.want)
				}
				w.want(Free)
				if n := w.pasts(); n[endReleased] != 1 {
					t.Errorf("history %v", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := w.want(HeldNow).Holders[0].Record
			if r.Gate != tt.want {
				t.Errorf("%s, want %s", r.Gate, tt.want)
			}
			// What runs is told as it was when the host was quiet enough.
			if last := tt.numbers[len(tt.numbers)-1]; tt.g.Runnable > 0 && *r.RunnableAtAcquire != last {
				t.Errorf("runnable %d, want %d", *r.RunnableAtAcquire, last)
			}
			if err := a.hold.Release(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A loser behind its gate must not write on its successor's record, nor take away its
// ticket. (Defect 22.)
func TestGateOfALoser(t *testing.T) {
	w := newWorld(t)
	var next *actor
	a := w.gated(Gate{Runnable: 3, Timeout: time.Hour}, func(n int) {
		if n == 1 {
			w.pass(time.Minute)
			next = w.actor()
			next.gets()
		}
	}, []int{1}, ttl(time.Minute))
	var lost *TakenOverError
	if err := a.settles(); !errors.As(err, &lost) || lost.Kind != TTLExpired {
		t.Errorf("%v, want to be told of the takeover", err)
	}
	v := w.want(HeldNow)
	if len(v.Holders) != 1 || v.Holders[0].ID() != next.id || v.Holders[0].Record.Gate != "none" {
		t.Errorf("%+v", v.Holders)
	}
	if err := next.hold.Release(); err != nil {
		t.Error(err)
	}
}

// strict-reap is decided before the gate is looked through, and before anything is
// held. (Defect 21.)
func TestStrictReapBeforeTheGate(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	first.gets()
	first.dies()
	a := w.gated(Gate{Runnable: 3, Timeout: 25 * time.Millisecond}, func(int) { t.Error("the gate was looked through") }, []int{9}, strict, letBe)
	ok, err := a.step()
	if ok {
		err = a.settle(context.Background())
	}
	if !errors.As(err, new(*ReapRefusedError)) {
		t.Errorf("%v, want a refusal to reap", err)
	}
	if v := w.want(Stale); len(v.Holders) != 1 || v.Holders[0].ID() != first.id {
		t.Errorf("%+v", v.Holders)
	}
}

// What ends a wait ends a gate, and nothing is held.
func TestGateInterrupted(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a signal")
	a := w.gated(Gate{Runnable: 3, Timeout: time.Hour}, func(int) { cancel(why) }, []int{9})
	if ok, err := a.step(); !ok {
		t.Fatal(err)
	}
	if err := a.settle(ctx); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	w.want(Free)

	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC) // readable, as a pidfd of a process that has ended
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	a = w.gated(Gate{Runnable: 3, Timeout: time.Hour}, nil, []int{9})
	if ok, err := a.step(); !ok {
		t.Fatal(err)
	}
	a.own = fd
	if err := a.settle(t.Context()); !errors.Is(err, ErrAnchorGone) {
		t.Errorf("%v", err)
	}
	w.want(Free)

	lives, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(lives)
	a = w.gated(Gate{Runnable: 3, Timeout: 25 * time.Millisecond}, nil, []int{9, 1})
	if ok, err := a.step(); !ok {
		t.Fatal(err)
	}
	a.own = lives
	if err := a.settle(t.Context()); err != nil {
		t.Errorf("the process that it is for lives: %v", err)
	}
	if err := a.hold.Release(); err != nil {
		t.Fatal(err)
	}

	a = w.gated(Gate{Runnable: 3, Timeout: time.Hour}, nil, []int{9})
	if ok, err := a.step(); !ok {
		t.Fatal(err)
	}
	a.d.host.runnable = func() (int, error) { return 0, errors.New("unreadable") }
	if err := a.settle(t.Context()); err == nil || errors.As(err, new(*GateError)) {
		t.Errorf("a gate that cannot be read: %v", err)
	}
	w.want(Free)
}

func TestGateCheck(t *testing.T) {
	for _, tt := range []struct {
		g     Gate
		ok    bool
		asked string
	}{
		{Gate{}, true, ""},
		{Gate{Runnable: 1, Timeout: 1}, true, "requested:1"},
		{Gate{CPU: 0.5, Timeout: 1}, true, "requested:0.50cores"},
		{Gate{Runnable: 1}, false, ""},
		{Gate{CPU: 0.5}, false, ""},
		{Gate{Runnable: 1, Timeout: -1}, false, ""},
		{Gate{Runnable: -1, Timeout: 1}, false, ""},
		{Gate{CPU: -1, Timeout: 1}, false, ""},
	} {
		if err := tt.g.Check(); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.g, err)
		}
		if tt.asked != "" && tt.g.requested() != tt.asked {
			t.Errorf("%+v: %s, want %s", tt.g, tt.g.requested(), tt.asked)
		}
		if tt.ok && tt.g.set() != (tt.asked != "") {
			t.Errorf("%+v is set: %t", tt.g, tt.g.set())
		}
	}
}

// A gate on busy cores looks at the whole host.
func TestGateOnCores(t *testing.T) {
	w := newWorld(t)
	a := w.actor(func(r *Request) { r.Gate = Gate{CPU: 4096, Timeout: time.Minute} })
	a.d.host.busy = proc.HostBusy
	if err := a.settles(); err != nil {
		t.Fatal(err)
	}
	if g := a.hold.Record.Gate; len(g) < 20 || g[:10] != "satisfied:" || g[len(g)-14:] != "<=4096.00cores" {
		t.Errorf("gate %q", g)
	}
}

// Between two looks at the runnable count there is a pause, which ends with the
// time-out at the latest.
func TestGatePauses(t *testing.T) {
	for _, tt := range []struct {
		g     Gate
		pause time.Duration
	}{{Gate{Runnable: 1}, time.Second}, {Gate{CPU: 1}, 0}} {
		host := seam{runnable: func() (int, error) { return 1, nil }, busy: func(window time.Duration) (float64, error) {
			if window != time.Second {
				t.Errorf("the look takes %s", window)
			}
			return 1, nil
		}}
		if r, pause, err := tt.g.look(&host); !r.met || pause != tt.pause || err != nil {
			t.Errorf("%+v: %+v, pause %s, %v", tt.g, r, pause, err)
		}
	}
	w := newWorld(t)
	a := w.gated(Gate{Runnable: 3, Timeout: 25 * time.Millisecond}, nil, []int{9})
	began := proc.BootTime()
	if err := a.settles(); !errors.As(err, new(*GateError)) {
		t.Fatal(err)
	}
	if took := proc.BootTime() - began; took < 20*time.Millisecond { // what two looks leave of it
		t.Errorf("three looks in %s", took)
	}
}
