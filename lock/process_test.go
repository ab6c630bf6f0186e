//go:build linux

package lock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A killed holder whose parent never waits: /proc/PID is there, the start time
// is right, and it is dead. The lock is taken over once.
func TestKilledHolder(t *testing.T) {
	for _, reaped := range []bool{false, true} {
		t.Run(fmt.Sprintf("reaped by its parent=%v", reaped), func(t *testing.T) {
			h := newHost(t)
			first := send(t, errand{Dir: h.path, Owner: "first"})
			id := first.hears(t, "held").ID
			h.want(HeldNow)
			if _, err := h.acquire(); !errors.As(err, new(*BusyError)) {
				t.Fatalf("beside a live holder: %v", err)
			}
			first.killed(t)
			if reaped {
				first.Wait()
			} else if p, err := proc.Stat(first.Process.Pid); err != nil || p.State != 'Z' {
				t.Fatalf("%+v, %v: no zombie", p, err)
			}
			v := h.want(Stale)
			if v.Main(Caller{}).ID() != id {
				t.Errorf("main ticket %+v", v.Main(Caller{}))
			}
			hold, err := h.acquire()
			if err != nil {
				t.Fatal(err)
			}
			if hold.Outcome() != "acquired_after_reap (stale_pid)" || hold.Record.Previous.ID != id || hold.Record.Previous.Owner != "first" {
				t.Errorf("%s, previous %+v", hold.Outcome(), hold.Record.Previous)
			}
			if err := hold.Release(); err != nil {
				t.Error(err)
			}
			if o := h.take(); o != "acquired" {
				t.Errorf("after that: %s", o)
			}
		})
	}
}

// The thread that a process began with is gone, others run on: alive.
func TestLeaderlessHolder(t *testing.T) {
	h := newHost(t)
	first := start(t, errandCmd(t, "leaderless", errand{Dir: h.path}))
	first.hears(t, "held")
	if p, err := proc.Stat(first.Process.Pid); err != nil || p.State != 'Z' {
		t.Fatalf("%+v, %v: its leader is not gone", p, err)
	}
	h.want(HeldNow)
	if _, err := h.acquire(); !errors.As(err, new(*BusyError)) {
		t.Fatalf("beside a live holder: %v", err)
	}
	first.killed(t)
	h.want(Stale)
}

// The pid of a dead holder belongs to another process now.
func TestRecycledHolder(t *testing.T) {
	h := newHost(t)
	first := send(t, errand{Dir: h.path})
	r := first.hears(t, "held")
	other := plain(t, "idle")
	id, err := proc.Identify(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	forge := func(change func(*Party)) {
		d := h.dir()
		e := entry{kindExclusive, r.Seq}
		tk := d.load(e)
		change(&tk.Record.Anchor)
		tk.Record.Body = tk.Record.Anchor
		b, err := tk.Record.encode(tk.raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.replaceFile(e.name()+recordSuffix, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	forge(func(p *Party) { p.Identity = id })
	first.killed(t)
	h.want(HeldNow) // the control: named rightly, the other process holds
	for name, change := range map[string]func(*Party){
		"by inode":      func(p *Party) { p.Identity = id; p.PIDFSIno++ },
		"by start time": func(p *Party) { p.Identity = id; p.PIDFSIno = 0; p.Start++ },
		"by boot":       func(p *Party) { p.Identity = id; p.BootID = worldBoot },
	} {
		forge(change)
		if v := h.view(); v.State != Stale {
			t.Errorf("%s: %v, want STALE", name, v.State)
		}
	}
	forge(func(p *Party) { p.Identity = id; p.PIDFSIno, p.Start = 0, 0 })
	h.want(HeldNow) // it runs, and cannot be identified
}

func TestStoppedHolder(t *testing.T) {
	h := newHost(t)
	first := send(t, errand{Dir: h.path})
	first.hears(t, "held")
	first.stopped(t)
	h.want(HeldNow)
	if _, err := h.acquire(); !errors.As(err, new(*BusyError)) {
		t.Fatalf("beside a stopped holder: %v", err)
	}
	first.signal(t, unix.SIGCONT)
	first.in.Close()
	first.hears(t, "released")
	h.want(Free)
}

// A waiter that is stopped leaves the queue 5 s after its deadline, and wakes
// to nothing.
func TestStoppedWaiter(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	first := send(t, errand{Dir: h.path})
	first.hears(t, "held")
	stopped := send(t, errand{Dir: h.path, Wait: true, Timeout: 3 * time.Second, Stop: true})
	stopped.hears(t, "waiting")
	waitid(t, stopped.Process.Pid, unix.WSTOPPED)
	behind := send(t, errand{Dir: h.path, Wait: true})
	if r := behind.hears(t, "waiting"); r.Place != 2 {
		t.Errorf("place %d, want 2", r.Place)
	}
	first.in.Close()
	first.hears(t, "released")
	behind.hears(t, "held")
	stopped.signal(t, unix.SIGCONT)
	stopped.hears(t, "timeout")
	v := h.want(HeldNow)
	if len(v.Waiting) != 0 {
		t.Errorf("%d still wait", len(v.Waiting))
	}
	behind.in.Close()
	behind.hears(t, "released")
}

func TestFortyAtOnce(t *testing.T) {
	for _, stale := range []bool{false, true} {
		t.Run(fmt.Sprintf("stale=%v", stale), func(t *testing.T) {
			h := newHost(t)
			if stale {
				first := send(t, errand{Dir: h.path})
				first.hears(t, "held")
				first.killed(t)
				h.want(Stale)
			}
			var all []*helper
			for range 40 {
				all = append(all, send(t, errand{Dir: h.path, Barrier: true}))
			}
			for _, a := range all {
				a.hears(t, "ready")
			}
			for _, a := range all {
				fmt.Fprintln(a.in)
			}
			var won []report
			for _, a := range all {
				switch r := a.next(t); r.Event {
				case "held":
					won = append(won, r)
				case "busy":
				default:
					t.Errorf("%+v", r)
				}
			}
			want := "acquired"
			if stale {
				want = "acquired_after_reap (stale_pid)"
			}
			if len(won) != 1 || won[0].Outcome != want {
				t.Errorf("%d won: %+v, want one: %s", len(won), won, want)
			}
			if v := h.want(HeldNow); len(v.Holders) != 1 || len(v.Waiting) != 0 {
				t.Errorf("%d hold, %d wait", len(v.Holders), len(v.Waiting))
			}
		})
	}
}

// Thirty wait and are served in their order; two of them die in the queue.
func TestServedInOrder(t *testing.T) {
	h := newHost(t)
	first := send(t, errand{Dir: h.path})
	first.hears(t, "held")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all []*helper
	var want []string
	for i := range 30 {
		e := errand{Dir: h.path, Wait: true, Once: true, Report: true, Owner: "w" + strconv.Itoa(i)}
		c := errandCmd(t, "hold", e)
		c.ExtraFiles = []*os.File{w}
		a := start(t, c)
		if r := a.hears(t, "waiting"); r.Place != i+1 {
			t.Errorf("place %d, want %d", r.Place, i+1)
		}
		all = append(all, a)
		if i != 10 && i != 20 {
			want = append(want, e.Owner)
		}
	}
	w.Close()
	all[10].killed(t)
	all[20].killed(t)
	all[20].Wait()
	first.in.Close()
	var got []string
	for s := bufio.NewScanner(r); s.Scan(); {
		got = append(got, s.Text())
	}
	if !slices.Equal(got, want) {
		t.Errorf("served %v\nwant   %v", got, want)
	}
	for i, a := range all {
		if i != 10 && i != 20 {
			if r := a.hears(t, "held"); r.Outcome != "acquired" {
				t.Errorf("%d: %s: a waiter's death is no takeover", i, r.Outcome)
			}
		}
	}
}

// Shared holders come one after the other, and never all leave: an exclusive
// waiter is served all the same.
func TestSharedDoNotStarveExclusive(t *testing.T) {
	h := newHost(t)
	first := send(t, errand{Dir: h.path, Shared: true})
	first.hears(t, "held")
	second := send(t, errand{Dir: h.path, Shared: true})
	second.hears(t, "held") // the control: shared beside shared
	waiter := send(t, errand{Dir: h.path, Wait: true})
	waiter.hears(t, "waiting")
	late := send(t, errand{Dir: h.path, Shared: true})
	late.hears(t, "busy")
	queued := send(t, errand{Dir: h.path, Shared: true, Wait: true})
	queued.hears(t, "waiting")
	first.in.Close()
	first.hears(t, "released")
	v := h.want(HeldNow)
	if len(v.Holders) != 1 || len(v.Waiting) != 2 {
		t.Fatalf("%d hold, %d wait", len(v.Holders), len(v.Waiting))
	}
	second.in.Close()
	second.hears(t, "released")
	waiter.hears(t, "held")
	waiter.in.Close()
	waiter.hears(t, "released")
	queued.hears(t, "held")
}

// A waiter leaves the queue when the process that it waits for ends.
func TestAnchorDiesWaiting(t *testing.T) {
	h := newHost(t)
	first := send(t, errand{Dir: h.path})
	first.hears(t, "held")
	anchor := plain(t, "idle")
	id, err := proc.Identify(anchor.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		_, err := h.acquire(func(r *Request) {
			r.Anchor, r.Wait, r.Timeout = Party{Identity: id}, true, time.Minute
			r.Notify = func(Event) { close(waits) }
		})
		result <- err
	}()
	<-waits
	if v := h.view(); len(v.Waiting) != 1 {
		t.Errorf("%d wait", len(v.Waiting))
	}
	anchor.killed(t)
	if err := <-result; !errors.Is(err, ErrAnchorGone) {
		t.Errorf("%v", err)
	}
	if v := h.want(HeldNow); len(v.Waiting) != 0 {
		t.Errorf("%d still wait", len(v.Waiting))
	}
}

// Only what changes the answer wakes anybody.
func TestWaitingCostsNothing(t *testing.T) {
	h := newHost(t)
	elsewhere := newHost(t)
	anchor := plain(t, "idle")
	taker := send(t, errand{Dir: h.path, Anchor: anchor.Process.Pid})
	taker.hears(t, "held")
	taker.Wait()
	keepers := h.keepers()
	if len(keepers) != 1 {
		t.Fatalf("keepers %v", keepers)
	}
	front := send(t, errand{Dir: h.path, Wait: true})
	front.hears(t, "waiting")
	behind := send(t, errand{Dir: h.path, Wait: true})
	behind.hears(t, "waiting")
	for name, pid := range map[string]int{"keeper": keepers[0], "front": front.Process.Pid, "behind": behind.Process.Pid} {
		// It may not have gone to sleep yet: what it does once is no cost. It
		// must come to rest, and does not if it does anything again and again.
		resting := 0
		before := switches(t, pid)
		for try := 0; try < 40 && resting < 3; try++ {
			for range 20 {
				elsewhere.take()
				h.view() // a reader wakes nobody
			}
			after := switches(t, pid)
			if resting++; after != before {
				resting = 0
			}
			before = after
		}
		if resting < 3 {
			t.Errorf("the %s never rests", name)
		}
	}
	anchor.killed(t)
	front.hears(t, "held")
}

// switches counts the context switches of a process's threads.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(dir + task.Name() + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			if key, v, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(key, "ctxt_switches") {
				i, err := strconv.Atoi(strings.TrimSpace(v))
				if err != nil {
					t.Fatal(err)
				}
				n += i
			}
		}
	}
	return n
}
