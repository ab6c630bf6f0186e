//go:build linux

package lock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// meanwhile has something happen while d looks at its first process, once.
func meanwhile(d *Dir, happens func()) {
	look := d.host.look
	d.host.look = func(id proc.Identity) proc.Liveness {
		if do := happens; do != nil {
			happens = nil
			do()
		}
		return look(id)
	}
}

// trading is a job's shared hold behind a dead one. Whoever reads the two in their order
// finds the first before the trade, and nothing of the second after it.
func (w *world) trading() (trade func() *actor) {
	w.t.Helper()
	dead := w.actor(shared)
	dead.gets()
	job := w.job()
	dead.dies()
	return func() *actor {
		a := w.actor(within(job.id))
		if ok, err := a.step(); err != nil || !ok {
			w.t.Fatalf("the trade is not admitted: %v", err)
		}
		return a
	}
}

// A hold that goes from one ticket to another while somebody looks is in neither, for who
// reads the one that it left and not the one that it went to.
func TestLookAcrossATrade(t *testing.T) {
	w := newWorld(t)
	trade := w.trading()
	d, _ := w.process()
	var a *actor
	meanwhile(d, func() { a = trade() })
	v, err := d.Look()
	if err != nil || a == nil {
		t.Fatal(err)
	}
	if v.State != HeldNow || v.Main(Caller{}).ID() != a.id {
		t.Errorf("%v, held by %+v", v.State, v.Holders)
	}
}

func TestWaitFreeAcrossATrade(t *testing.T) {
	w := newWorld(t)
	trade := w.trading()
	d, _ := w.process()
	var a *actor
	meanwhile(d, func() { a = trade() })
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	err := d.WaitFree(ctx, Caller{UID: unix.Getuid()}, time.Hour, func(e Event) {
		if e.Blocker.ID() != a.id || e.Holder.ID() != a.id {
			t.Errorf("behind %+v, held by %+v", e.Blocker, e.Holder)
		}
		cancel(enough)
	})
	if !errors.Is(err, enough) {
		t.Errorf("%v: it has called a host free that is held", err)
	}
}

// What happens between the first look and the watch shows in the second look.
func TestWaitFreeLooksAgain(t *testing.T) {
	enough := errors.New("enough")
	open := func() int { return openFDs(t) }
	for _, tt := range []struct {
		name string
		// set makes what is met first, and returns what happens then, and who is in the
		// way after that; nil: nobody.
		set func(w *world) (then func() *actor)
		end func(err error) bool
	}{
		{"released", func(w *world) func() *actor {
			h := w.actor().gets()
			return func() *actor { _ = h.Release(); return nil }
		}, func(err error) bool { return err == nil }},
		{"released and taken by the next", func(w *world) func() *actor {
			h := w.actor().gets()
			return func() *actor {
				_ = h.Release()
				next := w.actor()
				next.gets()
				return next
			}
		}, func(err error) bool { return errors.Is(err, enough) }},
		{"it waited and has it", func(w *world) func() *actor {
			h := w.actor().gets()
			next := w.actor().waits()
			return func() *actor {
				_ = h.Release()
				next.gets()
				return next
			}
		}, func(err error) bool { return errors.Is(err, enough) }},
		{"it is ours", func(w *world) func() *actor {
			w.actor(shared).gets()
			return func() *actor {
				ours := w.actor(shared)
				e := ours.gets().entry
				w.editRecord(e, func(m map[string]any) { m["id"] = anID })
				return nil
			}
		}, func(err error) bool { return errors.As(err, new(*NestedError)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const rounds = 10
			leaks := 0
			for range rounds {
				w := newWorld(t)
				then := tt.set(w)
				d, _ := w.process()
				watch := w.seeing(d).host.open
				var after *actor
				before := open()
				d.host.open = func(id proc.Identity) (int, proc.Liveness) {
					if do := then; do != nil {
						then = nil
						n := open()
						after = do()
						before += open() - n
					}
					return watch(id)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				err := d.WaitFree(ctx, Caller{UID: unix.Getuid(), HoldID: anID}, time.Hour, func(e Event) {
					if after == nil || e.Blocker.ID() != after.id || e.Blocker.Standing != Holds || e.Holder.ID() != after.id {
						t.Errorf("told of %+v, held by %+v", e.Blocker, e.Holder)
					}
					cancel(enough)
				})
				cancel(nil)
				if !tt.end(err) {
					t.Errorf("ended with %v", err)
				}
				// What follows a hold goes with it.
				if after != nil {
					_ = after.hold.Release()
				}
				for end := time.Now().Add(10 * time.Second); open() > before; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						leaks++
						break
					}
				}
			}
			if leaks > 0 {
				t.Errorf("descriptors are left after %d rounds", leaks)
			}
		})
	}
}

// A wait ends when its time is over to the moment, and says who was in the way.
func TestWaitFreeTimesOut(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	holder.gets()
	waiter := w.actor().waits()
	d, _ := w.process()
	w.seeing(d)
	err := d.WaitFree(t.Context(), Caller{UID: unix.Getuid()}, time.Minute, func(e Event) {
		if e.Blocker.ID() != waiter.hold.Record.ID || e.Holder.ID() != holder.id || !e.Deadline.Equal(w.clock.UTC.Add(time.Minute)) {
			t.Errorf("told %+v", e)
		}
		w.pass(time.Minute)
	})
	var timeout *TimeoutError
	if !errors.As(err, &timeout) || timeout.Waited != time.Minute || timeout.Blocker.ID() != waiter.hold.Record.ID || timeout.Holder.ID() != holder.id {
		t.Errorf("%+v", err)
	}
}

// Any change of the tickets shows, and nothing else does.
func TestFingerprint(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	h := first.gets()
	second := w.actor().waits()
	d, _ := w.process()
	last := []revision(nil)
	changes := func(what string, want bool) {
		t.Helper()
		now, err := d.fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(now, last) == want {
			t.Errorf("%s: changed %v, want %v", what, !want, want)
		}
		last = now
	}
	changes("two tickets", true)
	w.view()
	changes("a look", false)
	if err := h.amend(func(r *Record) { r.Gate = "satisfied:1<=1" }); err != nil {
		t.Fatal(err)
	}
	changes("a record in its place", true)
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	changes("a ticket that has gone", true)
	second.gets()
	changes("who waited holds", true)
	w.actor().waits()
	changes("a new ticket", true)
}

// One ticket speaks for all: the caller's own hold, else what decides the state.
func TestMainTicket(t *testing.T) {
	stranger := Caller{UID: 1000}
	for _, tt := range []struct {
		name string
		q    queue
		c    Caller
		want uint64 // 0: none
	}{
		{"nobody", nil, stranger, 0},
		{"the first that holds", queue{tk(1, "s", Dead), tk(2, "s", Lapsed), tk(3, "s", Holds), tk(4, "s", Holds)}, stranger, 3},
		{"what cannot be read holds", queue{tk(1, "s", Lapsed), tk(2, "x", Opaque)}, stranger, 2},
		{"one that lapsed before one that died", queue{tk(1, "s", Dead), tk(2, "s", Lapsed)}, stranger, 2},
		{"one that died", queue{tk(1, "s", Dead), tk(2, "s", Dead)}, stranger, 1},
		{"its own", queue{tk(1, "s", Holds), tk(2, "s", Holds)}, Caller{UID: 1000, HoldID: idOf(2)}, 2},
		{"another user's by its id", queue{tk(1, "s", Holds), tk(2, "s", Holds)}, Caller{UID: 1001, HoldID: idOf(2)}, 1},
	} {
		v := &View{Holders: tt.q}
		got := uint64(0)
		if m := v.Main(tt.c); m != nil {
			got = m.Seq
		}
		if got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
		if own := v.Own(tt.c); (own != nil) != (tt.name == "its own") {
			t.Errorf("%s: own %+v", tt.name, own)
		}
	}
}

// How long nobody recorded is unknown, which is not 56 years.
func TestViewHeldFor(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	v := &View{dir: d}
	since := w.clock.Add(-time.Minute)
	here := Party{Identity: w.identity(1)}
	for name, tt := range map[string]struct {
		r    *Record
		want time.Duration
		ok   bool
	}{
		"no record":    {nil, 0, false},
		"no time":      {&Record{Body: here}, 0, false},
		"an empty one": {&Record{Body: here, HeldAt: new(Instant)}, 0, false},
		"a minute":     {&Record{Body: here, HeldAt: &since}, time.Minute, true},
	} {
		if got, ok := v.HeldFor(&Ticket{Record: tt.r}); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %s, %v", name, got, ok)
		}
	}
}
