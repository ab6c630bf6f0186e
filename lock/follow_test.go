//go:build linux

package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// waits is an attempt of this process that waits, and has a ticket when it returns.
func (h *host) waits() (got <-chan *Hold) {
	h.Helper()
	waiting, held := make(chan struct{}), make(chan *Hold, 1)
	once := false
	d := h.dir()
	go func() {
		hold, err := d.Acquire(context.Background(), Request{Owner: "tester", Caller: Caller{UID: -1}, Wait: true, Timeout: 5 * time.Minute,
			Notify: func(Event) {
				if !once {
					once = true
					close(waiting)
				}
			}})
		if err != nil {
			h.Error(err)
		}
		held <- hold
	}()
	<-waiting
	return held
}

// isFollowed waits until somebody waits for the kernel lock of a ticket (proc_locks(5):
// "->").
func (h *host) isFollowed(e entry) {
	h.Helper()
	var st unix.Stat_t
	if err := unix.Stat(h.path+"/"+e.name()+lockSuffix, &st); err != nil {
		h.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		table, err := os.ReadFile("/proc/locks")
		if err != nil {
			h.Fatal(err)
		}
		for line := range strings.Lines(string(table)) {
			if strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(":%d ", st.Ino)) {
				return
			}
		}
		if time.Now().After(end) {
			h.Fatal("nobody follows")
		}
	}
}

// Who stands behind a waiter hears of the end of its hold though its process lives on:
// without the look that comes a minute later.
func TestWaiterHearsThatAHoldHasEnded(t *testing.T) {
	h := newHost(t)
	first, err := h.acquire()
	if err != nil {
		t.Fatal(err)
	}
	second := h.waits()
	third := send(t, errand{Dir: h.path, Wait: true})
	third.hears(t, "waiting")
	h.isFollowed(entry{kindExclusive, 2})
	late := time.AfterFunc(followLook/2, func() { _ = third.Process.Kill() })
	defer late.Stop()
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	hold := <-second
	if hold == nil {
		t.FailNow()
	}
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	third.hears(t, "held")
}

// A ticket that ends before it is followed is looked at once more, and one that lives
// without its kernel lock is not looked at again and again.
func TestFollowerOfAFreeLock(t *testing.T) {
	h := newHost(t)
	hold, err := h.acquire()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(hold.lockFD)
	hold.lockFD = -1
	d := h.dir()
	looks := 0
	look := d.host.look
	d.host.look = func(id proc.Identity) proc.Liveness {
		looks++
		return look(id)
	}
	var late *TimeoutError
	if _, err := d.Acquire(t.Context(), Request{Owner: "tester", Wait: true, Timeout: 200 * time.Millisecond}); !errors.As(err, &late) {
		t.Fatal(err)
	}
	// Each turn looks at the holder and, if there is one, at our own ticket.
	if looks < 2 || looks > 8 {
		t.Errorf("the holder was looked at %d times", looks)
	}
}

// Who is in the way can change back and forth, a run inside a job's hold and that hold:
// each is followed once.
func TestFollowersByTurns(t *testing.T) {
	h := newHost(t)
	shared := func(r *Request) { r.Mode = Shared }
	one, err := h.acquire(shared)
	if err != nil {
		t.Fatal(err)
	}
	other, err := h.acquire(shared)
	if err != nil {
		t.Fatal(err)
	}
	a := &attempt{d: h.dir()}
	turn := func() {
		for _, e := range []entry{one.entry, other.entry} {
			v := new(vigil)
			a.follow(v, e)
			if len(v.fds) != 1 {
				t.Errorf("%v is not followed", e)
			}
			v.close()
		}
	}
	turn()
	before := openFDs(t)
	for range 20 {
		turn()
	}
	if after := openFDs(t); after > before+5 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	a.unfollow()
}

// Whoever wakes us again and again costs us no more than one instance of inotify beside
// the one in use.
func TestSleepClosesOneAfterTheOther(t *testing.T) {
	h := newHost(t)
	hold, err := h.acquire()
	if err != nil {
		t.Fatal(err)
	}
	a := &attempt{d: h.dir()} // its patience is over
	before := openFDs(t)
	for range 50 {
		v := new(vigil)
		if !a.d.watchFile(v, hold.entry) {
			t.Fatal("no instance of inotify is left")
		}
		a.sleep(v, &Ticket{entry: hold.entry})
		if now := openFDs(t); now > before+5 {
			t.Fatalf("%d descriptors before, %d now", before, now)
		}
	}
	a.closing.Wait()
}

// Once its kernel lock was free a ticket is followed no more: it is looked at once, and
// then only if it is another's turn to be without one.
func TestFollowEndsWithTheLock(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	hold := holder.gets()
	a := w.actor().waits()
	free := a.hold.entry // of whom nobody has the lock
	if err := unix.Flock(a.hold.lockFD, unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	follow := func(e entry) time.Duration {
		v := new(vigil)
		a.follow(v, e)
		return v.limit
	}
	before := openFDs(t)
	for range 10 {
		if err := unix.Flock(hold.lockFD, unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if limit := follow(hold.entry); limit != 0 || len(a.followed) != 1 {
			t.Fatalf("limit %s, followed %v", limit, a.followed)
		}
		if err := unix.Flock(hold.lockFD, unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		poll([]unix.PollFd{{Fd: int32(a.followed[hold.entry].fd), Events: unix.POLLIN}}, time.Minute)
		for i, tt := range []struct {
			e    entry
			want time.Duration
		}{{hold.entry, time.Millisecond}, {hold.entry, 0}, {free, time.Millisecond}, {free, 0}} {
			if limit := follow(tt.e); limit != tt.want || len(a.followed) != 0 {
				t.Errorf("%d: limit %s, want %s; followed %v", i, limit, tt.want, a.followed)
			}
		}
	}
	if after := openFDs(t); after >= before+5 {
		t.Errorf("%d descriptors more", after-before)
	}
}
