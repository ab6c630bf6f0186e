//go:build linux

package lock

import (
	"context"
	"errors"
	"maps"
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

	// They are waited for up to the deadline, which falls while they are looked at, and
	// then named again.
	var told []string
	d := h.dir()
	look, later := d.host.survivors, time.Duration(0)
	d.host.survivors = func(dead []*Ticket) Survivors {
		later = time.Second
		return look(dead)
	}
	began := d.host.now()
	d.host.now = func() Instant { return began.Add(later) }
	_, err = d.Acquire(t.Context(), Request{Owner: "tester", Wait: true, Timeout: time.Second, Notify: func(e Event) { told = append(told, e.Text) }})
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
	unharmed(t, orphan)
	unix.Kill(orphan, unix.SIGKILL)
	if r := next.hears(t, "held"); r.Outcome != "acquired_after_reap (stale_pid)" || r.Text != "drained:1" {
		t.Errorf("%+v", r)
	}
}

func TestSurvivorsIdle(t *testing.T) {
	t.Parallel()
	h, orphan, _ := deadWith(t, "daemon")
	var told []string
	hold, err := h.acquire(func(r *Request) { r.Notify = func(e Event) { told = append(told, e.Text) } })
	if err != nil {
		t.Fatal(err)
	}
	if hold.Record.Survivors != "idle:1" || !slices.ContainsFunc(told, whoeverIs(orphan)) {
		t.Errorf("survivors %s, told %q", hold.Record.Survivors, told)
	}
	unharmed(t, orphan)
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
		{"together at the limit", many(8, 0.03125), 0},
		{"a daemon beside those that are none by themselves", append(many(5, idleBelow), 0.01), 1},
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

// drains is an actor that has passed a dead run, or a dead job's hold, and looks for its
// survivors: these one after the other, the last for ever. Each look takes a second.
func (w *world) drains(looks []Survivors, kept bool, change ...func(*Request)) *actor {
	w.t.Helper()
	first := w.actor()
	h := first.gets()
	if kept {
		w.entrust(h, nil)
		delete(w.life, w.next-1)
	}
	first.dies()
	a := w.actor(change...)
	n := 0
	a.d.host.survivors = func(dead []*Ticket) Survivors {
		if len(dead) != 1 || dead[0].ID() != first.id {
			w.t.Errorf("survivors of %+v", dead)
		}
		w.pass(time.Second)
		n++
		return looks[min(n, len(looks))-1]
	}
	if ok, err := a.step(); err != nil || !ok {
		w.t.Fatal(ok, err)
	}
	return a
}

// The word for what was found, and what is told of it meanwhile.
func TestDrain(t *testing.T) {
	busy := func(pids ...int) (s Survivors) {
		for _, pid := range pids {
			s.busy, s.Busy = append(s.busy, proc.Identity{PID: pid}), append(s.Busy, strconv.Itoa(pid)+" (spin, uid 0)")
		}
		return s
	}
	idle := Survivors{Idle: []string{"5 (cached, uid 0)", "6 (agent, uid 0)"}}
	const letBe = "left running by the dead holder, idle, and let be: "
	for _, tt := range []struct {
		name  string
		looks []Survivors
		kept  bool
		want  string
		told  []string
	}{
		{"nothing", []Survivors{{}}, false, "none", nil},
		{"nothing that could be known", []Survivors{{}}, true, "unknown", nil},
		{"what cannot be read", []Survivors{{Unreadable: 1}}, false, "unknown", nil},
		{"idle", []Survivors{idle}, true, "idle:2", []string{letBe + "5 (cached, uid 0)", letBe + "6 (agent, uid 0)"}},
		{"idle, and what cannot be read", []Survivors{{Unreadable: 1, Idle: idle.Idle[:1]}}, false, "unknown", []string{letBe + "5 (cached, uid 0)"}},
		{"ended while it was looked at", []Survivors{{ended: []int{7, 8}}}, true, "drained:2", nil},
		{"ended, and idle", []Survivors{{ended: []int{7}, Idle: idle.Idle[:1]}}, false, "idle:1", []string{letBe + "5 (cached, uid 0)"}},
		{"busy and waited for", []Survivors{busy(7, 8), {ended: []int{7}}}, false, "drained:2",
			[]string{"waiting for what a dead holder left running: 7 (spin, uid 0), 8 (spin, uid 0)"}},
		{"told once", []Survivors{busy(7), busy(7), busy(8), {}}, false, "drained:2",
			[]string{"waiting for what a dead holder left running: 7 (spin, uid 0)", "waiting for what a dead holder left running: 8 (spin, uid 0)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.drains(tt.looks, tt.kept)
			a.d.host.open = func(proc.Identity) (int, proc.Liveness) { return readyFD(t), proc.Alive } // and has ended by now
			before := openFDs(t)
			if err := a.settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := openFDs(t); after > before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			var told []string
			for _, e := range a.events {
				if e.Text != "" {
					told = append(told, e.Text)
				}
			}
			if r := a.hold.Record; r.Survivors != tt.want || r.Outcome != "acquired_after_reap (stale_pid)" || !slices.Equal(told, tt.told) {
				t.Errorf("%s, %s, told %q; want %s, %q", r.Survivors, r.Outcome, told, tt.want, tt.told)
			}
			if last := a.events[len(a.events)-1]; len(last.Passed) != 1 || last.Evicted {
				t.Errorf("told at last %+v", last)
			}
		})
	}
}

// What bounds the wait for survivors: the caller's time, and everybody's patience.
func TestDrainIsBounded(t *testing.T) {
	spin := []Survivors{{busy: []proc.Identity{{PID: 7}}, Busy: []string{"7 (spin, uid 0)"}}}
	gone := func(proc.Identity) (int, proc.Liveness) { return -1, proc.Gone }
	marked := func(w *world) bool {
		v := w.view()
		return len(v.Holders) != 1 || v.Holders[0].note.Takeover != NoTakeover
	}

	w := newWorld(t)
	a := w.drains(spin, false, noWait)
	var busy *BusyError
	if err := a.settle(t.Context()); !errors.As(err, &busy) || busy.Reason != "the last holder died and left running: 7 (spin, uid 0)" {
		t.Errorf("who does not wait: %v", err)
	}
	if marked(w) {
		t.Error("marked before its survivors are gone")
	}

	// A look takes a second. What is left of its time then is waited out.
	for limit, waited := range map[time.Duration]time.Duration{500 * time.Millisecond: time.Second, time.Second: time.Second, 1050 * time.Millisecond: 2 * time.Second} {
		w = newWorld(t)
		a = w.drains(spin, false, timeout(limit))
		w.lives(7, proc.Alive)
		w.seeing(a.d)
		began := proc.BootTime()
		var late *TimeoutError
		if err := a.settle(t.Context()); !errors.As(err, &late) || !slices.Equal(late.Survivors, spin[0].Busy) || late.Waited != waited {
			t.Errorf("who waits %s: %+v", limit, err)
		}
		if took := proc.BootTime() - began; took < limit-time.Second {
			t.Errorf("who waits %s: it slept for %s", limit, took)
		}
		if marked(w) {
			t.Error("marked before its survivors are gone")
		}
	}

	// What ends any wait ends this one, and the ticket is gone.
	w = newWorld(t)
	a = w.drains(spin, false)
	w.lives(7, proc.Alive)
	w.seeing(a.d)
	ended, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ended)
	a.own = ended
	if err := a.settle(t.Context()); !errors.Is(err, ErrAnchorGone) {
		t.Errorf("%v", err)
	}
	if marked(w) {
		t.Error("marked before its survivors are gone")
	}

	// The patience is that of all who come, to the moment.
	w = newWorld(t)
	a = w.drains(spin, false, timeout(time.Hour))
	looks := 0
	a.d.host.open = func(proc.Identity) (int, proc.Liveness) {
		if looks++; looks == 1 {
			w.pass(drainPatience - time.Second) // a look takes one
		}
		return gone(proc.Identity{})
	}
	if err := a.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.hold.Record.Survivors != "busy:1" || looks != 1 {
		t.Errorf("%s after %d waits", a.hold.Record.Survivors, looks)
	}
	warning := "WARNING: still busy 15m0s after their holder died, and not waited for any longer: 7 (spin, uid 0). The measurement runs beside them"
	if !slices.ContainsFunc(a.events, func(e Event) bool { return e.Text == warning }) {
		t.Errorf("told %+v", a.events)
	}

	// Whatever becomes of the note of when it began: a peer who sets it anew each time, and
	// a disk that takes none.
	for name, spoil := range map[string]func(w *world, e entry){
		"forged": func(w *world, e entry) {
			if err := a.d.writeNote(e, func(n *note) { n.Drain = a.d.noted() }); err != nil {
				t.Error(err)
			}
		},
		"lost": func(w *world, e entry) {
			if err := a.d.writeNote(e, func(n *note) { n.Drain = nil }); err != nil {
				t.Error(err)
			}
		},
	} {
		w = newWorld(t)
		a = w.drains(spin, false, timeout(time.Hour))
		looks := 0
		a.d.host.open = func(proc.Identity) (int, proc.Liveness) {
			looks++
			w.pass(drainPatience/2 - time.Second) // a look takes one
			spoil(w, a.dead[0].entry)
			return -1, proc.Gone
		}
		if err := a.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a.hold.Record.Survivors != "busy:1" || looks != 2 {
			t.Errorf("the note is %s: %s after %d waits", name, a.hold.Record.Survivors, looks)
		}
	}

	// Nobody can be asked how long there has been patience.
	w = newWorld(t)
	a = w.drains(spin, false)
	if err := errors.Join(os.Remove(w.file(guardFile)), os.Mkdir(w.file(guardFile), 0o755)); err != nil {
		t.Fatal(err)
	}
	fd := a.hold.lockFD
	if err := a.settle(t.Context()); !errors.As(err, new(*UnusableError)) || a.hold.lockFD != -1 || unix.Fstat(fd, new(unix.Stat_t)) != unix.EBADF {
		t.Errorf("without the guard: %v, descriptor %d", err, a.hold.lockFD)
	}
}

// The patience with several dead holders is what is left of it with the first.
func TestDrainTime(t *testing.T) {
	w := newWorld(t)
	var dead []*Ticket
	for range 3 {
		a := w.actor(shared)
		a.gets()
		defer a.dies()
	}
	for pid := range w.life {
		delete(w.life, pid)
	}
	a := w.actor(letBe, shared)
	if ok, err := a.step(); !ok {
		t.Fatal(err)
	}
	dead = a.dead
	if len(dead) != 3 {
		t.Fatalf("%d are dead", len(dead))
	}
	ask := func(dead []*Ticket, want time.Duration) {
		t.Helper()
		if left, err := a.drainTime(dead); err != nil || left != want {
			t.Errorf("%s, %v; want %s", left, err, want)
		}
	}
	ask(dead[:1], 15*time.Minute)
	w.pass(time.Minute)
	ask(dead[:2], 14*time.Minute) // it begins for the second
	w.pass(time.Minute)
	ask(dead[1:2], 14*time.Minute)
	ask(dead[:2], 13*time.Minute)
	// With one that is over there is no patience to begin.
	third := dead[2]
	if err := a.d.writeNote(third.entry, func(n *note) { n.Takeover = StalePID }); err != nil {
		t.Fatal(err)
	}
	ask(dead[2:], 15*time.Minute)
	if n := a.d.load(third.entry).note; n.Drain != nil {
		t.Errorf("noted %+v", n)
	}
}

func TestWatchSurvivors(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	w.seeing(d)
	w.lives(1, proc.Alive)
	w.lives(2, proc.Unknown)
	for name, tt := range map[string]struct {
		pids    []int
		left    time.Duration
		fds     int
		limit   time.Duration
		drained []int
	}{
		"seen":             {[]int{1}, time.Minute, 1, 10 * time.Second, []int{1}},
		"little time":      {[]int{1}, time.Second, 1, time.Second, []int{1}},
		"cannot be seen":   {[]int{1, 2}, time.Minute, 1, 5 * time.Second, []int{1}},
		"has ended by now": {[]int{1, 3}, time.Minute, 1, time.Millisecond, []int{1, 3}},
	} {
		var ids []proc.Identity
		for _, pid := range tt.pids {
			ids = append(ids, w.identity(pid))
		}
		drained := make(map[int]struct{})
		v := d.watchSurvivors(ids, tt.left, drained)
		got := slices.Sorted(maps.Keys(drained))
		if len(v.fds) != tt.fds || v.limit != tt.limit || !slices.Equal(got, tt.drained) {
			t.Errorf("%s: %d descriptors, %s, drained %v", name, len(v.fds), v.limit, got)
		}
		v.close()
	}
}

// Who used what while it was looked at.
func TestSortSurvivors(t *testing.T) {
	var s Survivors
	var who []proc.Process
	var ids []proc.Identity
	for pid := range 4 {
		who, ids = append(who, proc.Process{PID: pid, Comm: "p"}), append(ids, proc.Identity{PID: pid})
	}
	s.sort(who, ids, []float64{0.01, 0.05, 0, 1}, func(id proc.Identity) proc.Liveness {
		if id.PID >= 2 {
			return proc.Gone
		}
		return proc.Alive
	})
	if !slices.Equal(s.Idle, []string{"0 (p, uid 0)"}) || !slices.Equal(s.Busy, []string{"1 (p, uid 0)"}) || !slices.Equal(s.ended, []int{2, 3}) || len(s.busy) != 1 || s.busy[0].PID != 1 {
		t.Errorf("%+v", s)
	}
}

// What cannot be read may be a survivor, and nobody else's process is one.
func TestLookForSurvivors(t *testing.T) {
	dead := []*Ticket{tk(1, "x", Dead)}
	s := lookForSurvivors(dead, func(match func([]byte) bool) ([]proc.Process, int) {
		if !match([]byte(EnvHoldID+"="+idOf(1)+"\x00")) || match([]byte(EnvHoldID+"="+idOf(2)+"\x00")) {
			t.Error("others are looked for")
		}
		return []proc.Process{{PID: 1<<22 + 1, Start: 1}}, 3 // which has ended by now
	})
	if s.Unreadable != 3 || len(s.Busy)+len(s.Idle)+len(s.ended) > 0 {
		t.Errorf("%+v", s)
	}
}

func TestJoin(t *testing.T) {
	for _, tt := range []struct {
		n    int
		want string
	}{{0, ""}, {1, "0"}, {2, "0, 1"}, {5, "0, 1, 2, 3, 4"}, {6, "0, 1, 2, 3, 4 and 1 more"}, {8, "0, 1, 2, 3, 4 and 3 more"}} {
		var names []string
		for i := range tt.n {
			names = append(names, strconv.Itoa(i))
		}
		if got := join(names); got != tt.want {
			t.Errorf("%d: %q, want %q", tt.n, got, tt.want)
		}
	}
}

// Whose children carry a mark to know them by.
func TestTraceable(t *testing.T) {
	kept := func(tracking string) *Ticket {
		k := tk(1, "x", Dead)
		k.Record.Anchor, k.Record.Body, k.Record.Job = anchorParty, keeperParty, map[string]string{jobTrackingID: tracking}
		return k
	}
	for name, tt := range map[string]struct {
		dead []*Ticket
		want bool
	}{
		"a run":               {[]*Ticket{tk(1, "x", Dead)}, true},
		"a runner's job":      {[]*Ticket{kept("gh_1")}, true},
		"a shell":             {[]*Ticket{kept("")}, false},
		"a run and a shell":   {[]*Ticket{tk(1, "x", Dead), kept("")}, false},
		"what cannot be read": {[]*Ticket{tk(1, "x", Opaque)}, false},
	} {
		if got := traceable(tt.dead); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Whoever lost the host before it acknowledged the dead has no word to say of them: the
// next is told.
func TestLoserAcknowledgesNobody(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	first.gets()
	first.dies()
	loser := w.actor(letBe)
	if ok, err := loser.step(); !ok {
		t.Fatal(err)
	}
	if err := loser.d.remove(loser.hold.entry); err != nil {
		t.Fatal(err)
	}
	if err := loser.settle(t.Context()); !errors.As(err, new(*TakenOverError)) || len(loser.events) != 0 {
		t.Errorf("%v, told %+v", err, loser.events)
	}
	if v := w.want(Stale); v.Holders[0].note != (note{}) {
		t.Errorf("noted %+v", v.Holders[0].note)
	}
	// One that finds them acknowledged has taken nothing over.
	a, b := w.actor(shared, letBe), w.actor(shared, letBe)
	for _, m := range []*actor{a, b} {
		if ok, err := m.step(); !ok {
			t.Fatal(err)
		}
	}
	for _, m := range []*actor{b, a} {
		if err := m.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.events) != 1 || len(a.events) != 0 {
		t.Errorf("told %+v and %+v", b.events, a.events)
	}
	if a.hold.Record.Survivors != "unknown" || b.hold.Record.Survivors != "unknown" {
		t.Errorf("survivors %s and %s", a.hold.Record.Survivors, b.hold.Record.Survivors)
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
