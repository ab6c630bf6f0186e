//go:build linux

package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/org/hostlock-action/proc"
)

// The queue against a model: random histories of processes that want the host,
// get it, trade their job's share for it, die between any two steps, are hidden, expire,
// release, while peers forge notes and damage the guard. The directory, its files, flocks
// and watches are real; the clock and who lives are not. What must be true is said over
// again here, over all tickets and with none of the shortcuts that admission takes.

// A member is an actor as the model knows it.
type member struct {
	*actor
	name   string
	seq    uint64
	phase  phase
	joined string // the hold that its ticket was taken inside of
	outer  *member

	// job is the shared hold that m, a step of that job, would trade for the host.
	job    *member
	trades bool // and has: it stands for the job, which is away

	vigil    *vigil // what it watches since its last look
	lookedAt time.Duration
	inside   bool // by then, the hold of its job was there

	anchor, keeper int  // pids, once a keeper has it
	ended          bool // its job's last hook has run
	greyAt         time.Duration
	forgedAt       time.Duration // somebody claimed that it is unseen; 0: nobody
	tickets        []entry       // that it ever had
}

type phase uint8

const (
	outside  phase = iota // wants the host, has no ticket
	inQueue               // has a ticket
	admitted              // holds; the dead it passed are not acknowledged yet
	possessing
	away // a job whose share is traded
	departed
)

func (m *member) has() bool { return m.phase == admitted || m.phase == possessing }

// living: its life can be seen, or its kernel lock is held.
func (m *member) living() bool { return m.phase != departed && m.phase != away && !m.grey() }

// grey: nothing vouches for it, and nothing says that it is dead.
func (m *member) grey() bool {
	return m.has() && m.keeper != 0 && m.w.look(proc.Identity{PID: m.anchor}) == proc.Unknown && m.hold.lockFD < 0
}

func (m *member) expired() bool {
	ttl := m.req.TTL
	return ttl > 0 && m.w.clock.Boot-m.hold.Record.HeldAt.Boot >= ttl
}

// inPlace: its ticket is there and nobody has marked it.
func (m *member) inPlace() bool {
	b, err := os.ReadFile(m.ticketFile())
	return err == nil && parseNote(b).Takeover == NoTakeover
}

func (m *member) ticketFile() string {
	return m.w.file(m.tickets[len(m.tickets)-1].name() + lockSuffix)
}

// within is the hold that m is a part of, if any.
func (m *member) within() *member {
	if m.job != nil {
		return m.job
	}
	return m.outer
}

// solid holds cannot be taken from.
func (m *member) solid() bool { return m.has() && m.living() && !m.expired() }

// chain are the holds that m is inside of; live if the innermost stands.
func (m *member) chain() (ms []*member, live, sure bool) {
	live, sure = m.outer == nil || m.outer.solid(), true
	for o := m.outer; o != nil; o = o.outer {
		if !o.has() || o.expired() && !o.inPlace() {
			return ms, live, sure
		}
		if o.grey() {
			sure = false
		}
		ms = append(ms, o)
		if o.joined == "" {
			break
		}
	}
	return ms, live, sure
}

// stands: it waits, and its time is not over.
func (m *member) stands() bool {
	return m.phase == inQueue && m.w.clock.Boot-m.deadline <= deadlineSlack
}

type model struct {
	t    *rapid.T
	w    *world
	all  []*member
	told map[string][]string // id → who reported its takeover
	pidf map[int]int         // what stands for a process's pidfd
}

// open gives out what turns readable when the process dies.
func (x *model) open(id proc.Identity) (int, proc.Liveness) {
	l := x.w.look(id)
	if l != proc.Alive && l != proc.Running {
		return -1, l
	}
	fd, ok := x.pidf[id.PID]
	if !ok {
		var err error
		if fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			x.t.Fatal(err)
		}
		x.pidf[id.PID] = fd
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		x.t.Fatal(err)
	}
	return fd, l
}

// woken: something that m watches has happened, or it looks again by the clock.
func (x *model) woken(m *member) bool {
	for pid, fd := range x.pidf {
		if _, lives := x.w.life[pid]; !lives {
			_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	}
	now := x.w.clock.Boot
	return m.vigil == nil || now >= m.deadline || m.vigil.limit > 0 && now-m.lookedAt >= m.vigil.limit ||
		slices.ContainsFunc(m.vigil.fds, func(f unix.PollFd) bool { return ready(int(f.Fd)) })
}

// leaves: m has neither a ticket nor will it have one; nor has the job that it
// stands for.
func (x *model) leaves(m *member) {
	if m.vigil != nil {
		m.vigil.close()
		m.vigil = nil
	}
	m.phase = departed
	if m.trades {
		m.trades, m.job.phase = false, departed
	}
}

// givesUp: the share of a job has been traded, and its keeper ends.
func (x *model) givesUp(job *member) {
	unix.Close(job.hold.lockFD)
	job.hold.lockFD = -1
	delete(x.w.life, job.keeper)
	job.phase = away
}

// released: m has released h. A trade must have become its job's share again, but
// that the host was taken from it, or the job has ended.
func (x *model) released(m *member, h *Hold, err error) {
	m.hold = nil
	job := m.job
	if !m.trades {
		x.leaves(m)
		return
	}
	back := h.Record.ID == job.id
	if _, lives := x.w.life[job.anchor]; back != (lives && !job.ended && err == nil) {
		x.t.Fatalf("%s has traded for %s, whose process lives %v, ended %v: after its release (%v) the job holds %v", m.name, job.name, lives, job.ended, err, back)
	}
	if !back {
		x.leaves(m)
		return
	}
	x.returned(m, h, x.w.kept[h.Record.Body.PID])
	x.leaves(m)
	delete(x.w.kept, job.keeper)
	delete(x.w.life, m.pid) // a run ends with its hold, and who waits behind it watches that
}

// returned: m's job has its share back, as h, whose keeper has fd.
func (x *model) returned(m *member, h *Hold, fd int) {
	job := m.job
	m.trades = false
	job.keeper = h.Record.Body.PID
	job.hold = &Hold{d: job.d, entry: h.entry, lockFD: fd, Record: h.Record, raw: h.raw}
	job.seq, job.phase, job.forgedAt, job.greyAt = h.entry.seq, possessing, 0, x.w.clock.Boot
	job.tickets = append(job.tickets, h.entry)
}

// mode is what m asks for, or has asked for.
func (x *model) mode(m *member) Mode {
	if m.hold != nil {
		return m.hold.Record.Mode
	}
	mode := m.req.Mode
	ms, _, _ := m.chain()
	for _, o := range ms {
		if o.hold.Record.Mode == Exclusive {
			mode = Exclusive
		}
	}
	return mode
}

// obstacle is who stands in m's way, by the rule as the design has it.
func (x *model) obstacle(m *member) (o *member, why string) {
	ms, live, _ := m.chain()
	joins := ""
	if len(ms) > 0 {
		joins = ms[0].id
	}
	mode := x.mode(m)
	for _, o := range x.all {
		if o == m || slices.Contains(ms, o) || o == m.job {
			continue // to a trade, its own share is gone
		}
		switch {
		case o.solid() && mode.Conflicts(o.hold.Record.Mode):
			return o, "holds"
		case o.stands() && o.seq < m.seq && mode.Conflicts(o.hold.Record.Mode) && !(joins != "" && live && o.joined != joins):
			return o, "waits before it"
		}
	}
	return nil, ""
}

// visit is what a waiter does when it wakes.
func (x *model) visit(m *member, crashAfter int) {
	if m.hold != nil {
		if err := m.over(context.Background()); err != nil {
			m.abandon()
			x.leaves(m)
			return
		}
	}
	_, _, sure := m.chain()
	greys := slices.ContainsFunc(x.all, func(o *member) bool { return o != m && o.grey() })
	var youngGrey *member
	for _, o := range x.all {
		// A forged note hastens nothing to less than the grace from when it was
		// forged, for the kernel vouches for that.
		if o != m.job && o.grey() && x.w.clock.Boot-o.greyAt < grace && !(o.forgedAt > 0 && x.w.clock.Boot-o.forgedAt >= grace) && !o.expired() && o.inPlace() {
			youngGrey = o
		}
	}
	if m.hold == nil {
		m.seq = 1 << 63
	}
	blocker, why := x.obstacle(m)
	jobHolds := m.job != nil && m.job.solid()
	taken := x.numbers(m)
	ok, err, crashed := x.try(m, crashAfter)
	if m.job != nil && m.job.has() {
		if _, err := os.Stat(m.job.ticketFile()); err != nil {
			if m.hold == nil || m.hold.job == nil && !crashed {
				x.t.Fatalf("the share of %s is gone, and %s does not stand for it: %v", m.job.name, m.name, err)
			}
			x.givesUp(m.job)
			m.trades = true
		}
	}
	if crashed {
		x.buried(m)
		return
	}
	if m.job != nil && m.job.has() && m.job.expired() && errors.As(err, new(*NestedError)) {
		m.hold = nil
		x.leaves(m)
		return
	}
	if err != nil {
		x.t.Fatalf("%s: %v", m.name, err)
	}
	if jobHolds && !m.trades {
		x.t.Fatalf("%s waits, or holds, beside the share of its own job %s", m.name, m.job.name)
	}
	if m.trades != (m.hold.job != nil) {
		x.t.Fatalf("%s stands for its job %v, and knows of it %v", m.name, m.trades, m.hold.job != nil)
	}
	if m.seq != m.hold.entry.seq {
		m.seq, m.joined = m.hold.entry.seq, m.hold.Record.Joins
		for _, o := range x.all {
			// With the guard, only the numbers of tickets that are no more may be forgotten:
			// of who was evicted, or passed long after its deadline.
			if o != m && o.seq == m.seq && (o.solid() || o.stands() || o.has() && !o.expired() || taken[m.seq]) {
				x.t.Fatalf("%s and %s have one number, %d", m.name, o.name, m.seq)
			}
			if o != m && o.phase == inQueue && o.seq > m.seq {
				x.t.Fatalf("%s came after %s and stands before it", m.name, o.name)
			}
		}
		m.tickets = append(m.tickets, m.hold.entry)
		m.phase = inQueue
		blocker, why = x.obstacle(m)
	}
	if ok {
		m.phase = admitted
	}
	switch {
	case ok && blocker != nil:
		x.t.Fatalf("%s (%v, number %d) is admitted, though %s (%v, number %d) %s", m.name, x.mode(m), m.seq, blocker.name, x.mode(blocker), blocker.seq, why)
	case ok && youngGrey != nil && youngGrey != m && x.mode(m).Conflicts(x.mode(youngGrey)) && sure && !slices.Contains(first(m.chain()), youngGrey):
		x.t.Fatalf("%s passed %s, unseen for %v", m.name, youngGrey.name, x.w.clock.Boot-youngGrey.greyAt)
	case !ok && blocker == nil && sure && !greys:
		x.t.Fatalf("%s waits for %v, and nothing is in its way", m.name, m.lastSeen.entry)
	}
}

// numbers are those of the tickets that are there, without m's.
func (x *model) numbers(m *member) map[uint64]bool {
	files, err := os.ReadDir(x.w.path)
	if err != nil {
		x.t.Fatal(err)
	}
	ns := map[uint64]bool{}
	for _, f := range files {
		if e, ok := parseEntry(f.Name()); ok && !slices.Contains(m.tickets, e) {
			ns[e.seq] = true
		}
	}
	return ns
}

func first(ms []*member, _, _ bool) []*member { return ms }

type crash struct{}

// try makes m step, and kills it when it has asked the world crashAfter times.
func (x *model) try(m *member, crashAfter int) (ok bool, err error, crashed bool) {
	if m.vigil != nil {
		m.vigil.close()
		m.vigil = nil
	}
	crashed = x.mortal(m, crashAfter, func() {
		var h *Hold
		if h, m.vigil, _, err = m.turn(); h != nil {
			m.id, ok = h.Record.ID, true
		}
	})
	m.lookedAt = x.w.clock.Boot
	m.inside = m.within() != nil && m.within().has()
	return ok, err, crashed
}

func (x *model) mortal(m *member, crashAfter int, do func()) (crashed bool) {
	saved := m.d.host
	defer func() {
		m.d.host = saved
		x.w.stamp()
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			crashed = true
		}
	}()
	if crashAfter > 0 {
		left := crashAfter
		point := func() {
			if left--; left == 0 {
				panic(crash{})
			}
		}
		m.d.host.now = func() Instant { point(); return saved.now() }
		m.d.host.look = func(id proc.Identity) proc.Liveness { point(); return saved.look(id) }
		m.d.host.runnable = func() (int, error) { point(); return saved.runnable() }
	}
	do()
	return false
}

// buried ends m as a SIGKILL does: the kernel closes what it had open, and
// nothing else happens.
func (x *model) buried(m *member) {
	delete(x.w.life, m.pid)
	var keep []int
	for _, o := range x.all {
		if o != m && o.hold != nil {
			keep = append(keep, o.hold.lockFD)
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		x.t.Fatal(err)
	}
	for _, f := range fds {
		var fd int
		fmt.Sscan(f.Name(), &fd)
		link, _ := os.Readlink("/proc/self/fd/" + f.Name())
		if strings.HasPrefix(link, x.w.path+"/") && !slices.Contains(keep, fd) {
			unix.Close(fd)
		}
	}
	if m.id == "" && m.hold != nil {
		m.id = m.hold.Record.ID
	}
	m.hold = nil
	x.leaves(m)
}

// reported checks that nobody's takeover is told twice.
func (x *model) reported() {
	for _, m := range x.all {
		for _, e := range m.events {
			for _, p := range e.Passed {
				if who := x.told[p.ID()]; len(who) > 0 {
					x.t.Fatalf("the takeover of %s is reported by %s and by %s", p.ID(), who[0], m.name)
				}
				x.told[p.ID()] = append(x.told[p.ID()], m.name)
			}
		}
		m.events = nil
	}
	ends := map[string]int{}
	d, _ := x.w.process()
	defer d.Close()
	all, err := d.History()
	if err != nil {
		x.t.Fatal(err)
	}
	for _, p := range all {
		if ends[p.ID]++; ends[p.ID] > 1 {
			x.t.Fatalf("%s departed twice in the history", p.ID)
		}
	}
}

// check compares what a reader sees with what is.
func (x *model) check() {
	x.reported()
	var solid, lapsed bool
	for _, m := range x.all {
		if m.solid() {
			solid = true
			if _, err := os.Stat(x.w.file(m.tickets[len(m.tickets)-1].name() + lockSuffix)); err != nil {
				x.t.Fatalf("the ticket of %s, which holds, is gone", m.name)
			}
		}
		if m.has() && m.living() && m.expired() && m.inPlace() {
			lapsed = true
		}
		for i, e := range m.tickets {
			if (i < len(m.tickets)-1 && m.phase != departed || m.phase == away) && !x.another(m, e) {
				if _, err := os.Stat(x.w.file(e.name() + lockSuffix)); err == nil {
					x.t.Fatalf("%s left a ticket behind, %v, and has %v", m.name, e, m.tickets[len(m.tickets)-1])
				}
			}
		}
		// Whoever judged itself a stranger is inside again when its job is back from
		// a trade, and must look: it may be all that the job waits for.
		if o := m.within(); m.phase == inQueue && o != nil && o.solid() && !m.inside && m.vigil != nil && m.vigil.limit != blindLook && !x.woken(m) {
			x.t.Fatalf("%s, a step of %s, which holds again, sleeps for up to %v", m.name, o.name, m.vigil.limit)
		}
	}
	v := x.w.view()
	grey := slices.ContainsFunc(x.all, (*member).grey)
	switch {
	case solid && v.State != HeldNow,
		!solid && !grey && v.State == HeldNow,
		!solid && !grey && lapsed != (v.State == Expired):
		x.t.Fatalf("state %v, though solid %v, lapsed %v", v.State, solid, lapsed)
	}
	// Never two that conflict, but for a chain.
	for i, m := range x.all {
		for _, o := range x.all[:i] {
			if m.solid() && o.solid() && m.hold.Record.Mode.Conflicts(o.hold.Record.Mode) &&
				!slices.Contains(ancestry(m), o) && !slices.Contains(ancestry(o), m) {
				x.t.Fatalf("%s and %s both hold the host", m.name, o.name)
			}
		}
	}
}

// another has a ticket of that name by now: with the guard its number was
// forgotten.
func (x *model) another(m *member, e entry) bool {
	return slices.ContainsFunc(x.all, func(o *member) bool {
		return o != m && len(o.tickets) > 0 && o.tickets[len(o.tickets)-1] == e
	})
}

// ancestry are the holds that m was begun inside of. What a trade has started may
// outlive it, beside the share that comes back.
func ancestry(m *member) (ms []*member) {
	for o := m.outer; o != nil; o = o.within() {
		ms = append(ms, o)
	}
	return ms
}

func (x *model) pick(what string, ok func(*member) bool) *member {
	var ms []*member
	for _, m := range x.all {
		if ok(m) {
			ms = append(ms, m)
		}
	}
	if len(ms) == 0 {
		x.t.Skip("nobody to " + what)
	}
	return ms[rapid.IntRange(0, len(ms)-1).Draw(x.t, what)]
}

// crashes is after how many questions to the world somebody is killed; mostly 0,
// never.
func (x *model) crashes(most int) int {
	if rapid.IntRange(0, 4).Draw(x.t, "crash?") == 0 {
		return rapid.IntRange(1, most).Draw(x.t, "crash after")
	}
	return 0
}

// end has m release its hold, and perhaps not survive that.
func (x *model) end(m *member, crashAfter int) {
	if crashAfter == 0 {
		x.release(m)
		return
	}
	h := m.hold
	x.w.killed = m.trades && rapid.Bool().Draw(x.t, "its keeper too")
	defer func() { x.w.killed = false }()
	var err error
	if !x.mortal(m, crashAfter, func() { err = h.Release() }) {
		x.released(m, h, err)
		return
	}
	// Once it is recorded that the job shares again, it does, whether or not anybody
	// embodies that.
	if t := m.d.load(h.entry); m.trades && t.ID() == m.job.id {
		x.returned(m, &Hold{entry: h.entry, Record: *t.Record, raw: t.raw}, -1)
	}
	x.buried(m)
}

// release gives m's hold back and checks what it is told.
func (x *model) release(m *member) {
	untouched := m.inPlace()
	solid := m.solid()
	h := m.hold
	err := h.Release()
	var lost *TakenOverError
	switch {
	case err == nil && !untouched && !solid:
		x.t.Fatalf("%s was evicted and is told that all is well", m.name)
	case err != nil && !errors.As(err, &lost):
		x.t.Fatalf("release of %s: %v", m.name, err)
	case err != nil && solid:
		x.t.Fatalf("the host was taken from %s, alive and within its ttl: %v", m.name, err)
	case err != nil && untouched:
		x.t.Fatalf("%s is told that it was taken over, and was not: %v", m.name, err)
	}
	x.released(m, h, err)
}

func (x *model) settle(m *member, crashAfter int) {
	solid, untouched := m.solid(), m.inPlace()
	h := m.hold
	var err error
	if x.mortal(m, crashAfter, func() { err = m.attempt.settle(context.Background()) }) {
		x.buried(m)
		return
	}
	if err != nil && (solid || untouched) {
		x.t.Fatalf("settling of %s: %v", m.name, err)
	}
	m.phase = possessing
	if err != nil {
		x.released(m, h, err)
	}
}

// keep has another process anchor m's hold, and a keeper embody its ticket.
func (x *model) keep(m *member, seen proc.Liveness) {
	w := x.w
	w.next++
	m.anchor = w.next
	w.lives(m.anchor, seen)
	h := m.hold
	if err := h.entrust(func() Record { r := h.Record; r.Anchor = Party{Identity: w.identity(m.anchor)}; return r }(), nil); err != nil {
		x.t.Fatal(err)
	}
	m.keeper = h.Record.Body.PID
	h.lockFD = w.kept[m.keeper]
	delete(w.kept, m.keeper)
	delete(w.life, m.pid)
}

// begin lets m ask for the host.
func (x *model) begin(m *member, crashAfter int, change ...func(*Request)) {
	m.name = fmt.Sprintf("m%d", len(x.all)+1)
	m.actor = x.w.actor(change...)
	m.d.host.open = x.open
	x.all = append(x.all, m)
	x.visit(m, crashAfter)
}

// share begins a job that shares the host.
func (x *model) share() {
	m := new(member)
	x.begin(m, 0, letBe, shared)
	if m.phase == admitted {
		x.settle(m, 0)
		x.keep(m, proc.Alive)
	}
}

// runModel runs a history. Half of them begin with jobs that share the host.
func runModel(t *rapid.T, tb testing.TB) {
	w := newWorld(tb)
	x := &model{t: t, w: w, told: map[string][]string{}, pidf: map[int]int{}}
	defer func() {
		for _, m := range x.all {
			if m.hold != nil && m.hold.lockFD >= 0 {
				unix.Close(m.hold.lockFD)
			}
			x.leaves(m)
			m.waker.close()
			m.waker = nil
			m.d.Close()
		}
		for _, fd := range x.pidf {
			unix.Close(fd)
		}
		os.RemoveAll(w.path)
	}()
	for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "jobs") {
		x.share()
	}
	t.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) { x.check() },
		"take": func(t *rapid.T) {
			x.t = t
			if len(x.all) > 24 {
				t.Skip("enough")
			}
			change := []func(*Request){letBe, timeout(time.Duration(rapid.IntRange(1, 1000).Draw(t, "timeout")) * time.Second)}
			if rapid.Bool().Draw(t, "shared") {
				change = append(change, shared)
			}
			if rapid.IntRange(0, 2).Draw(t, "ttl?") == 0 {
				change = append(change, ttl(time.Duration(rapid.IntRange(1, 400).Draw(t, "ttl"))*time.Second))
			}
			m := new(member)
			if rapid.IntRange(0, 2).Draw(t, "inside?") == 0 {
				var holds []*member
				for _, o := range x.all {
					if o.solid() || o.phase == away {
						holds = append(holds, o)
					}
				}
				if len(holds) > 0 {
					o := holds[rapid.IntRange(0, len(holds)-1).Draw(t, "outer")]
					change = append(change, within(o.id))
					switch {
					case o.hold.Record.Mode == Exclusive:
						m.outer = o
					default:
						m.outer = o
						change = append(change, shared) // exclusive inside a shared run is refused, and else a trade
					}
				}
			}
			x.begin(m, x.crashes(25), change...)
		},
		"step": func(t *rapid.T) { // of a job that shares the host: it measures, or builds
			x.t = t
			job := x.pick("begin a step of", func(m *member) bool {
				return m.keeper != 0 && m.outer == nil && (m.solid() || m.phase == away) && m.hold.Record.Mode == Shared
			})
			if len(x.all) > 24 {
				t.Skip("enough")
			}
			patience := timeout(time.Duration(rapid.IntRange(1, 1000).Draw(t, "timeout")) * time.Second)
			if rapid.IntRange(0, 2).Draw(t, "build?") > 0 {
				x.begin(&member{job: job}, x.crashes(25), letBe, within(job.id), patience)
			} else {
				x.begin(&member{outer: job}, x.crashes(25), letBe, within(job.id), patience, shared)
			}
		},
		"wake": func(t *rapid.T) {
			x.t = t
			x.visit(x.pick("wake", func(m *member) bool { return m.phase == inQueue }), x.crashes(25))
		},
		"settle": func(t *rapid.T) {
			x.t = t
			x.settle(x.pick("settle", func(m *member) bool { return m.phase == admitted }), x.crashes(25))
		},
		"release": func(t *rapid.T) {
			x.t = t
			m := x.pick("release", func(m *member) bool { return m.phase == possessing && m.keeper == 0 })
			x.end(m, x.crashes(6))
		},
		"die": func(t *rapid.T) {
			x.t = t
			m := x.pick("die", func(m *member) bool { return m.phase != outside && m.phase != departed })
			delete(w.life, m.anchor)
			if m.phase == away {
				return // its trade has yet to find out
			}
			delete(w.life, m.keeper)
			x.buried(m)
		},
		"hide": func(t *rapid.T) { // in another container, or where identity cannot be proven
			x.t = t
			m := x.pick("hide", func(m *member) bool { return m.phase != outside && m.phase != departed && m.keeper == 0 })
			w.lives(m.pid, rapid.SampledFrom([]proc.Liveness{proc.Unknown, proc.Running, proc.Alive}).Draw(t, "as"))
		},
		"keep": func(t *rapid.T) { // an acquire hands over to a keeper
			x.t = t
			x.keep(x.pick("keep", func(m *member) bool { return m.phase == possessing && m.keeper == 0 && m.solid() && m.job == nil }),
				rapid.SampledFrom([]proc.Liveness{proc.Unknown, proc.Alive}).Draw(t, "anchor seen"))
		},
		"job": func(t *rapid.T) { // a hook takes its job's share
			x.t = t
			if len(x.all) > 24 {
				t.Skip("enough")
			}
			x.share()
		},
		"serve": func(t *rapid.T) { // everybody who is woken looks
			x.t = t
			for _, m := range x.all {
				if m.phase == inQueue && x.woken(m) {
					x.visit(m, 0)
				}
				if m.phase == admitted {
					x.settle(m, 0)
				}
			}
		},
		"kill keeper": func(t *rapid.T) {
			x.t = t
			m := x.pick("kill its keeper", func(m *member) bool { return m.has() && m.keeper != 0 && m.hold.lockFD >= 0 })
			unix.Close(m.hold.lockFD)
			m.hold.lockFD = -1
			if w.life[m.keeper] == proc.Alive {
				delete(w.life, m.keeper)
			}
			m.greyAt = w.clock.Boot
		},
		"end job": func(t *rapid.T) { // while its trade waits or runs
			x.t = t
			m := x.pick("end", func(m *member) bool { return m.phase == away })
			d, _ := w.process()
			defer d.Close()
			if held, err := d.EndJob(w.identity(m.anchor), func(*Record) {}); err != nil || len(held) > 0 {
				t.Fatalf("%v, %v", held, err)
			}
			m.ended = true
			w.stamp()
		},
		"pass": func(t *rapid.T) {
			x.t = t
			w.pass(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
		},
		"forge": func(t *rapid.T) { // a peer writes into a 0666 file
			x.t = t
			m := x.pick("forge on", func(m *member) bool { return m.phase == inQueue || m.solid() && m.req.TTL == 0 && m.keeper == 0 })
			path := w.file(m.tickets[len(m.tickets)-1].name() + lockSuffix)
			text := rapid.SampledFrom([]string{
				`{"takeover":"stale_pid","by":"` + anID + `"}`,
				`{"takeover":"unverifiable"}`,
				`{"left":true}`,
				`{"unseen":{"utc":"2001-01-01T00:00:00Z","boot_ns":1,"boot_id":"` + worldBoot + `","time_ns":4026531834}}`,
				`garbage`,
			}).Draw(t, "note")
			if os.WriteFile(path, []byte(text), 0o666) != nil {
				t.Fatal("no ticket at " + path)
			}
			if strings.Contains(text, "unseen") {
				m.forgedAt = w.clock.Boot
			}
			w.stamp()
		},
		"damage": func(t *rapid.T) {
			x.t = t
			guard := filepath.Join(w.path, guardFile)
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0:
				os.Remove(guard)
			case 1:
				os.Truncate(guard, 0)
			case 2:
				os.WriteFile(guard, []byte("\x00\xffgarbage 1 2 3"), 0o666)
			case 3:
				os.WriteFile(guard, []byte("hostlock 1 00000000000000000000\n"), 0o666)
			}
		},
	})
	x.t = t
	x.drain()
}

// drain lets everybody go on: those who hold let go, and then whoever waits
// must get the host in its turn. Whoever holds has its inner runs end first.
func (x *model) drain() {
	patience := len(x.all)
	for {
		waits, moved := 0, false
		for _, m := range x.all {
			if m.phase == inQueue {
				waits++
				if x.woken(m) {
					x.visit(m, 0)
					moved = moved || m.phase != inQueue
				}
			}
			if m.phase == admitted {
				x.settle(m, 0)
			}
			if !m.has() {
				continue
			}
			if slices.ContainsFunc(x.all, func(o *member) bool { return o.within() == m && o.phase != departed && o.phase != outside }) {
				continue
			}
			moved = true
			if m.keeper != 0 {
				delete(x.w.life, m.anchor)
				x.buried(m)
				continue
			}
			crash := 0
			if m.trades {
				crash = x.crashes(6)
			}
			x.end(m, crash)
		}
		x.check()
		if waits == 0 && !slices.ContainsFunc(x.all, (*member).has) {
			return
		}
		free := func(m *member) bool { o, _ := x.obstacle(m); return m.phase == inQueue && o == nil }
		if !moved && patience > 0 && slices.ContainsFunc(x.all, free) {
			x.w.pass(followLook) // behind a waiting ticket one looks once a minute
			patience--
			continue
		}
		if !moved {
			var who []string
			for _, m := range x.all {
				if m.phase != departed {
					waitsFor := "nobody yet"
					if m.lastSeen != nil {
						waitsFor = m.lastSeen.entry.name()
					}
					who = append(who, fmt.Sprintf("%s (phase %d, number %d, %v, waits for %s)", m.name, m.phase, m.seq, x.mode(m), waitsFor))
				}
			}
			x.t.Fatalf("nobody gets on: %s", strings.Join(who, "; "))
		}
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { runModel(rt, t) })
}
