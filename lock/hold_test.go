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

func TestLapsedByItsOwnRecord(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	at := func(ago time.Duration) *Instant { i := w.clock.Add(-ago); return &i }
	for _, tt := range []struct {
		name string
		ttl  int64
		held *Instant
		want bool
	}{
		{"no ttl", 0, at(time.Hour), false},
		{"within it", 60, at(59 * time.Second), false},
		{"to the moment", 60, at(time.Minute), true},
		{"long past it", 60, at(time.Hour), true},
		{"never held", 60, nil, false},
	} {
		h.Record.TTLSeconds, h.Record.HeldAt = tt.ttl, tt.held
		if got := h.lapsed(); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// Only what is not there is gone: a ticket that the kernel does not show for once is
// still ours, and nobody takes it away.
func TestTicketThatCannotBeLookedAt(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	file, err := os.Open(w.file(guardFile)) // in place of the directory: ENOTDIR
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := h.d.fd
	h.d.fd = int(file.Fd())
	_, ok := h.own()
	lost := h.lost()
	h.d.fd = dir
	if !ok || lost != nil {
		t.Errorf("ours %v, lost: %v", ok, lost)
	}
	if err := os.Rename(w.file(h.entry.name()+lockSuffix), w.file("aside")); err != nil {
		t.Fatal(err)
	}
	if _, ok := h.own(); ok || h.lost() == nil {
		t.Errorf("gone, and ours %v", ok)
	}
}

// A release writes one line into the history, takes the ticket away and closes it.
func TestRelease(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	fd := h.lockFD
	w.pass(time.Minute)
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	if h.lockFD != -1 || unix.Fstat(fd, new(unix.Stat_t)) != unix.EBADF {
		t.Error("its descriptor is open")
	}
	past, err := h.d.History()
	if err != nil || len(past) != 1 || past[0].End != endReleased || past[0].HeldSecs != 60 || past[0].EndedBy != unix.Geteuid() || past[0].ID != h.Record.ID {
		t.Errorf("history %+v, %v", past, err)
	}
	// Twice is once: it is not ours any more.
	if err := h.Release(); !errors.As(err, new(*TakenOverError)) {
		t.Errorf("again: %v", err)
	}
	if n := w.pasts(); n[endReleased] != 1 || len(n) != 1 {
		t.Errorf("history %v", n)
	}
}

// What answered a request without taking anything is not released.
func TestReleaseOfWhatWasJoined(t *testing.T) {
	w := newWorld(t)
	outer := w.actor()
	outer.gets()
	inner := w.actor(within(outer.id), func(r *Request) { r.Join, r.Gate = JoinHold, Gate{Runnable: 1, Timeout: time.Minute} })
	inner.d.host.runnable = func() (int, error) { t.Error("it looks through a gate"); return 1, nil }
	h, err := inner.d.Acquire(t.Context(), inner.req)
	if err != nil || h.Outer.ID() != outer.id {
		t.Fatalf("%+v, %v", h, err)
	}
	if err := h.Release(); err != nil {
		t.Error(err)
	}
	if v := w.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].ID() != outer.id {
		t.Errorf("%+v", v.Holders)
	}
}

// Evidence that looked clean when the window closed is not, if the host was somebody
// else's by then.
func TestReleaseAfterATakeoverIsSuspect(t *testing.T) {
	w := newWorld(t)
	h := w.actor(ttl(time.Minute)).gets()
	w.pass(time.Minute)
	w.actor().gets()
	h.Record.Evidence = &Evidence{Verdict: Clean}
	if err := h.Release(); !errors.As(err, new(*TakenOverError)) {
		t.Fatal(err)
	}
	if e := h.Ended.Evidence; e.Verdict != Suspect || len(e.Reasons) != 1 || e.Reasons[0] != (Finding{TakenOver, takenOverText}) {
		t.Errorf("%+v", e)
	}
	for _, tt := range []struct {
		had  Verdict
		r    Reason
		want Verdict
	}{
		{Clean, TakenOver, Suspect}, {VerdictUnknown, TakenOver, Suspect}, {Suspect, TakenOver, Suspect},
		{Clean, NoBound, VerdictUnknown}, {VerdictUnknown, NoBound, VerdictUnknown}, {Suspect, NoBound, Suspect},
	} {
		e := Evidence{Verdict: tt.had, Reasons: []Finding{{LowEfficiency, "before"}}}
		e.object(tt.r, "text")
		if e.Verdict != tt.want || !slices.Equal(e.Reasons, []Finding{{tt.r, "text"}, {LowEfficiency, "before"}}) {
			t.Errorf("%v and %v: %v for %v", tt.had, tt.r, e.Verdict, e.Reasons)
		}
	}
}

// A ticket that cannot be taken away is no release: whoever released it is told.
func TestReleaseThatFails(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	record := w.file(h.entry.name() + recordSuffix)
	if err := errors.Join(os.Remove(record), os.Mkdir(record, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := h.Release(); !errors.As(err, new(*UnusableError)) || errors.As(err, new(*TakenOverError)) {
		t.Errorf("%v", err)
	}
	unix.Close(h.lockFD)
	h.lockFD = -1

	// Once its directory was closed a hold cannot be released, and was not taken over.
	w = newWorld(t)
	h = w.actor().gets()
	h.d.Close()
	if err := h.Release(); !errors.As(err, new(*UnusableError)) || errors.As(err, new(*TakenOverError)) {
		t.Errorf("closed: %v", err)
	}
	w.want(HeldNow)
}

// A directory that was moved away with its guard broken is none of ours any more: nothing
// in it is touched without the guard.
func TestReleaseOfAMovedDirectory(t *testing.T) {
	for _, broken := range []bool{false, true} {
		w := newWorld(t)
		h := w.actor().gets()
		if broken {
			if err := errors.Join(os.Remove(w.file(guardFile)), os.Mkdir(w.file(guardFile), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		away := w.path + "-away"
		t.Cleanup(func() { os.RemoveAll(away) })
		if err := os.Rename(w.path, away); err != nil {
			t.Fatal(err)
		}
		if err := h.Release(); !errors.As(err, new(*TakenOverError)) || h.Ended.End != endTakenOver {
			t.Errorf("broken %v: %v, %q", broken, err, h.Ended.End)
		}
		if _, err := os.Stat(away + "/" + h.entry.name() + lockSuffix); (err == nil) != broken {
			t.Errorf("broken %v: its ticket: %v", broken, err)
		}
	}
}

// The process is named in its record.
func TestSelfParty(t *testing.T) {
	w := newWorld(t)
	d, id := w.process()
	p := d.selfParty()
	me, err := proc.Stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if p.Identity != id || p.UID != unix.Getuid() || p.Comm == "" || p.Comm != me.Comm {
		t.Errorf("%+v, want %q", p, me.Comm)
	}
}
