//go:build linux

package lock

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// Anybody may write into a .lock. A mark on a holder that lives within its ttl frees
// nothing, and the holder does not believe it either.
func TestForgedMark(t *testing.T) {
	for name, limit := range map[string]time.Duration{"no ttl": 0, "within its ttl": time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			holder := w.actor(ttl(limit))
			h := holder.gets()
			for _, kind := range []Takeover{StalePID, TTLExpired, Unverifiable} {
				if err := h.d.writeNote(h.entry, func(n *note) { n.Takeover, n.By = kind, anID }); err != nil {
					t.Fatal(err)
				}
				w.want(HeldNow)
				if _, err := w.actor(noWait).step(); !errors.As(err, new(*BusyError)) {
					t.Fatalf("beside a live holder that is marked: %v", err)
				}
				if err := h.lost(); err != nil {
					t.Errorf("the holder believes a mark alone: %v", err)
				}
				if (&keeper{hold: h}).removed() {
					t.Error("its keeper believes a mark alone")
				}
			}
			if err := h.amend(func(r *Record) { r.Gate = "satisfied:0<=1" }); err != nil {
				t.Error(err)
			}
			if err := h.Release(); err != nil {
				t.Error(err)
			}
			w.want(Free)
			if n := w.pasts(); n[endReleased] != 1 {
				t.Errorf("history %v", n)
			}
		})
	}
}

// A holder that has lost its ticket is told, in whatever way it went.
func TestLostTicket(t *testing.T) {
	w := newWorld(t)
	for name, lose := range map[string]func(h *Hold) error{
		"removed": func(h *Hold) error { return h.d.remove(h.entry) },
		"replaced": func(h *Hold) error {
			return errors.Join(h.d.remove(h.entry), h.d.replaceFile(h.entry.name()+lockSuffix, nil, 0o666))
		},
		"lapsed and marked": func(h *Hold) error {
			w.pass(time.Minute)
			return h.d.writeNote(h.entry, func(n *note) { n.Takeover = TTLExpired })
		},
	} {
		h := w.actor(ttl(time.Minute)).gets()
		if err := h.lost(); err != nil {
			t.Errorf("%s, before: %v", name, err)
		}
		if err := lose(h); err != nil {
			t.Fatal(err)
		}
		if err := h.lost(); !errors.As(err, new(*TakenOverError)) {
			t.Errorf("%s: %v", name, err)
		}
		if !(&keeper{hold: h}).removed() {
			t.Errorf("%s: its keeper thinks that it still has the ticket", name)
		}
		if err := h.Release(); !errors.As(err, new(*TakenOverError)) {
			t.Errorf("%s, release: %v", name, err)
		}
		if _, err := os.Stat(w.file(h.entry.name() + lockSuffix)); name == "replaced" && err != nil {
			t.Errorf("%s: the release took away what was not its own: %v", name, err)
		}
		if d, _ := w.process(); d.remove(h.entry) != nil {
			t.Fatal("cannot clean up")
		}
	}
}

// A keeper whose anchor's token cannot be read just now keeps on through any number of
// looks, and ends when the anchor is proven gone; whoever waits is bounded by the
// maximum hold time. (Defect 8.)
func TestKeeperThroughUnreadableLooks(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	h := holder.gets()
	w.lives(7, proc.Running)
	if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
		t.Fatal(err)
	}
	k := &keeper{hold: h, anchor: w.identity(7), anchorFD: -1}
	for i := range 20 {
		w.lives(7, []proc.Liveness{proc.Running, proc.Unknown}[i%2])
		if k.over() {
			t.Fatalf("look %d: the keeper lets go of what cannot be read", i)
		}
		if _, err := w.actor(noWait).step(); !errors.As(err, new(*BusyError)) {
			t.Fatalf("look %d: %v", i, err)
		}
		w.want(HeldNow)
		w.pass(time.Hour)
	}
	w.lives(7, proc.Running)
	w.pass(100*time.Hour - time.Second)
	w.want(HeldNow)
	w.pass(time.Second)
	w.want(Expired)
	w.lives(7, proc.Gone)
	if !k.over() {
		t.Error("the keeper keeps on for a dead anchor")
	}
	w.want(Stale)

	// A pidfd names one process for ever.
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	w.lives(7, proc.Running)
	k.anchorFD = fd
	if k.over() {
		t.Error("over, though its pidfd says that it lives")
	}
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if !k.over() {
		t.Error("the pidfd says that it has ended")
	}
}
