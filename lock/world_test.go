//go:build linux

package lock

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A world is a host that a test moves by hand: its clock and who lives in it
// are made up, its lock directory is real, with real files and real flocks.
// Every actor stands for a process of its own.
type world struct {
	t     testing.TB
	path  string
	clock Instant
	life  map[int]proc.Liveness // by pid; absent: Gone
	next  int
	mtime map[string]time.Time // of each .lock, as last stamped
	// killed: whoever kills a taker kills its keeper, too
	killed bool
	asked  int         // how often whether somebody lives
	kept   map[int]int // the descriptor of the ticket that each keeper has, by its pid
}

const worldBoot = "00000000-0000-0000-0000-00000000b007"

func newWorld(t testing.TB) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostlock-test-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, path: dir, life: map[int]proc.Liveness{}, next: 1000, mtime: map[string]time.Time{}, kept: map[int]int{}}
	t.Cleanup(func() {
		for _, fd := range w.kept {
			unix.Close(fd)
		}
		os.RemoveAll(dir)
	})
	// The clocks differ by much, so that to take one for the other shows. The
	// kernel stamps the files, so the wall clock begins where it really is.
	w.clock = Instant{UTC: time.Now().UTC(), Boot: 5000 * time.Hour}
	return w
}

func (w *world) pass(d time.Duration) { w.clock = w.clock.Add(d) }

// stamp does what the kernel of this world would have done: files that changed
// since the last call were changed now.
func (w *world) stamp() {
	w.t.Helper()
	locks, err := filepath.Glob(w.file("*" + lockSuffix))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, path := range locks {
		st, err := os.Stat(path)
		if err != nil || st.ModTime().Equal(w.mtime[path]) {
			continue
		}
		if err := os.Chtimes(path, w.clock.UTC, w.clock.UTC); err != nil {
			w.t.Fatal(err)
		}
		if st, err = os.Stat(path); err == nil {
			w.mtime[path] = st.ModTime()
		}
	}
}

// lives says how everybody sees a process from now on.
func (w *world) lives(pid int, l proc.Liveness) { w.life[pid] = l }

func (w *world) look(id proc.Identity) proc.Liveness {
	w.asked++
	if l, ok := w.life[id.PID]; ok {
		return l
	}
	return proc.Gone
}

func (w *world) here() proc.Vantage {
	return proc.Vantage{PIDNS: 4026531836, TimeNS: 4026531834, BootID: worldBoot, ProcOurs: true}
}

func (w *world) identity(pid int) proc.Identity {
	here := w.here()
	return proc.Identity{PID: pid, PIDNS: here.PIDNS, PIDFSIno: uint64(pid), Start: uint64(pid), BootID: here.BootID, TimeNS: here.TimeNS}
}

// process begins a process that only looks.
func (w *world) process() (*Dir, proc.Identity) {
	w.t.Helper()
	w.next++
	id := w.identity(w.next)
	w.life[id.PID] = proc.Alive
	fd, err := unix.Open(w.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	d := &Dir{Location: Location{Path: w.path}, fd: fd, uid: unix.Geteuid(), host: seam{
		here:     w.here(),
		self:     id,
		now:      func() Instant { return w.clock },
		look:     w.look,
		open:     func(id proc.Identity) (int, proc.Liveness) { return -1, w.look(id) },
		runnable: func() (int, error) { return 1, nil },
		busy:     func(time.Duration) (float64, error) { return 0, nil },
		// There are processes in this world too, but these are real.
		carrying:  proc.Carrying,
		survivors: LookForSurvivors,
		write:     writeAt,
		keep:      w.keep,
	}}
	w.t.Cleanup(d.Close)
	return d, id
}

// keep is what handOver does with a keeper of this world: it has a descriptor of
// the ticket from before it is told, and gives the ticket up if the taker dies
// before its last word.
func (w *world) keep(h *Hold, told Record, in func()) (err error) {
	fd, err := unix.FcntlInt(uintptr(h.lockFD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d, id := w.process()
	w.lives(id.PID, w.look(told.Anchor.Identity)) // seen from wherever that is seen
	told.Body = Party{Identity: id, Comm: "hostlock"}
	committed := false
	defer func() {
		if !committed {
			if err == nil && !w.killed {
				(&keeper{hold: &Hold{d: d, entry: h.entry, lockFD: fd}}).give()
			}
			unix.Close(fd)
			delete(w.life, id.PID)
		}
	}()
	if err := h.become(told, in); err != nil {
		return err
	}
	committed = true
	w.kept[id.PID] = fd
	unix.Close(h.lockFD)
	h.lockFD = -1
	return nil
}

// entrust leaves a hold to a keeper that has nothing of it but its name in the record,
// as the record told, or as it is with an anchor of its own.
func (w *world) entrust(h *Hold, told *Record) {
	w.t.Helper()
	if told == nil {
		r := h.Record
		w.next++
		r.Anchor = Party{Identity: w.identity(w.next), Comm: "Runner.Worker"}
		w.lives(w.next, proc.Alive)
		told = &r
	}
	w.next++
	told.Body = Party{Identity: w.identity(w.next), Comm: "hostlock"}
	w.lives(w.next, proc.Alive)
	if err := h.become(*told, nil); err != nil {
		w.t.Fatal(err)
	}
}

// An actor is a process that wants the host.
type actor struct {
	*attempt
	w      *world
	pid    int
	id     string // of its hold
	events []Event
}

// actor begins a process that wants the host and waits for it up to an hour,
// unless change says otherwise. It takes no step yet.
func (w *world) actor(change ...func(*Request)) *actor {
	w.t.Helper()
	d, id := w.process()
	a := &actor{w: w, pid: id.PID}
	req := Request{Mode: Exclusive, Owner: "o" + randomHex(2), Reason: "test", Anchor: d.selfParty(), Wait: true, Timeout: time.Hour,
		Caller: Caller{UID: unix.Getuid()}, Join: JoinTicket, Notify: func(e Event) { a.events = append(a.events, e) }}
	for _, c := range change {
		c(&req)
	}
	a.attempt = &attempt{d: d, req: req, own: -1, started: d.host.now().Boot}
	a.deadline = a.started + req.Timeout
	wk, err := newWaker(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	a.waker = wk
	w.t.Cleanup(func() {
		if a.waker != nil {
			a.waker.close()
		}
	})
	return a
}

func shared(r *Request)                      { r.Mode = Shared }
func ttl(d time.Duration) func(*Request)     { return func(r *Request) { r.TTL = d } }
func within(id string) func(*Request)        { return func(r *Request) { r.Caller.HoldID = id } }
func timeout(d time.Duration) func(*Request) { return func(r *Request) { r.Timeout = d } }
func noWait(r *Request)                      { r.Wait = false }
func strict(r *Request)                      { r.StrictReap = true }
func letBe(r *Request)                       { r.IgnoreSurvivors = true }

// step is one session under the guard, as a waiter makes when something woke
// it. It reports whether the host is the actor's.
func (a *actor) step() (bool, error) {
	h, v, _, err := a.turn()
	if v != nil {
		v.close()
	}
	if h != nil {
		a.id = h.Record.ID
	}
	return h != nil, err
}

// gets is step and what follows an admission.
func (a *actor) gets() *Hold {
	a.w.t.Helper()
	if ok, err := a.step(); err != nil || !ok {
		a.w.t.Fatalf("pid %d is not admitted (error: %v)", a.pid, err)
	}
	if err := a.settle(context.Background()); err != nil {
		a.w.t.Fatal(err)
	}
	return a.hold
}

// waits is a step that does not get the host.
func (a *actor) waits() *actor {
	a.w.t.Helper()
	if ok, err := a.step(); err != nil || ok {
		a.w.t.Fatalf("pid %d: admitted %v (error: %v), want it to wait", a.pid, ok, err)
	}
	return a
}

// dies ends the process at once: the kernel closes what it had open.
func (a *actor) dies() {
	a.forget()
	delete(a.w.life, a.pid)
}

// view is what status would say.
func (w *world) view() *View {
	w.t.Helper()
	d, _ := w.process()
	defer d.Close()
	v, err := d.Look()
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func (w *world) want(s State) *View {
	w.t.Helper()
	v := w.view()
	if v.State != s {
		w.t.Fatalf("state %v, want %v", v.State, s)
	}
	return v
}

func (w *world) file(name string) string { return filepath.Join(w.path, name) }

// write puts a file into the directory, as a peer can.
func (w *world) write(name, content string) {
	w.t.Helper()
	if err := os.WriteFile(w.file(name), []byte(content), 0o666); err != nil {
		w.t.Fatal(err)
	}
}

// editRecord changes a ticket's record behind everybody's back.
func (w *world) editRecord(e entry, change func(map[string]any)) {
	w.t.Helper()
	b, err := os.ReadFile(w.file(e.name() + recordSuffix))
	if err != nil {
		w.t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		w.t.Fatal(err)
	}
	change(m)
	if b, err = json.Marshal(m); err != nil {
		w.t.Fatal(err)
	}
	w.write(e.name()+recordSuffix, string(b))
}

// pasts counts the ends in the history.
func (w *world) pasts() map[string]int {
	w.t.Helper()
	d, _ := w.process()
	defer d.Close()
	all, err := d.History()
	if err != nil {
		w.t.Fatal(err)
	}
	n := map[string]int{}
	for _, p := range all {
		n[p.End]++
	}
	return n
}
