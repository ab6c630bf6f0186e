//go:build linux

package lock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A queue is tickets in memory. Its ids are the number, written out.
type queue []*Ticket

func idOf(seq uint64) string { return fmt.Sprintf("%032x", seq) }

// tk is a ticket from a short form: number, mode (x or s), standing, and the
// number of the hold that it is inside of.
func tk(seq uint64, mode string, s Standing, joins ...uint64) *Ticket {
	t := &Ticket{Seq: seq, Standing: s, entry: entry{kindExclusive, seq}, UID: 1000}
	r := &Record{Seq: seq, ID: idOf(seq), Phase: Held}
	if s == Waits {
		r.Phase = Waiting
	}
	if mode == "s" {
		r.Mode, t.entry.kind = Shared, kindShared
	}
	if len(joins) > 0 {
		r.Joins, t.entry.kind = idOf(joins[0]), kindJoined
	}
	if s == Lapsed {
		t.Kind = TTLExpired
	} else if s == Dead {
		t.Kind = StalePID
	}
	if s != Opaque {
		t.Record = r
	}
	return t
}

func (q queue) entries() (es []entry) {
	for _, t := range q {
		es = append(es, t.entry)
	}
	return es
}

func (q queue) load(e entry) *Ticket {
	for _, t := range q {
		if t.entry == e {
			return t
		}
	}
	panic("no such ticket")
}

// in is the claim of who asks inside a hold of the queue.
func (q queue) in(c claim, outer uint64) claim {
	held := holders(q.entries(), q.load)
	for _, t := range held {
		if t.Seq == outer {
			c.joins, c.chain = t.ID(), chainOf(t, held)
		}
	}
	return c
}

func TestAdmit(t *testing.T) {
	x, s := claim{mode: Exclusive}, claim{mode: Shared}
	at := func(c claim, seq uint64) claim { c.seq, c.kind = seq, kindExclusive; return c }
	for _, tt := range []struct {
		name    string
		q       queue
		c       claim
		inside  uint64
		blocker uint64 // 0: admitted
		passed  []uint64
		left    []uint64
	}{
		{name: "nobody", c: x},
		{name: "itself only", q: queue{tk(5, "x", Waits)}, c: at(x, 5)},
		{name: "exclusive behind exclusive", q: queue{tk(1, "x", Holds)}, c: x, blocker: 1},
		{name: "shared behind exclusive", q: queue{tk(1, "x", Holds)}, c: s, blocker: 1},
		{name: "exclusive behind shared", q: queue{tk(1, "s", Holds)}, c: x, blocker: 1},
		{name: "shared beside shared", q: queue{tk(1, "s", Holds)}, c: s},
		{name: "behind what cannot be read", q: queue{tk(1, "x", Opaque)}, c: s, blocker: 1},
		{name: "shared behind a shared name that cannot be read", q: queue{tk(1, "s", Opaque)}, c: s, blocker: 1},
		{name: "exclusive behind a waiter", q: queue{tk(1, "x", Waits)}, c: x, blocker: 1},
		{name: "shared behind a waiting exclusive", q: queue{tk(1, "s", Holds), tk(2, "x", Waits)}, c: s, blocker: 2},
		{name: "shared beside a waiting shared", q: queue{tk(1, "s", Waits)}, c: at(s, 2)},
		{name: "exclusive behind a waiting shared", q: queue{tk(1, "s", Waits)}, c: x, blocker: 1},
		{name: "before those behind", q: queue{tk(5, "x", Waits), tk(6, "x", Waits), tk(7, "s", Waits)}, c: at(x, 5)},
		{name: "the nearest is the one to watch", q: queue{tk(1, "x", Holds), tk(2, "x", Waits), tk(3, "s", Waits)}, c: at(x, 4), blocker: 3},
		{name: "past a dead holder", q: queue{tk(1, "x", Dead)}, c: x, passed: []uint64{1}},
		{name: "past a lapsed holder", q: queue{tk(1, "x", Lapsed)}, c: x, passed: []uint64{1}},
		{name: "shared past a dead shared", q: queue{tk(1, "s", Dead), tk(2, "s", Holds)}, c: s, passed: []uint64{1}},
		{name: "past what left and what is over", q: queue{tk(1, "x", Over), tk(2, "x", Left)}, c: x, left: []uint64{1, 2}},
		{name: "a dead one behind a live one", q: queue{tk(1, "x", Holds), tk(2, "x", Dead)}, c: x, blocker: 1, passed: []uint64{2}},

		{name: "inside an exclusive hold", q: queue{tk(1, "x", Holds)}, c: x, inside: 1},
		{name: "inside, a stranger waits behind", q: queue{tk(1, "x", Holds), tk(2, "x", Waits)}, c: at(x, 3), inside: 1},
		{name: "inside a shared hold, an exclusive stranger waits", q: queue{tk(1, "s", Holds), tk(2, "x", Waits)}, c: at(s, 3), inside: 1},
		{name: "inside a shared hold, beside a shared stranger", q: queue{tk(1, "s", Holds), tk(2, "s", Holds)}, c: at(s, 3), inside: 1},
		{name: "inside, another step of the job holds", q: queue{tk(1, "x", Holds), tk(2, "x", Holds, 1)}, c: at(x, 3), inside: 1, blocker: 2},
		{name: "inside, another step of the job waits before", q: queue{tk(1, "x", Holds), tk(2, "x", Waits, 1)}, c: at(x, 3), inside: 1, blocker: 2},
		{name: "inside, another step of the job waits behind", q: queue{tk(1, "x", Holds), tk(3, "x", Waits, 1)}, c: at(x, 2), inside: 1},
		{name: "inside a run inside the job: its own chain", q: queue{tk(1, "x", Holds), tk(2, "x", Holds, 1)}, c: at(x, 3), inside: 2},
		{name: "inside the inner, while a step of the outer waits", q: queue{tk(1, "x", Holds), tk(2, "x", Holds, 1), tk(3, "x", Waits, 1)}, c: at(x, 4), inside: 2},
		{name: "inside a lapsed hold: like a stranger, but evicts not its own", q: queue{tk(1, "x", Lapsed), tk(2, "x", Waits)}, c: at(x, 3), inside: 1, blocker: 2},
		{name: "inside a lapsed hold, nobody else", q: queue{tk(1, "x", Lapsed)}, c: at(x, 3), inside: 1},
		{name: "a stranger, behind a run whose job is gone", q: queue{tk(3, "x", Holds, 1)}, c: at(x, 2), blocker: 3},
		{name: "a stranger, with a joined waiter behind", q: queue{tk(3, "x", Waits, 1)}, c: at(x, 2)},
		{name: "a stranger, with a joined waiter before", q: queue{tk(1, "x", Waits, 9)}, c: at(x, 2), blocker: 1},
		{name: "inside a shared hold, past a dead one from before", q: queue{tk(1, "s", Dead), tk(2, "s", Holds)}, c: at(s, 3), inside: 2, passed: []uint64{1}},
		{name: "inside, past what is over of its own chain", q: queue{tk(1, "x", Over), tk(2, "x", Holds, 1)}, c: at(x, 3), inside: 2, left: []uint64{1}},

		// A number is given once, but anybody can make a file with any name.
		{name: "beside a waiter with its own number", q: queue{tk(5, "s", Waits), tk(5, "x", Waits)}, c: at(x, 5)},
		{name: "behind a holder with its own number", q: queue{tk(5, "s", Holds), tk(5, "x", Waits)}, c: at(x, 5), blocker: 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.c
			if tt.inside != 0 {
				c = tt.q.in(c, tt.inside)
				if c.joins == "" {
					t.Fatal("no such hold")
				}
			}
			numbers := func(ts []*Ticket) (ns []uint64) {
				for _, t := range ts {
					ns = append(ns, t.Seq)
				}
				slices.Sort(ns)
				return ns
			}
			d := admit(c, tt.q.entries(), tt.q.load)
			got := uint64(0)
			if d.blocker != nil {
				got = d.blocker.Seq
			}
			if got != tt.blocker || !slices.Equal(numbers(d.passed), tt.passed) || !slices.Equal(numbers(d.left), tt.left) {
				t.Errorf("blocker %d, passed %v, left %v; want %d, %v, %v", got, numbers(d.passed), numbers(d.left), tt.blocker, tt.passed, tt.left)
			}
		})
	}
}

// An arrival in a long queue reads a few records, whatever stands in it.
func TestAdmitReadsLittle(t *testing.T) {
	for _, tt := range []struct {
		waiters string // modes of those who wait
		c       claim
		blocker int
	}{
		{"x", claim{mode: Exclusive}, 1000},
		{"x", claim{mode: Shared}, 1000},
		{"s", claim{mode: Exclusive}, 1000},
		{"s", claim{mode: Shared}, 0},
		{"x", claim{mode: Shared, seq: 2, kind: kindShared}, 0},
	} {
		q := queue{tk(1, "x", Holds)}
		for n := range uint64(1000) {
			q = append(q, tk(n+2, tt.waiters, Waits))
		}
		n := 0
		load := func(e entry) *Ticket { n++; return q.load(e) }
		if d := admit(tt.c, q.entries(), load); d.blocker != q[tt.blocker] {
			t.Errorf("%+v: blocker %+v", tt, d.blocker)
		}
		if held := holders(q.entries(), load); len(held) != 1 {
			t.Errorf("%+v: holders %v", tt, held)
		}
		if n > 3 {
			t.Errorf("%+v: %d records were read", tt, n)
		}
	}
}

func TestHolders(t *testing.T) {
	for _, tt := range []struct {
		name string
		q    queue
		want []uint64
	}{
		{"all kinds", queue{tk(1, "s", Holds), tk(2, "s", Dead), tk(3, "x", Lapsed), tk(4, "x", Over), tk(5, "s", Left), tk(6, "s", Waits), tk(7, "x", Opaque)}, []uint64{1, 2, 3, 4, 7}},
		{"behind an exclusive one, only what is inside", queue{tk(1, "x", Holds), tk(2, "s", Holds), tk(3, "x", Holds, 1)}, []uint64{1, 3}},
		{"a joined one closes nothing", queue{tk(1, "x", Holds, 9), tk(2, "s", Holds)}, []uint64{1, 2}},
		{"a dead one closes nothing", queue{tk(1, "x", Dead), tk(2, "x", Holds)}, []uint64{1, 2}},
		{"a lapsed one closes nothing", queue{tk(1, "x", Lapsed), tk(2, "x", Holds)}, []uint64{1, 2}},
		{"behind one that cannot be read", queue{tk(1, "x", Opaque), tk(2, "x", Dead)}, []uint64{1}},
		{"behind one that waits to be alone", queue{tk(1, "s", Holds), tk(2, "x", Waits), tk(3, "s", Dead)}, []uint64{1}},
	} {
		var got []uint64
		for _, h := range holders(tt.q.entries(), tt.q.load) {
			got = append(got, h.Seq)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestDerive(t *testing.T) {
	for _, tt := range []struct {
		q    queue
		want State
	}{
		{nil, Free},
		{queue{tk(1, "x", Waits), tk(2, "x", Left), tk(3, "x", Over)}, Free},
		{queue{tk(1, "x", Dead), tk(2, "x", Waits)}, Stale},
		{queue{tk(1, "x", Lapsed)}, Expired},
		{queue{tk(1, "x", Dead), tk(2, "x", Lapsed)}, Expired},
		{queue{tk(1, "x", Lapsed), tk(2, "x", Dead)}, Expired},
		{queue{tk(1, "x", Lapsed), tk(2, "x", Dead), tk(3, "x", Holds)}, HeldNow},
		{queue{tk(1, "x", Dead), tk(2, "x", Opaque)}, HeldNow},
	} {
		if got := derive(tt.q); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.q, got, tt.want)
		}
	}
}

func TestTakeoverRank(t *testing.T) {
	dead, lapsed, blind := tk(1, "x", Dead), tk(2, "x", Lapsed), tk(3, "x", Dead)
	blind.Kind = Unverifiable
	for _, tt := range []struct {
		passed []*Ticket
		want   Takeover
		from   *Ticket
	}{
		{nil, NoTakeover, nil},
		{[]*Ticket{dead}, StalePID, dead},
		{[]*Ticket{dead, blind}, Unverifiable, blind},
		{[]*Ticket{blind, dead}, Unverifiable, blind},
		{[]*Ticket{lapsed, blind, dead}, TTLExpired, lapsed},
		{[]*Ticket{dead, lapsed}, TTLExpired, lapsed},
		{[]*Ticket{dead, tk(4, "x", Dead)}, StalePID, dead}, // the nearest
	} {
		if kind, from := takeover(tt.passed); kind != tt.want || from != tt.from {
			t.Errorf("%v of %v", kind, from)
		}
	}
}

func TestChain(t *testing.T) {
	for _, tt := range []struct {
		name string
		q    queue
		of   int
		ids  int
		root uint64
		live bool
	}{
		{"a hold", queue{tk(4, "x", Holds)}, 0, 1, 4, true},
		{"lapsed", queue{tk(4, "x", Lapsed)}, 0, 1, 4, false},
		{"three deep", queue{tk(4, "x", Holds), tk(7, "x", Holds, 4), tk(9, "x", Holds, 7)}, 2, 3, 4, true},
		// Whoever conflicts waits for the innermost: to stand behind them would be
		// to wait for oneself.
		{"lapsed in the middle", queue{tk(4, "x", Holds), tk(7, "x", Lapsed, 4), tk(9, "x", Holds, 7)}, 2, 3, 4, true},
		{"innermost lapsed", queue{tk(4, "x", Holds), tk(7, "x", Holds, 4), tk(9, "x", Lapsed, 7)}, 2, 3, 4, false},
		{"its outer is gone", queue{tk(9, "x", Holds, 7)}, 0, 1, 9, true},
		{"a ring", queue{tk(7, "x", Holds, 9), tk(9, "x", Holds, 7)}, 1, 2, 7, true},
		{"its own outer", queue{tk(7, "x", Holds, 7)}, 0, 1, 7, true},
		{"beside one that cannot be read", queue{tk(3, "x", Opaque), tk(4, "x", Holds)}, 1, 1, 4, true},
	} {
		c := chainOf(tt.q[tt.of], tt.q)
		if len(c.ids) != tt.ids || c.root != tt.root || c.live != tt.live {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
}

func TestNested(t *testing.T) {
	for _, tt := range []struct {
		name  string
		q     queue
		mode  Mode
		join  Nesting
		want  Mode
		wrong string
	}{
		{"run in an exclusive hold", queue{tk(1, "x", Holds)}, Exclusive, JoinTicket, Exclusive, ""},
		{"shared run in an exclusive hold takes turns", queue{tk(1, "x", Holds)}, Shared, JoinTicket, Exclusive, ""},
		{"shared run in a shared hold", queue{tk(1, "s", Holds)}, Shared, JoinTicket, Shared, ""},
		{"shared run in a shared hold, a dead exclusive one before", queue{tk(2, "s", Holds), tk(1, "x", Dead)}, Shared, JoinTicket, Shared, ""},
		{"exclusive in shared", queue{tk(1, "s", Holds)}, Exclusive, JoinTicket, 0, "shared hold"},
		{"run in a lapsed hold", queue{tk(1, "x", Lapsed)}, Exclusive, JoinTicket, Exclusive, ""},
		{"acquire", queue{tk(1, "x", Holds)}, Exclusive, RefuseNested, 0, "already inside"},
		{"acquire that joins", queue{tk(1, "x", Holds)}, Exclusive, JoinHold, Exclusive, ""},
		{"acquire that joins, exclusive in shared", queue{tk(1, "s", Holds)}, Exclusive, JoinHold, 0, "shared hold"},
		{"acquire that joins a lapsed hold", queue{tk(1, "x", Lapsed)}, Exclusive, JoinHold, 0, "lapsed"},
	} {
		got, err := nested(Request{Mode: tt.mode, Join: tt.join}, tt.q[0], chainOf(tt.q[0], tt.q), tt.q)
		if tt.wrong == "" && (err != nil || got != tt.want) {
			t.Errorf("%s: %v, %v, want %v", tt.name, got, err, tt.want)
		}
		if tt.wrong != "" && (!errors.As(err, new(*NestedError)) || !strings.Contains(err.Error(), tt.wrong)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.wrong)
		}
	}
}

// Who is inside: by id and uid, or by an ancestor that stands for one job.
func TestInside(t *testing.T) {
	here := proc.Here()
	process := func(pid int) proc.Process { return proc.Process{PID: pid, Start: uint64(pid)} }
	at := func(tk *Ticket, pid int, comm string, embodied bool) *Ticket {
		tk.Record.Anchor = Party{Identity: proc.Identity{PID: pid, Start: uint64(pid), PIDNS: here.PIDNS, BootID: here.BootID}, Comm: comm}
		tk.Record.Body = tk.Record.Anchor
		if !embodied {
			tk.Record.Body.PID++
		}
		return tk
	}
	one := func(comm string, s Standing) queue { return queue{at(tk(1, "x", s), 50, comm, false)} }
	family := Caller{UID: 1000, Forebears: []proc.Process{process(70), process(50), process(1)}}
	for _, tt := range []struct {
		name string
		c    Caller
		q    queue
		want uint64 // 0: a stranger
		err  bool
	}{
		{"nothing held", family, nil, 0, false},
		{"by id", Caller{UID: 1000, HoldID: idOf(1)}, queue{tk(1, "x", Holds)}, 1, false},
		{"by the id of what lapsed", Caller{UID: 1000, HoldID: idOf(1)}, queue{tk(1, "x", Lapsed)}, 1, false},
		{"by the id of what died", Caller{UID: 1000, HoldID: idOf(1)}, queue{tk(1, "x", Dead)}, 0, false},
		{"by the id of what is over", Caller{UID: 1000, HoldID: idOf(1)}, queue{tk(1, "x", Over)}, 0, false},
		{"another user's id", Caller{UID: 1001, HoldID: idOf(1)}, queue{tk(1, "x", Holds)}, 0, true},
		{"root may join anybody's", Caller{UID: 0, HoldID: idOf(1)}, queue{tk(1, "x", Holds)}, 1, false},
		{"no id", Caller{UID: 1000, HoldID: ""}, queue{tk(1, "x", Opaque)}, 0, false},
		{"a shell took it", family, one("bash", Holds), 1, false},
		{"a worker", family, one("Runner.Worker", Holds), 1, false},
		{"act runs several jobs", family, one("act", Holds), 0, false},
		{"make runs several jobs", family, one("make", Holds), 0, false},
		{"a hostlock run", family, queue{at(tk(1, "x", Holds), 50, "hostlock", true)}, 1, false},
		{"a dead shell's", family, one("bash", Dead), 0, false},
		{"another user's shell", Caller{UID: 1001, Forebears: family.Forebears}, one("bash", Holds), 0, false},
		{"the innermost", family, queue{at(tk(1, "x", Holds), 50, "bash", false), at(tk(2, "x", Holds, 1), 70, "hostlock", true)}, 2, false},
		{"the latest of one anchor", family, queue{at(tk(1, "x", Holds), 50, "bash", false), at(tk(2, "x", Holds, 1), 50, "bash", false)}, 2, false},
		{"a recycled ancestor", Caller{UID: 1000, Forebears: []proc.Process{{PID: 50, Start: 51}}}, one("bash", Holds), 0, false},
		{"no ancestor", Caller{UID: 1000, Forebears: []proc.Process{process(51)}}, one("bash", Holds), 0, false},
	} {
		got, err := inside(tt.c, tt.q)
		n := uint64(0)
		if got != nil {
			n = got.Seq
		}
		if n != tt.want || (err != nil) != tt.err || err != nil && !errors.As(err, new(*NestedError)) {
			t.Errorf("%s: %d, %v, want %d", tt.name, n, err, tt.want)
		}
	}
}

// strict-reap refuses before anything is held and leaves the evidence; it
// minds nobody while somebody lives and holds.
func TestStrictReap(t *testing.T) {
	for _, tt := range []struct {
		name string
		ttl  time.Duration
		kind Takeover
		s    State
	}{{"dead", 0, StalePID, Stale}, {"lapsed", time.Minute, TTLExpired, Expired}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			first := w.actor(ttl(tt.ttl))
			first.gets()
			strictly := w.actor(strict).waits()
			if tt.kind == StalePID {
				first.dies()
			}
			w.pass(tt.ttl)
			for _, a := range []*actor{strictly, w.actor(strict, noWait)} {
				_, err := a.step()
				var refused *ReapRefusedError
				if !errors.As(err, &refused) || refused.Kind != tt.kind || refused.Ticket.ID() != first.id {
					t.Fatalf("%v", err)
				}
				if a.attempt.hold != nil {
					t.Error("it has a ticket")
				}
				if v := w.want(tt.s); len(v.Holders) != 1 || len(v.Waiting) != 0 || v.Holders[0].note != (note{}) {
					t.Errorf("%d hold, %d wait, note %+v", len(v.Holders), len(v.Waiting), v.Holders[0].note)
				}
			}
			if n := w.pasts(); len(n) != 0 {
				t.Errorf("history %v", n)
			}
			// Acknowledged, it is clean.
			d, _ := w.process()
			if reaped, err := d.Reap(w.view().Holders); err != nil || len(reaped) != map[State]int{Stale: 1}[tt.s] {
				t.Errorf("reaped %v, %v", reaped, err)
			}
			if tt.s == Stale {
				if h := w.actor(strict).gets(); h.Record.Outcome != "acquired" {
					t.Error(h.Record.Outcome)
				}
			}
		})
	}
}

// Two shared holders pass one dead one: one of them reports it.
func TestSharedTakeoverReportedOnce(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	first.gets()
	a, b := w.actor(shared, letBe).waits(), w.actor(shared, letBe).waits()
	first.dies()
	for _, m := range []*actor{a, b} {
		if ok, err := m.step(); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for _, m := range []*actor{b, a} {
		if err := m.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if a.hold.Record.Outcome != "acquired" || *a.hold.Record.Takeover != NoTakeover || b.hold.Record.Outcome != "acquired_after_reap (stale_pid)" {
		t.Errorf("%s and %s", a.hold.Record.Outcome, b.hold.Record.Outcome)
	}
}

// A shared run inside an exclusive hold waits in turn as exclusive. If the
// hold ends meanwhile it keeps the mode that its ticket says: the record must
// not claim the host alone for somebody who has it beside others.
func TestModeOutlivesTheChain(t *testing.T) {
	w := newWorld(t)
	job := w.actor()
	jh := job.gets()
	step := w.actor(within(job.id), shared)
	step.gets()
	second := w.actor(within(job.id), shared).waits()
	stranger := w.actor(shared).waits()
	if err := jh.Release(); err != nil {
		t.Fatal(err)
	}
	if err := step.hold.Release(); err != nil {
		t.Fatal(err)
	}
	second.gets()
	if v := w.want(HeldNow); len(v.Holders) != 1 || v.Holders[0].Mode() != Exclusive {
		t.Errorf("%+v", v.Holders)
	}
	stranger.waits()
	late := w.actor(shared)
	late.waits()
	if err := second.hold.Release(); err != nil {
		t.Fatal(err)
	}
	stranger.gets()
	late.gets()
}

// A joined run whose job has gone waits for the shared holds that its record,
// being exclusive, rules out.
func TestModeAtAdmission(t *testing.T) {
	w := newWorld(t)
	other := w.actor(shared)
	oh := other.gets()
	job := w.actor().waits()
	if err := oh.Release(); err != nil {
		t.Fatal(err)
	}
	jh := job.gets()
	first := w.actor(within(job.id))
	first.gets()
	s1 := w.actor(shared).waits()
	second := w.actor(within(job.id), shared).waits()
	if err := errors.Join(jh.Release(), first.hold.Release()); err != nil {
		t.Fatal(err)
	}
	s1.gets()
	second.waits()
	if err := s1.hold.Release(); err != nil {
		t.Fatal(err)
	}
	second.gets()
}

func TestReleaseByAnother(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	h := holder.gets()
	d, _ := w.process()
	me := Caller{UID: unix.Getuid()}
	if _, err := d.Release("", me, false); !errors.As(err, new(*NotOursError)) {
		t.Errorf("a stranger's: %v", err)
	}
	if _, err := d.Release(anID, me, false); !errors.As(err, new(*NotOursError)) {
		t.Errorf("an id that is not: %v", err)
	}
	if _, err := d.Release(holder.id, me, false); !errors.As(err, new(*NotOursError)) {
		t.Errorf("a run's, which ends by itself: %v", err)
	}
	if _, err := d.Release(holder.id, Caller{UID: unix.Getuid() + 1}, true); !errors.As(err, new(*NotOursError)) {
		t.Errorf("another user's: %v", err)
	}
	w.want(HeldNow)
	if _, err := d.Release("", me, true); err != nil {
		t.Errorf("by force: %v", err)
	}
	w.want(Free)
	var lost *TakenOverError
	if err := h.Release(); !errors.As(err, &lost) || lost.Kind != NoTakeover {
		t.Errorf("the holder is told %v", err)
	}
	if _, err := d.Release("", me, true); !errors.Is(err, ErrNotHeld) {
		t.Errorf("nothing held: %v", err)
	}
	if n := w.pasts(); n[endRemoved] != 1 || len(n) != 1 {
		t.Errorf("history %v", n)
	}
}
