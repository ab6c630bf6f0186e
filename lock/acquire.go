//go:build linux

package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A Request asks for the host.
type Request struct {
	Mode          Mode
	Owner         string // a valid owner
	OwnerDeclared bool   // typed by somebody, not a default
	Reason        string
	Cmd           string
	Worktree      string
	Job           map[string]string
	Version       string

	// Anchor is the process whose life is the hold's; the zero Party is this
	// process itself, which then embodies the ticket.
	Anchor Party
	TTL    time.Duration // 0: none
	Caller Caller
	// Join allows the request to be answered by a hold that the caller is
	// already inside of.
	Join Nesting

	Wait    bool
	Timeout time.Duration // of the wait; more than 0 if Wait

	StrictReap      bool
	IgnoreSurvivors bool
	Gate            Gate

	// Notify is told what the wait is for, at once and whenever that changes.
	// It is never called under the guard.
	Notify func(Event)
}

// Nesting is what to do inside one's own hold.
type Nesting uint8

const (
	RefuseNested Nesting = iota // an error: the request could only wait for itself
	JoinTicket                  // a ticket of its own inside the hold: run
	JoinHold                    // nothing is taken, and nothing is to be released
)

// An Event is news for whoever waits.
type Event struct {
	Blocker  *Ticket // who is in the way; nil when it is not a ticket
	Holder   *Ticket // who has the host meanwhile; nil if only waiters are in the way
	Place    int     // live waiters before us that must go first, plus one
	Deadline time.Time
	Waited   time.Duration
	Passed   []*Ticket // holders that were taken over
	Evicted  bool      // one of them lives: both sets of numbers are suspect
	Text     string    // anything else: the gate, survivors
}

// A Hold is the host, taken.
type Hold struct {
	Record Record
	// Ended is how the hold ended, once it has been released.
	Ended Past
	// Outer is the hold that answered a JoinHold request; nothing was taken.
	Outer *Ticket

	d      *Dir
	entry  entry
	lockFD int
	raw    []byte  // the record as another process wrote it, if we go on from that
	job    *Record // the job's shared hold that comes back at the end of a trade
}

// Outcome is the published form of how the hold was taken.
func (h *Hold) Outcome() string { return h.Record.Outcome }

// an attempt is a request on its way.
type attempt struct {
	d    *Dir
	req  Request
	hold *Hold
	// deadline is when the wait ends, on CLOCK_BOOTTIME.
	deadline time.Duration
	started  time.Duration
	lastSeen *Ticket   // who was in the way
	dead     []*Ticket // passed, and not yet acknowledged
	evicted  []*Ticket // passed alive, past their ttl
	around   []*Record // the holds that we are inside of
	former   *Hold     // our ticket before we lost our place
	waker    *waker
	followed map[entry]*follower // of who is, or was, in the way
	closing  sync.WaitGroup
	loose    entry // who had no kernel lock when we came to follow
	own      int   // pidfd of the anchor, if that is not this process
	told     string
}

// Acquire takes the host, waiting for it if the request says so. Whatever
// error it returns, nothing is held and no ticket is left.
func (d *Dir) Acquire(ctx context.Context, req Request) (*Hold, error) {
	a := &attempt{d: d, req: req, own: -1, started: d.host.now().Boot}
	if d.host.self.PIDNS == 0 {
		// Others would take our pid for one of their own namespace, and judge
		// whatever has that number there.
		return nil, &UnusableError{Path: d.Path, Problem: "this process cannot tell its pid namespace (is /proc mounted?), so nobody could tell whether it lives"}
	}
	if req.Anchor.PID == 0 {
		a.req.Anchor = d.selfParty()
	}
	if a.req.Wait {
		a.deadline = a.started + req.Timeout
	}
	w, err := newWaker(ctx)
	if err != nil {
		return nil, d.cannot("wait", err)
	}
	a.waker = w
	defer w.close()
	defer a.unfollow()
	if a.req.Anchor.PID != d.host.self.PID {
		fd, l := d.host.open(a.req.Anchor.Identity)
		if l == proc.Gone {
			return nil, &InterruptedError{ErrAnchorGone}
		}
		a.own = fd
		defer func() { unix.Close(a.own) }()
	}
	h, err := a.queue(ctx)
	if err != nil || h.Outer != nil {
		return h, err
	}
	if err := a.settle(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// queue takes a ticket and waits until it is admitted.
func (a *attempt) queue(ctx context.Context) (*Hold, error) {
	for {
		if err := a.over(ctx); err != nil {
			return nil, err
		}
		h, vigil, event, err := a.turn()
		if errors.Is(err, errGuardLost) {
			continue
		}
		if err != nil || h != nil {
			return h, err
		}
		a.notify(event)
		a.sleep(vigil, event.Blocker)
		if err := a.over(ctx); err != nil {
			// Whoever stands far back watches only who is next in front.
			if late, ok := err.(*TimeoutError); ok {
				late.Holder = a.d.holder()
			}
			a.abandon()
			return nil, err
		}
	}
}

// over reports why the attempt must not go on, if so.
func (a *attempt) over(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return &InterruptedError{context.Cause(ctx)}
	case ready(a.own):
		return &InterruptedError{ErrAnchorGone}
	case a.req.Wait && a.d.host.now().Boot >= a.deadline:
		if t := a.lastSeen; t != nil {
			if now := a.d.load(t.entry); now.Record != nil {
				a.lastSeen = now // for how long by now, and until when
			}
		}
		return &TimeoutError{Waited: a.waited(), Blocker: a.lastSeen}
	}
	return nil
}

func (a *attempt) waited() time.Duration { return a.d.host.now().Boot - a.started }

func (a *attempt) notify(e Event) {
	if a.req.Notify != nil {
		e.Waited = a.waited()
		e.Deadline = a.d.host.now().UTC.Add(a.deadline - a.d.host.now().Boot)
		a.req.Notify(e)
	}
}

// turn is one session under the guard: a ticket if there is none yet, a look
// at the queue, and the host if nothing is in the way.
func (a *attempt) turn() (_ *Hold, _ *vigil, _ Event, err error) {
	d := a.d
	s, err := d.enter()
	if err != nil {
		a.forget()
		return nil, nil, Event{}, err
	}
	defer s.leave()
	defer func() {
		if err != nil {
			a.drop()
		}
	}()
	entries, leavings, err := d.list()
	if err != nil {
		return nil, nil, Event{}, d.cannot("list it", err)
	}
	for _, n := range leavings {
		_ = unix.Unlinkat(d.fd, n, 0) // a crash's; in a sticky directory perhaps not ours to remove
	}
	seen := make(map[entry]*Ticket)
	load := func(e entry) *Ticket {
		t, ok := seen[e]
		if !ok {
			t = d.load(e)
			seen[e] = t
			d.noteUnseen(t)
		}
		return t
	}

	if a.hold != nil && !a.stillQueued() {
		// Removed, or passed as left: whoever passed us may hold the host. Our
		// place is gone, our patience is not: to the end of the queue. A ticket
		// that is noted as left must go, or we would wait for ourselves. The job
		// that we traded for is still ours to stand for.
		a.hold.hearOfJobEnd()
		a.former = a.hold
		if _, ok := a.hold.own(); ok {
			entries = slices.DeleteFunc(entries, func(e entry) bool { return e == a.hold.entry })
			a.drop()
		}
		a.forget()
	}
	if h := a.hold; h != nil {
		// Of our own we know, and need not read, that it waits.
		seen[h.entry] = &Ticket{Seq: h.entry.seq, Record: &h.Record, UID: d.uid, Standing: Waits, entry: h.entry}
	}
	held := holders(entries, load)
	outer, err := inside(a.req.Caller, held)
	if err != nil {
		return nil, nil, Event{}, err
	}
	c := claim{mode: a.req.Mode}
	traded := tradable(a.req, outer)
	if traded != nil {
		// To admission, the job's own shared hold is gone: we stand at our
		// number like a stranger.
		c.chain.ids = []string{traded.ID()}
	} else if outer != nil {
		c.joins, c.chain = outer.Record.ID, chainOf(outer, held)
		mode, err := nested(a.req, outer, c.chain, held)
		if err != nil {
			return nil, nil, Event{}, err
		}
		if a.req.Join == JoinHold {
			return &Hold{d: d, Outer: outer, lockFD: -1}, nil, Event{}, nil
		}
		c.mode = mode
	}
	if a.hold != nil {
		if a.hold.Record.Mode == Exclusive {
			// Our ticket says so to everybody, also when the hold is gone inside
			// which a shared run had to be exclusive.
			c.mode = Exclusive
		}
		c.seq, c.kind = a.hold.entry.seq, a.hold.entry.kind
	}
	a.around = nil
	for _, t := range held {
		if c.joins != "" && c.chain.has(t) {
			a.around = append(a.around, t.Record)
		}
	}
	dec := admit(c, entries, load)
	for _, t := range dec.left {
		d.clear(t)
	}
	if dec.blocker == nil {
		if kind, t := takeover(dec.passed); kind != NoTakeover && a.req.StrictReap {
			return nil, nil, Event{}, &ReapRefusedError{Kind: kind, Ticket: t}
		}
	} else if !a.req.Wait {
		return nil, nil, Event{}, &BusyError{Blocker: dec.blocker}
	}
	// If somebody removed the guard while we were stopped in this session, others
	// have had theirs, and the decision is of a queue that is no more.
	if !s.current() {
		return nil, nil, Event{}, errGuardLost
	}
	if a.hold == nil {
		if err := a.take(s, entries, c, dec.blocker == nil); err != nil {
			return nil, nil, Event{}, d.cannot("take a ticket", err)
		}
	} else if dec.blocker == nil {
		if err := a.hold.update(func(r *Record) { a.held(r) }); err != nil {
			return nil, nil, Event{}, d.cannot("record the hold", err)
		}
	}
	if traded != nil {
		if err := a.trade(traded); err != nil {
			return nil, nil, Event{}, d.cannot("trade the job's shared hold", err)
		}
	}
	if dec.blocker != nil {
		a.lastSeen = dec.blocker
		v := d.watch(dec.blocker)
		if outer == nil {
			for _, t := range a.trades(entries, held, load) {
				// When that trade ends the job holds again, and we are inside.
				if !d.watchFile(v, t.entry) {
					v.within(blindLook)
				}
			}
		}
		return nil, v, Event{Blocker: dec.blocker, Holder: holding(held), Place: a.place(entries, held)}, nil
	}
	// A lapsed holder lives and may wake at any time: it is evicted in the
	// session that admits us. A dead one is marked when its survivors are gone.
	for _, t := range dec.passed {
		if t.Standing == Dead {
			a.dead = append(a.dead, t)
			continue
		}
		if err := d.evict(a.hold, t); err != nil {
			return nil, nil, Event{}, d.cannot("evict the holder past its ttl", err)
		}
		a.evicted = append(a.evicted, t)
	}
	return a.hold, nil, Event{}, nil
}

// errGuardLost is a session whose guard was removed meanwhile.
var errGuardLost = errors.New("the guard was replaced")

// nested is the mode in which a request inside a hold is granted, or why not.
func nested(req Request, outer *Ticket, c chain, held []*Ticket) (Mode, error) {
	switch {
	case req.Mode == Exclusive && outer.Mode() == Shared:
		return 0, &NestedError{Hold: outer, Problem: "this asks for the host alone from inside a shared hold of its own, beside which others may run: ask with --shared, or take the outer hold exclusively"}
	case req.Join == RefuseNested:
		return 0, &NestedError{Hold: outer, Problem: "this is already inside a hold of its own and could only wait for itself: release that first, or pass --nested=join"}
	case req.Join == JoinHold && !c.live:
		return 0, &NestedError{Hold: outer, Problem: "the hold that this is inside of has lapsed"}
	case c.exclusive(held):
		return Exclusive, nil
	}
	return req.Mode, nil
}

// place is our ticket's place among those who wait, from 1. It is counted by name: to
// read a record each would make every arrival in a long queue read all of it, under
// the guard. A waiter that died a moment ago is counted.
func (a *attempt) place(entries []entry, held []*Ticket) int {
	n := 1
	for _, e := range entries {
		if e.seq >= a.hold.entry.seq {
			break
		}
		if !slices.ContainsFunc(held, func(t *Ticket) bool { return t.entry == e }) {
			n++
		}
	}
	return n
}

// take makes the ticket. The .lock is locked before it has its name, so that
// nobody's probe is ever in the way.
func (a *attempt) take(s *session, entries []entry, c claim, admitted bool) (err error) {
	d := a.d
	seq, err := s.next(entries)
	if err != nil {
		return err
	}
	e := entry{kindExclusive, seq}
	switch {
	case c.joins != "":
		e.kind = kindJoined
	case c.mode == Shared:
		e.kind = kindShared
	}
	now := d.host.now()
	req := &a.req
	h := &Hold{d: d, entry: e, lockFD: -1, Record: Record{
		Format: Format, Seq: seq, ID: randomHex(16), Mode: c.mode, Phase: Waiting, Joins: c.joins,
		Owner: req.Owner, OwnerDeclared: req.OwnerDeclared,
		Reason: Flatten(req.Reason, MaxText), Cmd: Flatten(req.Cmd, MaxText), Worktree: Flatten(req.Worktree, MaxText),
		Anchor: req.Anchor, Body: d.selfParty(),
		RequestedAt:    now.Add(a.started - now.Boot),
		TTLSeconds:     int64(req.TTL / time.Second),
		MaxHoldSeconds: int64(DefaultMaxHold / time.Second),
		LockScope:      d.Scope.String(), Version: req.Version, Job: req.Job,
	}}
	if req.Wait {
		deadline := now.Add(a.deadline - now.Boot)
		h.Record.Deadline = &deadline
	}
	if a.former != nil && a.former.job != nil {
		h.standFor(a.former.job)
		h.Record.JobEndedAt = a.former.Record.JobEndedAt
	}
	// Until a keeper has taken over, the hold lives and dies with us.
	if admitted {
		a.held(&h.Record)
	}
	fd, tmp, err := d.newFile(nil, 0o666)
	if err != nil {
		return err
	}
	undo := tmp
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(d.fd, undo, 0)
			unix.Close(fd)
		}
	}()
	if _, err = retry(func() (int, error) { return 0, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return err
	}
	if err = renameNew(d.fd, tmp, e.name()+lockSuffix); err != nil {
		return err
	}
	undo = e.name() + lockSuffix
	h.lockFD = fd
	if err = h.write(nil); err != nil {
		return err
	}
	a.hold = h
	return nil
}

// held turns a record into that of a holder. Until a keeper has taken over,
// the hold is anchored to the process that takes it.
func (a *attempt) held(r *Record) {
	now := a.d.host.now()
	r.Phase, r.HeldAt = Held, &now
	r.Anchor = r.Body
	// "none" is an assertion, made by the one who knows. What a record does
	// not say is unknown.
	none := NoTakeover
	r.Takeover, r.Gate, r.Survivors = &none, "none", "none"
	r.Outcome = Acquired.String()
	if r.Joins != "" {
		r.Outcome = Joined.String()
	}
	if n, err := a.d.host.runnable(); err == nil {
		r.RunnableAtAcquire = &n
	}
	if g := a.req.Gate; g.set() {
		r.Gate = g.requested()
	}
	for _, outer := range a.around {
		r.inherit(outer)
	}
}

// stillQueued reports whether our waiting ticket is still ours and nobody
// passed it. The caller holds the guard.
func (a *attempt) stillQueued() bool {
	n, ok := a.hold.own()
	return ok && !n.Left
}

// drop removes our ticket, under the guard.
func (a *attempt) drop() {
	if a.hold != nil {
		_ = a.d.remove(a.hold.entry)
		a.forget()
	}
}

// forget closes our ticket without touching the directory.
func (a *attempt) forget() {
	if a.hold != nil {
		unix.Close(a.hold.lockFD)
		a.hold = nil
	}
}

// abandon leaves the queue. Without the guard the ticket is left to be judged:
// its kernel lock is free and its process ends.
func (a *attempt) abandon() {
	defer a.forget()
	s, err := a.d.enter()
	if err != nil {
		return
	}
	defer s.leave()
	if _, ok := a.hold.own(); ok {
		_ = a.d.remove(a.hold.entry)
	}
}

// cannot turns what the kernel refused into the error for an unusable
// directory; the errors that say more stay as they are.
func (d *Dir) cannot(what string, err error) error {
	var u *UnusableError
	if errors.As(err, &u) {
		return err
	}
	return &UnusableError{Path: d.Path, Problem: fmt.Sprintf("cannot %s", what), Err: err}
}

func (d *Dir) selfParty() Party {
	return Party{Identity: d.host.self, UID: unix.Getuid(), Comm: d.comm()}
}
