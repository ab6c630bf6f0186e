//go:build linux

package lock

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// carrier begins a process that carries a job's mark.
func carrier(t *testing.T, id string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", envTrackingID + "=" + id}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// keeperAfter is the keeper of a hold whose job has ended so long ago. It lives in the
// real world: what it waits for are processes.
func keeperAfter(t *testing.T, id string, ago time.Duration) *keeper {
	t.Helper()
	w := newWorld(t)
	h := w.actor().gets()
	h.d.host.now, h.d.host.open, h.d.host.look = now, proc.Open, proc.Look
	at := now().Add(-ago)
	h.d.host.here = proc.Here()
	h.Record.Body.BootID, h.Record.Body.TimeNS = h.d.host.here.BootID, h.d.host.here.TimeNS
	h.Record.Job, h.Record.JobEndedAt = map[string]string{jobTrackingID: id}, &at
	return &keeper{hold: h}
}

func (k *keeper) past(t *testing.T) Past {
	t.Helper()
	past, err := k.hold.d.History()
	if err != nil || len(past) != 1 {
		t.Fatalf("history: %v, %v", past, err)
	}
	return past[0]
}

func TestHoldOutlastsItsJob(t *testing.T) {
	id := "github_" + randomHex(8)
	// The child is started while its parent is waited for, and is not the parent's name or
	// group: only the mark tells. Each does its part when it is told to. What both have open
	// is at its end when neither runs any more.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	parent, child := filepath.Join(t.TempDir(), "parent"), filepath.Join(t.TempDir(), "child")
	if err := errors.Join(unix.Mkfifo(parent, 0o600), unix.Mkfifo(child, 0o600)); err != nil {
		t.Fatal(err)
	}
	tell := func(fifo string) { // whoever waits at it
		f, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err == nil {
			t.Cleanup(func() { f.Close() })
			_, err = f.WriteString("go on\n")
		}
		if err != nil {
			t.Error(err)
		}
	}
	// The parent ends when the child's last exec is done, within which it could not be told.
	cmd := exec.Command("sh", "-c", `read x <"$0"; setsid sh -c 'echo >"$0"; read x <"$1"' "$0" "$1" & read x <"$0"`, parent, child)
	cmd.Env, cmd.Stdout = []string{"PATH=/usr/bin:/bin", envTrackingID + "=" + id}, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	k := keeperAfter(t, id, 0)
	walk, told := k.hold.d.host.carrying, map[string]bool{}
	k.hold.d.host.carrying = func(match func([]byte) bool) ([]proc.Process, int) {
		found, unreadable := walk(match)
		for _, p := range found {
			fifo := child
			if p.PID == cmd.Process.Pid {
				fifo = parent
			}
			if !told[fifo] {
				told[fifo] = true
				tell(fifo)
			}
		}
		return found, unreadable
	}
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		cmd.Wait()
	}()
	k.outlast()
	for _, fifo := range []string{parent, child} {
		if !told[fifo] {
			t.Errorf("nobody looked for the %s", filepath.Base(fifo))
			tell(fifo)
		}
	}
	if !ready(int(r.Fd())) {
		t.Error("released while processes of the job run")
	}
	<-waited
	if p := k.past(t); p.End != endReleased || p.LeftRunning != nil {
		t.Errorf("ended %q, left running %v", p.End, p.LeftRunning)
	}
}

func TestJobThatNeverEndsIsNamed(t *testing.T) {
	for name, ago := range map[string]time.Duration{"waited for": 59500 * time.Millisecond, "long over": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			id := "github_" + randomHex(8)
			cmd := carrier(t, id, "sleep", "300")
			// Found before: to find it can take a loaded machine longer than the
			// second that is left for it.
			var found []proc.Process
			for len(found) == 0 {
				found, _ = proc.Carrying(func(env []byte) bool { return proc.HasEnv(env, envTrackingID, id) })
			}
			k := keeperAfter(t, id, ago)
			k.hold.d.host.carrying = func(func([]byte) bool) ([]proc.Process, int) { return found, 0 }
			began := time.Now()
			k.outlast()
			if took := time.Since(began); took > 30*time.Second { // half the patience
				t.Errorf("released after %s", took)
			}
			p := k.past(t)
			if p.LeftRunning == nil || *p.LeftRunning != 1 || !strings.Contains(p.LeftNames, strconv.Itoa(cmd.Process.Pid)) {
				t.Errorf("left running: %v %q", p.LeftRunning, p.LeftNames)
			}
			unharmed(t, cmd.Process.Pid)
		})
	}
}

func TestJobWithoutMarkWaitsForNobody(t *testing.T) {
	carrier(t, "", "sleep", "300")
	k := keeperAfter(t, "", 0)
	began := time.Now()
	k.outlast()
	if took := time.Since(began); took > 30*time.Second { // half the patience
		t.Errorf("released after %s", took)
	}
}

// A note is anybody's to write. It wakes a keeper and ends no job.
func TestNoteEndsNoJob(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	if err := h.d.writeNote(h.entry, func(*note) {}); err != nil {
		t.Fatal(err)
	}
	k := &keeper{hold: h}
	if k.jobEnded() {
		t.Error("the job has ended by a note")
	}
	if err := h.update(func(r *Record) { at := w.clock; r.JobEndedAt = &at }); err != nil {
		t.Fatal(err)
	}
	if !k.jobEnded() {
		t.Error("the record says that the job has ended")
	}
}

// walks is the keeper of a hold whose job ended just now, with processes that are these,
// one walk after the other, the last for ever. walk is called before each.
func (w *world) walks(all [][]proc.Process, walk func(n int)) (k *keeper, n *atomic.Int32) {
	w.t.Helper()
	h := w.actor(func(r *Request) { r.Job = map[string]string{jobTrackingID: "github_1"} }).gets()
	h.d = w.seeing(h.d)
	if err := h.amend(func(r *Record) { at := w.clock; r.JobEndedAt = &at }); err != nil {
		w.t.Fatal(err)
	}
	n = new(atomic.Int32)
	h.d.host.carrying = func(match func([]byte) bool) ([]proc.Process, int) {
		if !match([]byte("A=b\x00"+envTrackingID+"=github_1\x00")) || match([]byte(envTrackingID+"=github_2\x00")) {
			w.t.Error("others are looked for")
		}
		i := int(n.Add(1))
		if walk != nil {
			walk(i)
		}
		return all[min(i, len(all))-1], 1
	}
	return &keeper{hold: h, anchorFD: -1}, n
}

func self(t *testing.T) proc.Process {
	t.Helper()
	p, err := proc.Stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// readyFD is readable, as the pidfd of a process that has ended.
func readyFD(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// A keeper lets go of its hold when two walks in a row find nobody of the job, or when its
// patience is over; then it names who is left.
func TestOutlast(t *testing.T) {
	me := self(t)
	none, one := []proc.Process(nil), []proc.Process{me}
	for _, tt := range []struct {
		name  string
		walks [][]proc.Process
		each  time.Duration // that a walk takes
		mine  int           // pid of the job process
		want  int32         // walks
		left  bool
	}{
		{"nobody", [][]proc.Process{none}, time.Second, 0, 2, false},
		{"one, for a while", [][]proc.Process{one, none, one, none}, time.Second, 0, 5, false},
		{"the job process itself", [][]proc.Process{one}, time.Second, me.PID, 2, false},
		{"one that never ends", [][]proc.Process{one}, 30 * time.Second, 0, 2, true},
		{"one that never ends, between two looks", [][]proc.Process{one}, 29 * time.Second, 0, 3, true},
		{"when it is long over, a last look", [][]proc.Process{one}, time.Hour, 0, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			k, n := w.walks(tt.walks, func(int) { w.pass(tt.each) })
			k.anchor.PID = tt.mine
			k.hold.d.host.open = func(proc.Identity) (int, proc.Liveness) { return readyFD(t), proc.Alive }
			k.outlast()
			w.want(Free)
			if n.Load() != tt.want {
				t.Errorf("%d walks, want %d", n.Load(), tt.want)
			}
			p := k.past(t)
			if p.End != endReleased || (p.LeftRunning != nil) != tt.left {
				t.Errorf("%s, left running %v", p.End, p.LeftRunning)
			}
			if tt.left && (*p.LeftRunning != 1 || p.LeftNames != describe(me)) {
				t.Errorf("left running %d: %s", *p.LeftRunning, p.LeftNames)
			}
		})
	}
	t.Run("a job without a mark", func(t *testing.T) {
		w := newWorld(t)
		k, n := w.walks([][]proc.Process{one}, nil)
		k.hold.Record.Job = nil
		k.outlast()
		w.want(Free)
		if n.Load() != 0 {
			t.Errorf("%d walks", n.Load())
		}
	})
	// Another process's environment can be made to block whoever reads it.
	t.Run("a walk that blocks", func(t *testing.T) {
		w := newWorld(t)
		over := make(chan struct{})
		defer close(over)
		k, n := w.walks([][]proc.Process{one}, func(int) { <-over })
		w.pass(time.Minute)
		k.outlast()
		w.want(Free)
		if p := k.past(t); n.Load() != 1 || p.LeftRunning != nil {
			t.Errorf("%d walks, left running %v", n.Load(), p.LeftRunning)
		}
	})
	t.Run("removed meanwhile", func(t *testing.T) {
		w := newWorld(t)
		k, n := w.walks([][]proc.Process{one}, nil)
		see := k.hold.d.host.open
		w.lives(me.PID, proc.Alive)
		k.hold.d.host.open = func(id proc.Identity) (int, proc.Liveness) {
			if err := k.hold.d.remove(k.hold.entry); err != nil {
				t.Error(err)
			}
			return see(id)
		}
		k.outlast()
		if past := w.pasts(); n.Load() != 1 || len(past) != 0 {
			t.Errorf("%d walks, history %v", n.Load(), past)
		}
	})
}

// What a keeper waits for between two walks: the end of all that the last one found, and
// of its own time.
func TestWatchTheJob(t *testing.T) {
	me := self(t)
	gone := proc.Process{PID: 1<<22 + 1, Start: 1} // above the largest there can be
	never := func() int {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	const moment, hour = 100 * time.Millisecond, time.Hour
	for _, tt := range []struct {
		name  string
		all   []proc.Process
		fds   []func() int // of each process in turn; nil: it has ended by now
		then  func(h *Hold) error
		left  time.Duration
		want  bool
		sleep time.Duration // at least
	}{
		{"all have ended", []proc.Process{me, me}, []func() int{func() int { return readyFD(t) }, func() int { return readyFD(t) }}, nil, hour, true, 0},
		{"one has not", []proc.Process{me, me}, []func() int{func() int { return readyFD(t) }, never}, nil, moment, true, moment},
		{"one cannot be found, one has not ended", []proc.Process{gone, me}, []func() int{never}, nil, moment, true, moment},
		{"none can be found", []proc.Process{gone}, nil, nil, hour, true, 0},
		{"one ended before it could be watched", []proc.Process{me, me}, []func() int{nil, never}, nil, hour, true, time.Millisecond},
		{"one that cannot be watched", []proc.Process{me}, []func() int{func() int { return -1 }}, nil, moment, true, moment},
		{"one that cannot be watched, one has ended", []proc.Process{me, me}, []func() int{func() int { return -1 }, func() int { return readyFD(t) }}, nil, moment, true, moment},
		{"the time is over", []proc.Process{me}, []func() int{never}, nil, 0, false, 0},
		{"the time is long over", []proc.Process{me}, []func() int{never}, nil, -hour, false, 0},
		{"its ticket is gone", []proc.Process{me}, []func() int{never}, func(h *Hold) error { return h.d.remove(h.entry) }, hour, false, 0},
		{"somebody writes on its ticket", []proc.Process{me}, []func() int{never}, func(h *Hold) error { return h.d.writeNote(h.entry, func(*note) {}) }, moment, true, moment},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			k, _ := w.walks([][]proc.Process{nil}, nil)
			next := 0
			k.hold.d.host.open = func(proc.Identity) (int, proc.Liveness) {
				if tt.then != nil {
					if err := tt.then(k.hold); err != nil {
						t.Error(err)
					}
				}
				fd := tt.fds[next]
				next++
				if fd == nil {
					return -1, proc.Gone
				}
				return fd(), proc.Alive
			}
			before, began := openFDs(t), proc.BootTime()
			if got := k.watch(tt.all, w.clock.Boot+tt.left); got != tt.want {
				t.Errorf("%v", got)
			}
			if took := proc.BootTime() - began; took < tt.sleep {
				t.Errorf("it slept for %s", took)
			}
			if after := openFDs(t); after > before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

// What cannot be told of a job's end is an error, and another user's hold is no business
// of anybody's but root's.
func TestEndJobErrors(t *testing.T) {
	reckon := func(*Record) {}
	set := func(t *testing.T) (w *world, job *actor, d *Dir) {
		w = newWorld(t)
		d, _ = w.process()
		return w, w.job(), d
	}
	w, job, d := set(t)
	room := fullDisk(d)
	if ended, err := d.EndJob(job.hold.Record.Anchor.Identity, reckon); !errors.As(err, new(*UnusableError)) || len(ended) != 1 {
		t.Errorf("a full disk: %v, %v", ended, err)
	}
	room()
	if r := w.want(HeldNow).Holders[0].Record; r.JobEndedAt != nil || r.Embodied() {
		t.Errorf("%+v", r)
	}

	trade := w.actor(within(job.id)).gets()
	fullDisk(d)
	if _, err := d.EndJob(trade.Record.ResumesAnchor.Identity, reckon); !errors.As(err, new(*UnusableError)) {
		t.Errorf("a full disk, in a trade: %v", err)
	}

	w, job, d = set(t)
	lock := w.file(job.hold.entry.name() + lockSuffix)
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.EndJob(job.hold.Record.Anchor.Identity, reckon); !errors.As(err, new(*UnusableError)) {
		t.Errorf("a keeper that cannot be told: %v", err)
	}

	// Beside what cannot be read, and what is over, the job's own hold is found.
	w, job, d = set(t)
	over := w.actor(shared, ttl(time.Minute))
	told := over.gets().Record
	told.Anchor = job.hold.Record.Anchor
	w.entrust(over.hold, &told)
	unreadable := w.actor(shared).gets().entry
	w.pass(time.Minute)
	if err := over.d.writeNote(over.hold.entry, func(n *note) { n.Takeover = TTLExpired }); err != nil {
		t.Fatal(err)
	}
	w.write(unreadable.name()+recordSuffix, "{")
	if ended, err := d.EndJob(job.hold.Record.Anchor.Identity, reckon); err != nil || len(ended) != 1 || ended[0].ID() != job.id {
		t.Errorf("ended %+v, %v", ended, err)
	}

	if os.Getuid() != 0 {
		t.Skip("needs root for another user's")
	}
	const nobody = 65534
	for _, uid := range []int{nobody, 0} {
		w, job, d = set(t)
		for _, suffix := range []string{lockSuffix, recordSuffix} {
			if err := os.Chown(w.file(job.hold.entry.name()+suffix), nobody, -1); err != nil {
				t.Fatal(err)
			}
		}
		d.uid = uid
		if ended, err := d.EndJob(job.hold.Record.Anchor.Identity, reckon); err != nil || len(ended) != 1 {
			t.Errorf("uid %d: ended %+v, %v", uid, ended, err)
		}
	}
}

// The end of a job is none of what waits in its name: who took the ticket sees to that.
func TestEndJobLeavesWaiters(t *testing.T) {
	w := newWorld(t)
	job := w.job()
	anchor := job.hold.Record.Anchor
	waiter := w.actor(func(r *Request) { r.Anchor = anchor }).waits()
	d, _ := w.process()
	ended, err := d.EndJob(anchor.Identity, func(*Record) {})
	if err != nil || len(ended) != 1 || ended[0].ID() != job.id {
		t.Fatalf("%v, %v", ended, err)
	}
	if r := d.load(waiter.hold.entry).Record; r == nil || r.JobEndedAt != nil || !r.Anchor.Same(anchor) {
		t.Errorf("%+v", r)
	}
}
