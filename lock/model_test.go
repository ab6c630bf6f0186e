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
// get it, die between any two steps, are hidden, expire, release, while peers forge notes
// and damage the guard. The directory, its files and flocks are real; the clock and who
// lives are not. What must be true is said over again here, over all tickets and with
// none of the shortcuts that admission takes.

// A member is an actor as the model knows it.
type member struct {
	*actor
	name   string
	seq    uint64
	phase  phase
	joined string // the hold that its ticket was taken inside of
	outer  *member

	anchor, keeper int // pids, once a keeper has it
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
	departed
)

func (m *member) has() bool { return m.phase == admitted || m.phase == possessing }

// living: its life can be seen, or its kernel lock is held.
func (m *member) living() bool { return m.phase != departed && !m.grey() }

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
	b, err := os.ReadFile(m.w.file(m.tickets[len(m.tickets)-1].name() + lockSuffix))
	return err == nil && parseNote(b).Takeover == NoTakeover
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
		if o == m || slices.Contains(ms, o) {
			continue
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
			m.phase = departed
			return
		}
	}
	_, _, sure := m.chain()
	greys := slices.ContainsFunc(x.all, func(o *member) bool { return o != m && o.grey() })
	var youngGrey *member
	for _, o := range x.all {
		// A forged note hastens nothing to less than the grace from when it was
		// forged, for the kernel vouches for that.
		if o.grey() && x.w.clock.Boot-o.greyAt < grace && !(o.forgedAt > 0 && x.w.clock.Boot-o.forgedAt >= grace) && !o.expired() && o.inPlace() {
			youngGrey = o
		}
	}
	if m.hold == nil {
		m.seq = 1 << 63
	}
	blocker, why := x.obstacle(m)
	ok, err, crashed := x.try(m, crashAfter)
	if crashed {
		x.buried(m)
		return
	}
	if err != nil {
		x.t.Fatalf("%s: %v", m.name, err)
	}
	if m.seq != m.hold.entry.seq {
		m.seq, m.joined = m.hold.entry.seq, m.hold.Record.Joins
		for _, o := range x.all {
			if o != m && o.phase != outside && o.phase != departed && o.seq == m.seq {
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

func first(ms []*member, _, _ bool) []*member { return ms }

type crash struct{}

// try makes m step, and kills it when it has asked the world crashAfter times.
func (x *model) try(m *member, crashAfter int) (ok bool, err error, crashed bool) {
	crashed = x.mortal(m, crashAfter, func() { ok, err = m.step() })
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
	m.phase = departed
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
			if i < len(m.tickets)-1 && m.phase != departed {
				if _, err := os.Stat(x.w.file(e.name() + lockSuffix)); err == nil {
					x.t.Fatalf("%s left a ticket behind, %v, and has %v", m.name, e, m.tickets[len(m.tickets)-1])
				}
			}
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

func ancestry(m *member) (ms []*member) {
	for o := m.outer; o != nil; o = o.outer {
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

// release gives m's hold back and checks what it is told.
func (x *model) release(m *member) {
	untouched := m.inPlace()
	solid := m.solid()
	err := m.hold.Release()
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
	m.hold = nil
	m.phase = departed
}

func (x *model) settle(m *member, crashAfter int) {
	solid, untouched := m.solid(), m.inPlace()
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
		m.hold, m.phase = nil, departed
	}
}

func runModel(t *rapid.T, tb testing.TB) {
	w := newWorld(tb)
	x := &model{t: t, w: w, told: map[string][]string{}}
	crashes := func() int {
		if rapid.IntRange(0, 4).Draw(t, "crash?") == 0 {
			return rapid.IntRange(1, 25).Draw(t, "crash after")
		}
		return 0
	}
	defer func() {
		for _, m := range x.all {
			if m.hold != nil && m.hold.lockFD >= 0 {
				unix.Close(m.hold.lockFD)
			}
			m.waker.close()
			m.waker = nil
			m.d.Close()
		}
		os.RemoveAll(w.path)
	}()
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
			m := &member{name: fmt.Sprintf("m%d", len(x.all)+1)}
			if rapid.IntRange(0, 2).Draw(t, "inside?") == 0 {
				var holds []*member
				for _, o := range x.all {
					if o.solid() {
						holds = append(holds, o)
					}
				}
				if len(holds) > 0 {
					m.outer = holds[rapid.IntRange(0, len(holds)-1).Draw(t, "outer")]
					change = append(change, within(m.outer.id))
					if m.outer.hold.Record.Mode == Shared {
						change = append(change, shared) // exclusive would be a trade
					}
				}
			}
			m.actor = w.actor(change...)
			x.all = append(x.all, m)
			x.visit(m, crashes())
		},
		"wake": func(t *rapid.T) {
			x.t = t
			x.visit(x.pick("wake", func(m *member) bool { return m.phase == inQueue }), crashes())
		},
		"settle": func(t *rapid.T) {
			x.t = t
			x.settle(x.pick("settle", func(m *member) bool { return m.phase == admitted }), crashes())
		},
		"release": func(t *rapid.T) {
			x.t = t
			m := x.pick("release", func(m *member) bool { return m.phase == possessing && m.keeper == 0 })
			if n := crashes(); n > 0 {
				if x.mortal(m, n, func() { m.hold.Release() }) {
					x.buried(m)
				} else {
					m.hold, m.phase = nil, departed
				}
				return
			}
			x.release(m)
		},
		"die": func(t *rapid.T) {
			x.t = t
			m := x.pick("die", func(m *member) bool { return m.phase != outside && m.phase != departed })
			delete(w.life, m.anchor)
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
			m := x.pick("keep", func(m *member) bool { return m.phase == possessing && m.keeper == 0 && m.solid() })
			w.next += 2
			m.anchor, m.keeper = w.next-1, w.next
			w.lives(m.anchor, rapid.SampledFrom([]proc.Liveness{proc.Unknown, proc.Alive}).Draw(t, "anchor seen"))
			w.lives(m.keeper, w.life[m.anchor])
			if err := m.hold.amend(func(r *Record) {
				r.Anchor, r.Body = Party{Identity: w.identity(m.anchor)}, Party{Identity: w.identity(m.keeper)}
			}); err != nil {
				t.Fatal(err)
			}
			delete(w.life, m.pid)
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
	for round := 0; ; round++ {
		waits, moved := 0, false
		for _, m := range x.all {
			if m.phase == inQueue {
				x.visit(m, 0)
				waits++
				moved = moved || m.phase != inQueue
			}
			if m.phase == admitted {
				x.settle(m, 0)
			}
			if !m.has() {
				continue
			}
			if slices.ContainsFunc(x.all, func(o *member) bool { return o.outer == m && o.phase != departed && o.phase != outside }) {
				continue
			}
			moved = true
			if m.keeper != 0 {
				delete(x.w.life, m.anchor)
				x.buried(m)
				continue
			}
			x.release(m)
		}
		x.check()
		if waits == 0 && !slices.ContainsFunc(x.all, (*member).has) {
			return
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
