//go:build linux

package lock

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// deadWith is a host whose holder died and left a process running.
func deadWith(t *testing.T, mode string) (h *host, orphan int, id string) {
	t.Helper()
	h = newHost(t)
	first := send(t, errand{Dir: h.path, Child: []string{mode}})
	orphan = int(first.hears(t, "child").Seq)
	id = first.hears(t, "held").ID
	t.Cleanup(func() {
		unix.Kill(orphan, unix.SIGKILL)
		unix.Wait4(orphan, nil, 0, nil)
	})
	first.killed(t)
	h.want(Stale)
	return h, orphan, id
}

// whoeverIs matches the description of a process.
func whoeverIs(pid int) func(string) bool {
	return func(s string) bool { return strings.Contains(s, strconv.Itoa(pid)+" (") }
}

// Without waiting, survivors that still work are an answer: busy, with their
// names. The evidence stays.
func TestSurvivorsBusy(t *testing.T) {
	t.Parallel()
	h, orphan, _ := deadWith(t, "daemon-spin")
	_, err := h.acquire()
	var busy *BusyError
	if !errors.As(err, &busy) || !whoeverIs(orphan)(busy.Reason) {
		t.Fatalf("%v, want busy and the name of %d", err, orphan)
	}
	h.want(Stale)

	// They are waited for up to the deadline, and then named again.
	var told []string
	_, err = h.acquire(func(r *Request) {
		r.Wait, r.Timeout = true, 200*time.Millisecond
		r.Notify = func(e Event) { told = append(told, e.Text) }
	})
	var timeout *TimeoutError
	if !errors.As(err, &timeout) || !slices.ContainsFunc(timeout.Survivors, whoeverIs(orphan)) {
		t.Errorf("%v (%+v), want a time-out that names %d", err, timeout, orphan)
	}
	if !slices.ContainsFunc(told, whoeverIs(orphan)) {
		t.Errorf("told %q", told)
	}
	v := h.want(Stale)
	if v.Holders[0].note.Takeover != NoTakeover {
		t.Error("marked before its survivors are gone")
	}

	// An interrupted drain is taken up by the next in line.
	next := send(t, errand{Dir: h.path, Wait: true})
	for r := next.next(t); ; r = next.next(t) {
		if r.Event != "told" {
			t.Fatalf("%+v", r)
		}
		if whoeverIs(orphan)(r.Text) {
			break
		}
	}
	if err := unix.Kill(orphan, 0); err != nil {
		t.Fatalf("the survivor was killed: %v", err)
	}
	unix.Kill(orphan, unix.SIGKILL)
	if r := next.hears(t, "held"); r.Outcome != "acquired_after_reap (stale_pid)" || r.Text != "drained:1" {
		t.Errorf("%+v", r)
	}
}

func TestSurvivorsIdle(t *testing.T) {
	t.Parallel()
	h, orphan, _ := deadWith(t, "daemon")
	alive := h.identity(orphan)
	var told []string
	hold, err := h.acquire(func(r *Request) { r.Notify = func(e Event) { told = append(told, e.Text) } })
	if err != nil {
		t.Fatal(err)
	}
	if hold.Record.Survivors != "idle:1" || !slices.ContainsFunc(told, whoeverIs(orphan)) {
		t.Errorf("survivors %s, told %q", hold.Record.Survivors, told)
	}
	// Who is killed needs a moment to die, and is then readable for ever.
	pidfd, l := proc.Open(alive)
	if l != proc.Alive || poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, time.Second) {
		t.Errorf("the daemon is %v, or died", l)
	}
	unix.Close(pidfd)
}

// Sixty orphans on two cores use three percent each: that is a load.
func TestManySurvivorsAreNotIdle(t *testing.T) {
	many := func(n int, used float64) []float64 {
		us := make([]float64, n)
		for i := range us {
			us[i] = used
		}
		return us
	}
	for _, tt := range []struct {
		name string
		used []float64
		idle int
	}{
		{"a daemon", []float64{0.01}, 1},
		{"at the limit", []float64{idleBelow}, 0},
		{"a daemon beside a load", []float64{0.01, 1}, 1},
		{"daemons", many(10, 0.02), 10},
		{"a starved load", many(60, 0.033), 0},
		{"a starved load, and a daemon that did nothing", append(many(60, 0.033), 0), 1},
	} {
		limit, idle := idleLimit(tt.used), 0
		for _, u := range tt.used {
			if u < limit {
				idle++
			}
		}
		if idle != tt.idle {
			t.Errorf("%s: %d idle, want %d", tt.name, idle, tt.idle)
		}
	}
}

// An orphan that spins for ever does not cost every later job its patience.
func TestSurvivorsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.actor()
	first.gets()
	orphan := plain(t, "spin", EnvHoldID+"="+first.id)
	other := plain(t, "spin", EnvHoldID+"="+anID) // somebody else's
	first.dies()
	for _, d := range []time.Duration{0, drainPatience - time.Second} {
		w.pass(d)
		a := w.actor(noWait)
		if ok, err := a.step(); !ok {
			t.Fatal(err)
		}
		if err := a.settle(context.Background()); !errors.As(err, new(*BusyError)) || !whoeverIs(orphan.Process.Pid)(err.Error()) || whoeverIs(other.Process.Pid)(err.Error()) {
			t.Fatalf("after %v: %v", d, err)
		}
		w.want(Stale)
	}
	w.pass(time.Second)
	a := w.actor(noWait)
	h := a.gets()
	if h.Record.Survivors != "busy:1" || h.Record.Outcome != "acquired_after_reap (stale_pid)" {
		t.Errorf("%s, survivors %s", h.Record.Outcome, h.Record.Survivors)
	}
	if !slices.ContainsFunc(a.events, func(e Event) bool {
		return strings.HasPrefix(e.Text, "WARNING") && whoeverIs(orphan.Process.Pid)(e.Text)
	}) {
		t.Errorf("told %+v", a.events)
	}
}

// A dead job's processes are known by the runner's id too, but not while its
// worker may live, and never by an empty one.
func TestLeftBehind(t *testing.T) {
	env := func(vars ...string) []byte { return []byte(strings.Join(vars, "\x00") + "\x00") }
	record := func(tracking string) *Record {
		return &Record{ID: anID, Job: map[string]string{jobTrackingID: tracking}}
	}
	const gone, unseen = 3, 0
	for _, tt := range []struct {
		name string
		t    *Ticket
		env  []byte
		want bool
	}{
		{"by id", &Ticket{Record: record("")}, env("A=b", EnvHoldID+"="+anID), true},
		{"another's id", &Ticket{Record: record("")}, env(EnvHoldID + "=" + strings.Repeat("0", 32)), false},
		{"by job", &Ticket{Record: record("gh_1"), anchor: gone}, env(envTrackingID + "=gh_1"), true},
		{"by job, anchor unseen", &Ticket{Record: record("gh_1"), anchor: unseen}, env(envTrackingID + "=gh_1"), false},
		{"by an empty job", &Ticket{Record: record(""), anchor: gone}, env(envTrackingID + "="), false},
		{"unreadable", &Ticket{}, env(EnvHoldID + "=" + anID), false},
		{"no environment", &Ticket{Record: record("x"), anchor: gone}, nil, false},
	} {
		if got := leftBehind([]*Ticket{tt.t})(tt.env); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// In a sticky directory nobody can remove or rename over another user's
// ticket. Takeover, eviction and their single report work all the same.
func TestOtherUsersTicket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become two other users")
	}
	const nobody, somebody = 65534, 65533
	ticketsOf := func(h *host) (n int) {
		entries, _, err := h.dir().list()
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	t.Run("dead", func(t *testing.T) {
		h := newHost(t)
		first := send(t, errand{Dir: h.path, UID: nobody})
		id := first.hears(t, "held").ID
		if v := h.want(HeldNow); v.Holders[0].UID != nobody {
			t.Errorf("uid %d", v.Holders[0].UID)
		}
		send(t, errand{Dir: h.path, UID: somebody}).hears(t, "busy")
		first.killed(t)
		second := send(t, errand{Dir: h.path, UID: somebody, Ignore: true})
		if r := second.hears(t, "held"); r.Outcome != "acquired_after_reap (stale_pid)" {
			t.Error(r.Outcome)
		}
		if n := ticketsOf(h); n != 2 {
			t.Fatalf("%d tickets: this directory is not sticky", n)
		}
		v := h.want(HeldNow)
		if len(v.Holders) != 1 || v.Holders[0].UID != somebody || v.Holders[0].Record.Previous.ID != id {
			t.Errorf("%+v", v.Holders)
		}
		second.in.Close()
		second.hears(t, "released")
		h.want(Free) // not STALE again
		third := send(t, errand{Dir: h.path, UID: somebody})
		if r := third.hears(t, "held"); r.Outcome != "acquired" {
			t.Errorf("%s: reported twice", r.Outcome)
		}
		third.in.Close()
		third.hears(t, "released")
		// Its owner may remove it.
		fourth := send(t, errand{Dir: h.path, UID: nobody})
		fourth.hears(t, "held")
		if n := ticketsOf(h); n != 1 {
			t.Errorf("%d tickets, want one", n)
		}
		h.ends(map[string]int{endTakenOver: 1, endReleased: 2})
	})
	t.Run("lapsed", func(t *testing.T) {
		h := newHost(t)
		first := send(t, errand{Dir: h.path, UID: nobody, TTL: time.Second})
		first.hears(t, "held")
		second := send(t, errand{Dir: h.path, UID: somebody, Wait: true})
		r := second.next(t)
		if r.Event == "waiting" {
			r = second.hears(t, "held")
		}
		if r.Outcome != "acquired_after_reap (ttl_expired)" {
			t.Errorf("%+v", r)
		}
		first.in.Close()
		if r := first.hears(t, "lost"); r.Kind != "ttl_expired" {
			t.Errorf("%+v", r)
		}
		if v := h.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].UID != somebody {
			t.Errorf("%+v", v.Holders)
		}
		second.in.Close()
		second.hears(t, "released")
		h.ends(map[string]int{endTakenOver: 1, endReleased: 1})
	})
	t.Run("dead waiter", func(t *testing.T) {
		h := newHost(t)
		first := send(t, errand{Dir: h.path, UID: somebody})
		first.hears(t, "held")
		dead := send(t, errand{Dir: h.path, UID: nobody, Wait: true})
		dead.hears(t, "waiting")
		behind := send(t, errand{Dir: h.path, UID: somebody, Wait: true})
		behind.hears(t, "waiting")
		dead.killed(t)
		first.in.Close()
		if r := behind.hears(t, "held"); r.Outcome != "acquired" {
			t.Error(r.Outcome)
		}
	})
}

// stays makes a ticket's files such that nobody can unlink them or rename over them,
// as another user's are in a sticky directory: here by a mount on each. They can be
// written to all the same.
func (w *world) stays(e entry) {
	w.t.Helper()
	for _, name := range []string{e.name() + lockSuffix, e.name() + recordSuffix} {
		path := w.file(name)
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			w.t.Skipf("not allowed here: %v", err)
		}
		w.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
}

// Takeover, eviction and their single report, and a place in the queue that was
// passed, where the ticket can be neither unlinked nor renamed over. For this it takes
// no root and no second user. (Defect 49.)
func TestTicketThatStays(t *testing.T) {
	const inside = "HOSTLOCK_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), inside+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := c.CombinedOutput()
		switch {
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EACCES):
			t.Skipf("no user namespace to be had: %v", err)
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("%s", out)
		}
		return
	}
	there := func(w *world, e entry) bool {
		_, err := os.Stat(w.file(e.name() + lockSuffix))
		return err == nil
	}
	t.Run("dead", func(t *testing.T) {
		w := newWorld(t)
		first := w.actor()
		e := first.gets().entry
		w.stays(e)
		first.dies()
		w.want(Stale)
		second := w.actor(letBe)
		if r := second.gets().Record; r.Outcome != "acquired_after_reap (stale_pid)" || r.Previous.ID != first.id || !there(w, e) {
			t.Errorf("%s, after %+v; its ticket is there %v", r.Outcome, r.Previous, there(w, e))
		}
		if v := w.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].ID() != second.id {
			t.Errorf("%+v", v.Holders)
		}
		if err := second.hold.Release(); err != nil {
			t.Fatal(err)
		}
		w.want(Free) // not STALE again
		if r := w.actor(strict).gets().Record; r.Outcome != "acquired" || r.Previous != nil {
			t.Errorf("%s: reported twice", r.Outcome)
		}
		if n := w.pasts(); n[endTakenOver] != 1 || n[endReleased] != 1 {
			t.Errorf("history %v", n)
		}
	})
	t.Run("lapsed", func(t *testing.T) {
		w := newWorld(t)
		first := w.actor(ttl(time.Minute))
		e := first.gets().entry
		w.stays(e)
		w.pass(time.Minute)
		w.want(Expired)
		second := w.actor()
		if r := second.gets().Record; r.Outcome != "acquired_after_reap (ttl_expired)" || !there(w, e) {
			t.Errorf("%s; its ticket is there %v", r.Outcome, there(w, e))
		}
		w.want(HeldNow)
		if err := first.hold.amend(func(*Record) {}); !errors.As(err, new(*TakenOverError)) {
			t.Errorf("the evicted one is told %v", err)
		}
		if err := second.hold.Release(); err != nil {
			t.Fatal(err)
		}
		w.want(Free)
		if r := w.actor(strict).gets().Record; r.Outcome != "acquired" {
			t.Errorf("%s: reported twice", r.Outcome)
		}
	})
	t.Run("passed in the queue", func(t *testing.T) {
		w := newWorld(t)
		holder := w.actor()
		holder.gets()
		stopped := w.actor(timeout(time.Minute)).waits()
		e := stopped.hold.entry
		w.stays(e)
		w.pass(time.Minute + deadlineSlack + time.Second)
		next := w.actor().waits()
		if err := holder.hold.Release(); err != nil {
			t.Fatal(err)
		}
		next.gets()
		if b, err := os.ReadFile(w.file(e.name() + lockSuffix)); err != nil || !parseNote(b).Left {
			t.Errorf("nobody tells the one who was passed: %s, %v", b, err)
		}
		if stopped.stillQueued() {
			t.Error("it takes its place for its own still")
		}
	})
}

// ends compares the ends in the history.
func (h *host) ends(want map[string]int) {
	h.Helper()
	all, err := h.dir().History()
	if err != nil {
		h.Fatal(err)
	}
	got := map[string]int{}
	for _, p := range all {
		got[p.End]++
	}
	for end, n := range want {
		if got[end] != n {
			h.Errorf("history %v, want %v", got, want)
			return
		}
	}
	if len(got) != len(want) {
		h.Errorf("history %v, want %v", got, want)
	}
}
