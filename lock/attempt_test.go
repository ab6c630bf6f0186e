//go:build linux

package lock

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// Until a keeper has taken over, a hold lives and dies with the process that takes it,
// whomever it is for. (Defect 56.)
func TestHeldIsAnchoredToTheTaker(t *testing.T) {
	w := newWorld(t)
	w.lives(7, proc.Alive)
	first := w.actor()
	fh := first.gets()
	a := w.actor(letBe, func(r *Request) { r.Anchor = Party{Identity: w.identity(7), Comm: "bash"} }).waits()
	if r := w.want(HeldNow).Waiting[0].Record; r.Anchor.PID != 7 || r.Body.PID != a.pid {
		t.Errorf("while it waits: anchor %d, body %d", r.Anchor.PID, r.Body.PID)
	}
	if err := fh.Release(); err != nil {
		t.Fatal(err)
	}
	a.gets()
	if r := w.want(HeldNow).Holders[0].Record; r.Anchor.PID != a.pid || !r.Embodied() {
		t.Errorf("held and not handed over: anchor %d, body %d", r.Anchor.PID, r.Body.PID)
	}
	a.dies()
	w.want(Stale)
}

func TestRecordOfAHold(t *testing.T) {
	w := newWorld(t)
	a := w.actor(timeout(time.Minute))
	a.d.host.runnable = func() (int, error) { return 6, nil }
	w.pass(3 * time.Second)
	r := a.gets().Record
	if r.HeldAt.Boot-r.RequestedAt.Boot != 3*time.Second || r.HeldAt.UTC.Sub(r.RequestedAt.UTC) != 3*time.Second {
		t.Errorf("asked at %v, held at %v", r.RequestedAt, r.HeldAt)
	}
	if r.Deadline == nil || r.Deadline.Boot-r.RequestedAt.Boot != time.Minute || r.Deadline.UTC.Sub(r.RequestedAt.UTC) != time.Minute {
		t.Errorf("asked at %v, deadline %v", r.RequestedAt, r.Deadline)
	}
	if r.RunnableAtAcquire == nil || *r.RunnableAtAcquire != 6 || r.Outcome != "acquired" || r.Gate != "none" || r.Survivors != "none" || *r.Takeover != NoTakeover {
		t.Errorf("%+v", r)
	}
	step := w.actor(within(a.id))
	step.d.host.runnable = func() (int, error) { return 0, errors.New("unreadable") }
	if r := step.gets().Record; r.Outcome != "joined" || r.Joins != a.id || r.RunnableAtAcquire != nil {
		t.Errorf("inside: %+v", r)
	}
}

// Whoever waits is told who has the host, who is in the way, and its place.
func TestPlace(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	first.gets()
	step := w.actor(within(first.id))
	step.gets()
	var before *actor
	for place := 1; place <= 3; place++ {
		a := w.actor()
		for range 2 { // the second time it has a ticket
			h, v, e, err := a.turn()
			if h != nil || err != nil {
				t.Fatal(h, err)
			}
			v.close()
			if e.Place != place || e.Holder.ID() != first.id || before != nil && e.Blocker.Seq != before.hold.entry.seq {
				t.Errorf("place %d, holder %d, blocker %d; want place %d", e.Place, e.Holder.Seq, e.Blocker.Seq, place)
			}
		}
		before = a
	}
}

// A waiter that was passed as left, or whose ticket is gone, has lost its place and not
// its patience. (Defect 47.)
func TestPassedWaiterGoesToTheEnd(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	fh := first.gets()
	for name, pass := range map[string]func(a *actor) error{
		"noted":   func(a *actor) error { return a.d.writeNote(a.hold.entry, func(n *note) { n.Left = true }) },
		"removed": func(a *actor) error { return a.d.remove(a.hold.entry) },
	} {
		a := w.actor().waits()
		old := a.hold.entry
		next := w.actor().waits()
		if err := pass(a); err != nil {
			t.Fatal(err)
		}
		_, v, e, err := a.turn()
		if err != nil || e.Place != 2 { // one waits before it: nobody is before itself
			t.Errorf("%s: place %d, %v", name, e.Place, err)
		}
		v.close()
		if a.hold.entry.seq <= next.hold.entry.seq {
			t.Errorf("%s: number %d before %d", name, a.hold.entry.seq, next.hold.entry.seq)
		}
		if _, err := os.Stat(w.file(old.name() + lockSuffix)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: its old ticket is there: %v", name, err)
		}
		next.abandon()
		a.abandon()
		if v := w.want(HeldNow); len(v.Waiting) != 0 {
			t.Errorf("%s: %d wait", name, len(v.Waiting))
		}
	}
	if err := fh.Release(); err != nil {
		t.Error(err)
	}
}

// A wait that times out leaves the queue at once and says who was in the way.
func TestTimeoutLeavesTheQueue(t *testing.T) {
	h := newHost(t)
	first := send(t, errand{Dir: h.path})
	id := first.hears(t, "held").ID
	var e Event
	told := 0
	began := time.Now()
	_, err := h.acquire(func(r *Request) {
		r.Wait, r.Timeout = true, 150*time.Millisecond
		r.Notify = func(got Event) {
			if told++; told > 1 {
				return
			}
			e = got
			// Nobody said for whom it is: for this process.
			if w := h.view().Waiting; len(w) != 1 || !w[0].Record.Embodied() || w[0].Record.Anchor.PID != os.Getpid() {
				t.Errorf("waiting %+v", w)
			}
		}
	})
	if told != 1 {
		t.Errorf("told %d times that it waits", told)
	}
	var timeout *TimeoutError
	if !errors.As(err, &timeout) || timeout.Blocker.ID() != id || timeout.Waited < 150*time.Millisecond || timeout.Waited > time.Since(began) {
		t.Errorf("%+v", err)
	}
	if e.Blocker.ID() != id || e.Holder.ID() != id || e.Place != 1 || e.Deadline.Before(began.Add(100*time.Millisecond)) || e.Deadline.After(time.Now().Add(time.Minute)) || e.Waited > time.Since(began) {
		t.Errorf("told %+v", e)
	}
	if v := h.want(HeldNow); len(v.Waiting) != 0 {
		t.Errorf("%d wait", len(v.Waiting))
	}
}

func TestAcquireRefuses(t *testing.T) {
	h := newHost(t)
	dead := plain(t, "idle")
	id := h.identity(dead.Process.Pid)
	dead.killed(t)
	if _, err := h.acquire(func(r *Request) { r.Anchor = Party{Identity: id} }); !errors.Is(err, ErrAnchorGone) {
		t.Errorf("for a dead process: %v", err)
	}
	d := h.dir()
	d.host.self.PIDNS = 0
	if _, err := d.Acquire(t.Context(), Request{}); !errors.As(err, new(*UnusableError)) {
		t.Errorf("without a pid namespace: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a signal")
	cancel(why)
	if _, err := h.dir().Acquire(ctx, Request{Owner: "x"}); !errors.Is(err, why) || !errors.As(err, new(*InterruptedError)) {
		t.Errorf("interrupted: %v", err)
	}
	h.want(Free)
	if names, _ := os.ReadDir(h.path); len(names) > 1 {
		t.Errorf("left %v", names)
	}
}

// WaitFree returns when an exclusive acquire would be let in, and takes nothing.
func TestWaitFree(t *testing.T) {
	h := newHost(t)
	me := Caller{UID: unix.Getuid()}
	if err := h.dir().WaitFree(t.Context(), me, time.Minute, nil); err != nil {
		t.Errorf("free: %v", err)
	}
	first := send(t, errand{Dir: h.path, Shared: true})
	id := first.hears(t, "held").ID
	var timeout *TimeoutError
	looks := 0
	if err := h.dir().WaitFree(t.Context(), me, 50*time.Millisecond, func(Event) { looks++ }); !errors.As(err, &timeout) || timeout.Blocker.ID() != id {
		t.Errorf("beside a shared holder: %v", err)
	}
	if looks != 1 {
		t.Errorf("it looked %d times, though nothing happened", looks)
	}
	if err := h.dir().WaitFree(t.Context(), Caller{UID: unix.Getuid(), HoldID: id}, time.Minute, nil); !errors.As(err, new(*NestedError)) {
		t.Errorf("inside: %v", err)
	}
	told, done := make(chan Event, 10), make(chan error)
	go func() { done <- h.dir().WaitFree(t.Context(), me, time.Minute, func(e Event) { told <- e }) }()
	if e := <-told; e.Blocker.ID() != id || e.Holder.ID() != id {
		t.Errorf("told %+v", e)
	}
	if v := h.want(HeldNow); len(v.Waiting) != 0 {
		t.Error("it has a ticket")
	}
	first.in.Close()
	first.hears(t, "released")
	if err := <-done; err != nil {
		t.Error(err)
	}
	d, err := OpenToLook(Location{Path: h.path + "/none"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.WaitFree(t.Context(), me, time.Minute, nil); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// The job's end hands its holds to their keepers, and nobody else's. (Defect 53.)
func TestEndJob(t *testing.T) {
	w := newWorld(t)
	job := w.sharingJob(7)
	other := w.sharingJob(8)
	run := w.actor(shared)
	run.gets()
	orphaned := w.sharingJob(9)
	orphaned.dies() // its keeper
	record := func(id string) *Record {
		for _, h := range w.want(HeldNow).Holders {
			if h.ID() == id {
				return h.Record
			}
		}
		t.Fatalf("%s does not hold", id)
		return nil
	}
	d, _ := w.process()
	closed := 0
	end := func(id proc.Identity) []*Ticket {
		t.Helper()
		ended, err := d.EndJob(id, func(r *Record) { closed++; r.Version = "closed" })
		if err != nil {
			t.Fatal(err)
		}
		return ended
	}
	w.pass(time.Second)
	if ended := end(w.identity(7)); len(ended) != 1 || ended[0].ID() != job.id || closed != 1 || ended[0].Record.JobEndedAt == nil {
		t.Errorf("ended %+v", ended)
	}
	if r := record(job.id); r.Anchor.PID != job.pid || r.Anchor.PID != r.Body.PID || r.Version != "closed" || *r.JobEndedAt != w.clock {
		t.Errorf("%+v", r)
	}
	if r := record(other.id); r.Anchor.PID != 8 || r.JobEndedAt != nil || r.Version == "closed" {
		t.Errorf("another job's: %+v", r)
	}
	if ended := end(w.identity(7)); len(ended) != 0 {
		t.Errorf("ended again: %+v", ended)
	}
	if ended := end(w.identity(run.pid)); len(ended) != 0 {
		t.Errorf("a run's hold ends by itself: %+v", ended)
	}
	if ended := end(w.identity(9)); len(ended) != 1 || ended[0].Record.JobEndedAt != nil || closed != 1 {
		t.Errorf("whose keeper is gone: %+v", ended)
	}
	if r := record(orphaned.id); r.Anchor.PID != 9 {
		t.Errorf("whose keeper is gone: %+v", r)
	}
	// Another user's job is not ours to end.
	d.uid++
	if ended := end(w.identity(8)); len(ended) != 0 {
		t.Errorf("another user's: %+v", ended)
	}
}

// Whatever is done, no descriptor stays open: each is a ticket, an inotify instance, a
// process that cannot be reaped.
func TestNothingLeaks(t *testing.T) {
	h := newHost(t)
	waited := func(r *Request) { r.Wait, r.Timeout = true, time.Millisecond }
	anchor := plain(t, "idle")
	forIt := func(r *Request) { r.Anchor = Party{Identity: h.identity(anchor.Process.Pid)} }
	once := func() {
		d, err := Open(Location{Path: h.path, Scope: Private})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		take := func(change ...func(*Request)) (*Hold, error) {
			r := Request{Owner: "x", Caller: Caller{UID: unix.Getuid()}, Join: JoinTicket}
			for _, c := range change {
				c(&r)
			}
			return d.Acquire(t.Context(), r)
		}
		hold, err := take(forIt)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := take(); err == nil {
			t.Fatal("two hold")
		}
		if _, err := take(waited, forIt); err == nil {
			t.Fatal("two hold")
		}
		if _, err := d.Look(); err != nil {
			t.Fatal(err)
		}
		if err := d.writeNote(hold.entry, func(*note) {}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.History(); err != nil {
			t.Fatal(err)
		}
		_ = d.WaitFree(t.Context(), Caller{}, time.Millisecond, nil)
		if _, err := d.Release("", Caller{UID: unix.Getuid() + 1}, false); err == nil {
			t.Fatal("released by a stranger")
		}
		if err := hold.Release(); err != nil {
			t.Fatal(err)
		}
		if hold, err = take(); err != nil {
			t.Fatal(err)
		}
		if err := hold.HandOver(Party{Identity: h.identity(anchor.Process.Pid)}); err != nil {
			t.Fatal(err)
		}
		keepers := h.keepers()
		if _, err := d.Release(hold.Record.ID, Caller{UID: unix.Getuid()}, false); err != nil {
			t.Fatal(err)
		}
		for _, k := range keepers {
			ends(t, k)
		}
	}
	for range 3 {
		once()
	}
	before := openFDs(t)
	for range 15 {
		once()
	}
	// The runtime may open some of its own, and what is closed beside us is closed later.
	after := openFDs(t)
	for end := time.Now().Add(30 * time.Second); after > before+5 && time.Now().Before(end); after = openFDs(t) {
		time.Sleep(time.Millisecond)
	}
	if after > before+5 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// A keeper sleeps on its anchor and its ticket, and on nothing else: it has a descriptor
// for each, uses no CPU, and an event that changes nothing wakes it once. (R9.)
func TestKeeperRests(t *testing.T) {
	h, _, keeper, _ := keptHost(t, errand{})
	fds := openFiles(t, keeper)
	watches := map[string]int{}
	for _, link := range fds {
		for _, kind := range []string{"inotify", "pidfd"} {
			if strings.Contains(link, kind) {
				watches[kind]++
			}
		}
	}
	if watches["inotify"] == 0 || watches["pidfd"] == 0 {
		t.Errorf("it watches %v: %v", watches, fds)
	}
	rests := func(when string) {
		t.Helper()
		before, err := proc.CPUTicks(keeper)
		if err != nil {
			t.Fatal(err)
		}
		// On a loaded machine it may not get a tick's worth in this time: then try again.
		for range 5 {
			time.Sleep(200 * time.Millisecond)
			if p, err := proc.Stat(keeper); err != nil || p.State == 'R' {
				continue
			}
			after, err := proc.CPUTicks(keeper)
			if err != nil {
				t.Fatal(err)
			}
			if after <= before+2 {
				return
			}
			before = after
		}
		t.Errorf("%s, it does not rest", when)
	}
	rests("asleep")
	d := h.dir()
	if err := d.writeNote(h.want(HeldNow).Holders[0].entry, func(*note) {}); err != nil {
		t.Fatal(err)
	}
	rests("woken for nothing")
}

// A wait ends when its time is over to the moment. It says who was in the way, and what
// that one is like by then.
func TestWaitTimesOut(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	fh := first.gets()
	behind := w.actor().waits()
	a := w.actor(timeout(time.Minute))
	w.seeing(a.d)
	w.pass(3 * time.Second)
	told := 0
	a.req.Notify = func(e Event) {
		told++
		if e.Blocker.ID() != behind.hold.Record.ID || e.Holder.ID() != first.id || e.Place != 2 || e.Waited != 3*time.Second || !e.Deadline.Equal(w.clock.UTC.Add(57*time.Second)) {
			t.Errorf("told %+v", e)
		}
		w.pass(57 * time.Second)
		behind.abandon()
	}
	_, err := a.queue(t.Context())
	var timeout *TimeoutError
	if !errors.As(err, &timeout) || told != 1 || timeout.Waited != time.Minute || timeout.Blocker.Seq != 2 || timeout.Blocker.ID() == "" || timeout.Holder.ID() != first.id {
		t.Errorf("%+v, told %d times", err, told)
	}
	if v := w.want(HeldNow); len(v.Waiting) != 0 || a.hold != nil {
		t.Errorf("%d wait", len(v.Waiting))
	}
	a = w.actor(func(r *Request) { r.Timeout = time.Minute })
	w.seeing(a.d)
	a.req.Notify = func(Event) { w.pass(time.Minute) }
	if _, err := a.queue(t.Context()); !errors.As(err, &timeout) {
		t.Fatal(err)
	}
	if held, ok := timeout.Blocker.HeldFor(); !ok || held != 2*time.Minute {
		t.Errorf("it had the host for %s", held)
	}
	// What ends the wait before that leaves nothing either.
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a signal")
	a = w.actor()
	w.seeing(a.d)
	a.waker.close()
	if a.waker, err = newWaker(ctx); err != nil {
		t.Fatal(err)
	}
	a.req.Notify = func(Event) { cancel(why) }
	if _, err := a.queue(ctx); !errors.Is(err, why) || errors.As(err, &timeout) {
		t.Errorf("%v", err)
	}
	if v := w.want(HeldNow); len(v.Waiting) != 0 || a.hold != nil {
		t.Errorf("%d wait", len(v.Waiting))
	}
	if err := fh.Release(); err != nil {
		t.Error(err)
	}
}

// Whoever leaves the queue closes its ticket, and takes away only its own.
func TestAbandon(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(w *world, a *actor) error
		left bool // its ticket's name
	}{
		"its own": {func(*world, *actor) error { return nil }, false},
		"another's in its place": {func(w *world, a *actor) error {
			lock := a.hold.entry.name() + lockSuffix
			return errors.Join(os.Remove(w.file(lock)), a.d.replaceFile(lock, nil, 0o666))
		}, true},
		"without the guard": {func(w *world, a *actor) error {
			return errors.Join(os.Remove(w.file(guardFile)), os.Mkdir(w.file(guardFile), 0o755))
		}, true},
	} {
		w := newWorld(t)
		w.actor().gets()
		a := w.actor().waits()
		fd, lock := a.hold.lockFD, w.file(a.hold.entry.name()+lockSuffix)
		if err := tt.set(w, a); err != nil {
			t.Fatal(err)
		}
		a.abandon()
		if a.hold != nil || unix.Fstat(fd, new(unix.Stat_t)) != unix.EBADF {
			t.Errorf("%s: its ticket is open", name)
		}
		if _, err := os.Stat(lock); (err == nil) != tt.left {
			t.Errorf("%s: its ticket: %v", name, err)
		}
	}
}

// What was wrong with a hold is wrong with what runs inside it, and not with who waited
// there and got the host when that hold had ended.
func TestNothingIsInheritedFromWhatHasEnded(t *testing.T) {
	w := newWorld(t)
	job := w.actor()
	jh := job.gets()
	if err := jh.amend(func(r *Record) { r.Survivors = "busy:2" }); err != nil {
		t.Fatal(err)
	}
	step := w.actor(within(job.id)).gets()
	second := w.actor(within(job.id)).waits()
	if err := errors.Join(jh.Release(), step.Release()); err != nil {
		t.Fatal(err)
	}
	if r := second.gets().Record; r.Survivors != "none" {
		t.Errorf("survivors %s", r.Survivors)
	}
	// Nor by what is inside one hold from another beside that.
	w = newWorld(t)
	outer, other := w.actor(shared), w.actor(shared)
	outer.gets()
	if err := other.gets().amend(func(r *Record) { r.Survivors = "busy:2" }); err != nil {
		t.Fatal(err)
	}
	if r := w.actor(within(outer.id), shared).gets().Record; r.Joins != outer.id || r.Survivors != "none" {
		t.Errorf("joins %s, survivors %s", r.Joins, r.Survivors)
	}
}

// A session reads each ticket once, and takes away what nobody stands for.
func TestTurnReadsOnce(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	holder.gets()
	dead := w.actor().waits()
	old := dead.hold.entry
	dead.dies()
	a := w.actor()
	looks := make(map[int]int)
	look := a.d.host.look
	a.d.host.look = func(id proc.Identity) proc.Liveness { looks[id.PID]++; return look(id) }
	a.waits()
	for pid, n := range looks {
		if n > 1 {
			t.Errorf("pid %d is looked at %d times", pid, n)
		}
	}
	if looks[holder.pid] == 0 {
		t.Error("nobody looked at the holder")
	}
	for _, suffix := range []string{lockSuffix, recordSuffix} {
		if _, err := os.Stat(w.file(old.name() + suffix)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what a dead waiter left: %v", err)
		}
	}
}

// An unusable directory stays what it is said to be, and of anything else it is said what
// was tried.
func TestCannot(t *testing.T) {
	d := &Dir{Location: Location{Path: "/x"}}
	known := &UnusableError{Path: "/y", Problem: "known"}
	if err := d.cannot("try", known); err != known {
		t.Errorf("%v", err)
	}
	err := d.cannot("try", unix.EIO)
	if !errors.Is(err, unix.EIO) || !errors.As(err, new(*UnusableError)) || !strings.Contains(err.Error(), "/x is unusable: cannot try: ") {
		t.Errorf("%v", err)
	}
}
