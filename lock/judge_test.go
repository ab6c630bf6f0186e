package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/org/hostlock-action/proc"
)

var (
	anchorParty = Party{Identity: proc.Identity{PID: 10, Start: 10}}
	keeperParty = Party{Identity: proc.Identity{PID: 20, Start: 20}}
)

// aRun is the record of a hold that its anchor embodies, kept that of one that
// a keeper does.
func aRun(ttl time.Duration) *Record {
	return &Record{Phase: Held, Anchor: anchorParty, Body: anchorParty, TTLSeconds: int64(ttl / time.Second)}
}

func kept(ttl time.Duration) *Record {
	r := aRun(ttl)
	r.Body = keeperParty
	return r
}

func waiting(deadline bool) *Record {
	r := &Record{Phase: Waiting, Anchor: anchorParty, Body: anchorParty}
	if deadline {
		r.Deadline = new(Instant)
	}
	return r
}

// The evidence table of the design ("Who is alive"), row by row, and its
// boundaries in time.
func TestEvidenceTable(t *testing.T) {
	const (
		alive, running, unseen, gone = proc.Alive, proc.Running, proc.Unknown, proc.Gone
		h, ns                        = time.Hour, time.Nanosecond
	)
	is := func(s Standing) verdict { return verdict{standing: s} }
	dead := func(k Takeover) verdict { return verdict{standing: Dead, kind: k} }
	over := func(k Takeover) verdict { return verdict{standing: Over, kind: k} }
	lapsed := verdict{standing: Lapsed, kind: TTLExpired}
	until := func(s Standing, d time.Duration) verdict { return verdict{standing: s, in: d} }
	graced := func(s Standing, d time.Duration) verdict { return verdict{standing: s, unseen: true, in: d} }
	blind := verdict{standing: Dead, kind: Unverifiable, unseen: true}

	for _, tt := range []struct {
		name string
		e    evidence
		want verdict
	}{
		// held, anchor Alive: live, for ever without a ttl
		{"alive", evidence{record: aRun(0), anchor: alive}, is(Holds)},
		{"alive for a year", evidence{record: aRun(0), anchor: alive, heldFor: 8760 * h}, is(Holds)},
		{"alive, kept, keeper killed", evidence{record: kept(0), anchor: alive, body: gone, kernel: lockFree}, is(Holds)},
		{"alive, marked: a mark alone frees nothing", evidence{record: aRun(0), anchor: alive, marked: true}, is(Holds)},
		{"alive, marked, within its ttl", evidence{record: aRun(h), anchor: alive, marked: true, heldFor: h - ns}, until(Holds, ns)},
		{"alive, ttl", evidence{record: aRun(h), anchor: alive, heldFor: h / 4}, until(Holds, h*3/4)},
		{"alive, ttl reached", evidence{record: aRun(h), anchor: alive, heldFor: h}, lapsed},
		{"alive, ttl passed, marked", evidence{record: aRun(h), anchor: alive, heldFor: 2 * h, marked: true}, over(TTLExpired)},
		{"alive, unseen by others for a day", evidence{record: aRun(0), anchor: alive, unseen: 24 * h}, is(Holds)},

		// held, anchor Running: the clock decides nothing but ttl and max_hold
		{"running", evidence{record: aRun(0), anchor: running}, until(Holds, 120*h)},
		{"running for 40 minutes, lock free", evidence{record: aRun(0), anchor: running, kernel: lockFree, heldFor: 40 * time.Minute, unseen: 40 * time.Minute}, until(Holds, 120*h-40*time.Minute)},
		{"running, marked", evidence{record: aRun(0), anchor: running, marked: true, heldFor: h}, until(Holds, 119*h)},
		{"running, a moment before max_hold", evidence{record: aRun(0), anchor: running, heldFor: 120*h - ns}, until(Holds, ns)},
		{"running, max_hold reached", evidence{record: aRun(0), anchor: running, heldFor: 120 * h}, lapsed},
		{"running, its own max_hold", evidence{record: &Record{Phase: Held, Anchor: anchorParty, Body: anchorParty, MaxHoldSeconds: 60}, anchor: running, heldFor: time.Minute}, lapsed},
		{"running, ttl 1 s held 4000 s", evidence{record: aRun(time.Second), anchor: running, heldFor: 4000 * time.Second}, lapsed},
		{"running, ttl above max_hold", evidence{record: aRun(200 * h), anchor: running, heldFor: 120 * h}, lapsed},
		{"running, lapsed, marked", evidence{record: aRun(h), anchor: running, heldFor: h, marked: true}, over(TTLExpired)},

		// held, anchor Gone
		{"gone", evidence{record: aRun(0), anchor: gone}, dead(StalePID)},
		{"gone, kernel lock held", evidence{record: kept(0), anchor: gone, body: alive, kernel: lockHeld}, dead(StalePID)},
		{"gone, past its ttl", evidence{record: aRun(h), anchor: gone, heldFor: 2 * h}, dead(StalePID)},
		{"gone, marked", evidence{record: aRun(0), anchor: gone, marked: true}, over(StalePID)},

		// held, anchor Unknown: the kernel lock is the second witness
		{"unseen, lock held", evidence{record: kept(0), anchor: unseen, kernel: lockHeld, unseen: h}, is(Holds)},
		{"unseen, lock held, marked", evidence{record: kept(0), anchor: unseen, kernel: lockHeld, unseen: h, marked: true}, is(Holds)},
		{"unseen, lock held, ttl", evidence{record: kept(h), anchor: unseen, kernel: lockHeld, heldFor: h}, lapsed},
		{"unseen run, lock held", evidence{record: aRun(0), anchor: unseen, kernel: lockHeld}, is(Holds)},
		{"unseen run, lock free", evidence{record: aRun(0), anchor: unseen, kernel: lockFree}, dead(StalePID)},
		{"unseen run, lock free, marked", evidence{record: aRun(0), anchor: unseen, kernel: lockFree, marked: true}, over(StalePID)},
		{"unseen run, lock not to be probed", evidence{record: aRun(0), anchor: unseen}, graced(Holds, grace)},
		{"unseen, lock free", evidence{record: kept(0), anchor: unseen, kernel: lockFree}, graced(Holds, grace)},
		{"unseen, lock free, 200 s", evidence{record: kept(0), anchor: unseen, kernel: lockFree, unseen: 200 * time.Second}, graced(Holds, 100*time.Second)},
		{"unseen, lock free, 200 s, marked", evidence{record: kept(0), anchor: unseen, kernel: lockFree, unseen: 200 * time.Second, marked: true}, graced(Holds, 100*time.Second)},
		{"unseen, lock free, a moment before 300 s", evidence{record: kept(0), anchor: unseen, kernel: lockFree, unseen: 300*time.Second - ns}, graced(Holds, ns)},
		{"unseen, lock free, 300 s", evidence{record: kept(0), anchor: unseen, kernel: lockFree, unseen: 300 * time.Second}, blind},
		{"unseen, lock free, 400 s", evidence{record: kept(0), anchor: unseen, kernel: lockFree, unseen: 400 * time.Second}, blind},
		{"unseen, lock free, 400 s, marked", evidence{record: kept(0), anchor: unseen, kernel: lockFree, unseen: 400 * time.Second, marked: true}, verdict{standing: Over, kind: Unverifiable, unseen: true}},
		{"unseen, lock free, ttl reached in the grace", evidence{record: kept(h), anchor: unseen, kernel: lockFree, heldFor: h, unseen: time.Second}, lapsed},
		{"unseen, lock free, ttl reached, marked", evidence{record: kept(h), anchor: unseen, kernel: lockFree, heldFor: h, marked: true}, over(TTLExpired)},
		{"unseen, lock free, ttl falls before the grace ends", evidence{record: kept(h), anchor: unseen, kernel: lockFree, heldFor: h - time.Minute, unseen: time.Second}, graced(Holds, time.Minute)},
		{"unseen, lock free, ttl falls after the grace ends", evidence{record: kept(h), anchor: unseen, kernel: lockFree, unseen: time.Second}, graced(Holds, 299*time.Second)},

		// waiting
		{"waits", evidence{record: waiting(false), anchor: alive, body: alive}, is(Waits)},
		{"waits, an hour to go", evidence{record: waiting(true), anchor: alive, body: alive, overdue: -h}, until(Waits, h+deadlineSlack+time.Millisecond)},
		{"waits, at its deadline", evidence{record: waiting(true), anchor: alive, body: alive}, until(Waits, deadlineSlack+time.Millisecond)},
		{"waits, 5 s past its deadline", evidence{record: waiting(true), anchor: alive, body: alive, overdue: 5 * time.Second}, until(Waits, time.Millisecond)},
		{"waits, stopped past its deadline", evidence{record: waiting(true), anchor: alive, body: alive, overdue: 5*time.Second + ns}, is(Left)},
		{"waits, its body died", evidence{record: waiting(false), anchor: alive, body: gone, kernel: lockHeld}, is(Left)},
		{"waits, its anchor died", evidence{record: waiting(false), anchor: gone, body: alive, kernel: lockHeld}, is(Left)},
		{"waits, its anchor out of sight", evidence{record: waiting(false), anchor: unseen, body: alive}, is(Waits)},
		{"waits, unseen, lock held", evidence{record: waiting(false), anchor: unseen, body: unseen, kernel: lockHeld}, is(Waits)},
		{"waits, unseen, lock free", evidence{record: waiting(false), anchor: unseen, body: unseen, kernel: lockFree}, is(Left)},
		{"waits, running, lock held", evidence{record: waiting(false), anchor: running, body: running, kernel: lockHeld}, is(Waits)},
		{"waits, running, lock free", evidence{record: waiting(false), anchor: running, body: running, kernel: lockFree}, is(Left)},
		{"waits, unseen, lock not to be probed", evidence{record: waiting(false), anchor: unseen, body: unseen}, is(Waits)},
		{"waits, marked: nothing to take over", evidence{record: waiting(false), anchor: alive, body: alive, marked: true}, is(Waits)},

		// no record
		{"absent, lock free", evidence{kernel: lockFree}, is(Left)},
		{"absent, lock held", evidence{kernel: lockHeld}, is(Opaque)},
		{"absent, lock not to be probed", evidence{}, graced(Opaque, grace)},
		{"unreadable, lock held", evidence{unreadable: true, kernel: lockHeld, unseen: h}, is(Opaque)},
		{"unreadable, lock held, marked", evidence{unreadable: true, kernel: lockHeld, unseen: h, marked: true}, is(Opaque)},
		{"unreadable, lock free", evidence{unreadable: true, kernel: lockFree}, graced(Opaque, grace)},
		{"unreadable, lock free, 200 s", evidence{unreadable: true, kernel: lockFree, unseen: 200 * time.Second}, graced(Opaque, 100*time.Second)},
		{"unreadable, lock free, 400 s", evidence{unreadable: true, kernel: lockFree, unseen: 400 * time.Second}, blind},
		{"unreadable, lock not to be probed, 400 s", evidence{unreadable: true, unseen: 400 * time.Second}, blind},

		// the .lock was removed
		{"no lock file", evidence{lockAbsent: true}, is(Left)},
		{"no lock file, unreadable", evidence{lockAbsent: true, unreadable: true}, is(Left)},
		{"no lock file, a live run", evidence{lockAbsent: true, record: aRun(0), anchor: alive}, is(Holds)},
		{"no lock file, a live run past its ttl", evidence{lockAbsent: true, record: aRun(h), anchor: alive, heldFor: h}, lapsed},
		{"no lock file, a run that cannot be identified", evidence{lockAbsent: true, record: aRun(0), anchor: running}, is(Left)},
		{"no lock file, a dead run", evidence{lockAbsent: true, record: aRun(0), anchor: gone}, is(Left)},
		{"no lock file, kept", evidence{lockAbsent: true, record: kept(0), anchor: alive}, is(Left)},
		{"no lock file, waiting", evidence{lockAbsent: true, record: waiting(false), anchor: alive, body: alive}, is(Left)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := judge(tt.e); got != tt.want {
				t.Errorf("judge = %+v\nwant    %+v", got, tt.want)
			}
		})
	}
}

// Every combination of evidence, against what must hold of all of them.
func TestEvidenceInvariants(t *testing.T) {
	const ttl = time.Hour
	waiter := func(deadline, kept bool) *Record {
		r := waiting(deadline)
		if kept {
			r.Body = keeperParty
		}
		return r
	}
	records := []*Record{nil, aRun(0), aRun(ttl), kept(0), kept(ttl), waiter(false, false), waiter(true, false), waiter(true, true)}
	n := 0
	for _, r := range records {
		for _, unreadable := range []bool{false, true} {
			if r != nil && unreadable {
				continue
			}
			for _, anchor := range []proc.Liveness{proc.Alive, proc.Running, proc.Unknown, proc.Gone} {
				for _, body := range []proc.Liveness{proc.Alive, proc.Running, proc.Unknown, proc.Gone} {
					for _, kernel := range []kernelLock{lockUnasked, lockHeld, lockFree} {
						for _, absent := range []bool{false, true} {
							for _, heldFor := range []time.Duration{0, ttl - 1, ttl, DefaultMaxHold - 1, DefaultMaxHold} {
								for _, overdue := range []time.Duration{-ttl, 0, deadlineSlack, deadlineSlack + 1} {
									for _, unseen := range []time.Duration{0, grace - 1, grace} {
										e := evidence{record: r, unreadable: unreadable, anchor: anchor, body: body, kernel: kernel,
											lockAbsent: absent, heldFor: heldFor, overdue: overdue, unseen: unseen}
										n++
										if bad := contradiction(e); bad != "" {
											t.Fatalf("%s\nevidence %+v\nrecord %+v\nverdict %+v", bad, e, r, judge(e))
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
	t.Log(n, "combinations")
}

func contradiction(e evidence) string {
	marked := e
	marked.marked = true
	v, m := judge(e), judge(marked)
	frees := func(s Standing) bool { return s == Left || s == Dead || s == Over || s == Lapsed }
	held := e.record != nil && e.record.Phase == Held
	expired := held && (e.record.TTL() > 0 && e.heldFor >= e.record.TTL())
	seen := e.anchor == proc.Alive || e.anchor == proc.Running && e.heldFor < DefaultMaxHold || e.anchor == proc.Unknown && e.kernel == lockHeld
	switch {
	// theft
	case held && !e.lockAbsent && seen && !expired && v.standing != Holds:
		return "a live holder within its ttl does not hold"
	case held && !e.lockAbsent && e.anchor == proc.Unknown && e.kernel != lockFree && e.unseen < grace && !expired && v.standing != Holds:
		return "a holder that cannot be seen is not given its grace"
	case held && !e.record.Embodied() && !e.lockAbsent && e.anchor == proc.Unknown && e.unseen < grace && !expired && v.standing != Holds:
		return "a kept holder that cannot be seen is not given its grace"
	case held && e.anchor != proc.Gone && (v.standing == Dead && v.kind == StalePID) && !(e.anchor == proc.Unknown && e.kernel == lockFree && e.record.Embodied()):
		return "called dead without proof"
	case e.record == nil && e.kernel == lockHeld && !e.lockAbsent && v.standing != Opaque:
		return "somebody has the kernel lock of a ticket that nobody can read, and it counts for nothing"
	case e.unreadable && !e.lockAbsent && e.unseen < grace && v.standing != Opaque:
		return "an unreadable record is not given its grace"
	case v.standing == Over:
		return "over without a mark"
	case m.standing == Over && v.standing != Dead && v.standing != Lapsed, m.standing != Over && m != v:
		return "a mark alone changed the verdict"
	case (v.standing == Dead || v.standing == Lapsed) && m.standing != Over:
		return "a mark is not heard"
	// wedge
	case held && e.anchor == proc.Gone && !frees(v.standing):
		return "a dead holder holds"
	case e.kernel == lockFree && e.unseen >= grace && e.anchor == proc.Unknown && !frees(v.standing) && !(e.record != nil && !held && e.body == proc.Alive):
		return "unseen past its grace, and it still stands"
	case e.record != nil && !held && (e.anchor == proc.Gone || e.body == proc.Gone || e.overdue > deadlineSlack) && v.standing != Left:
		return "a dead or stopped waiter still waits"
	case held && e.record.TTL() > 0 && expired && v.standing == Holds:
		return "the ttl does not count"
	case held && e.anchor == proc.Running && e.heldFor >= DefaultMaxHold && v.standing == Holds:
		return "max_hold does not count"
	// words
	case held && v.standing == Waits, e.record != nil && !held && v.standing != Waits && v.standing != Left, v.standing == Opaque && e.record != nil:
		return "a standing of another phase"
	case (v.kind != NoTakeover) != (v.standing == Dead || v.standing == Lapsed):
		return "a takeover without somebody to take over from, or the reverse"
	case v.standing == Lapsed && v.kind != TTLExpired, v.standing == Dead && v.kind == TTLExpired:
		return "the takeover has the wrong name"
	case v.standing == Dead && v.kind == Unverifiable && (e.record != nil && e.anchor != proc.Unknown || e.unseen < grace):
		return "unverifiable, though it was seen"
	case v.in < 0:
		return "a look in the past"
	case v.in > 0 && !changes(e, v):
		return fmt.Sprintf("nothing changes after %v", v.in)
	case v.in > 1 && changesBefore(e, v):
		return fmt.Sprintf("something changes before %v", v.in)
	case v.in == 0 && changesEver(e, v):
		return "the clock will change the verdict, and nobody is told when"
	}
	return ""
}

// after is the same evidence when time has passed and nothing else.
func after(e evidence, d time.Duration) verdict {
	e.heldFor += d
	e.overdue += d
	e.unseen += d
	return judge(e)
}

func changes(e evidence, v verdict) bool { return after(e, v.in).standing != v.standing }

func changesBefore(e evidence, v verdict) bool {
	slack := time.Duration(1)
	if v.standing == Waits {
		slack = time.Millisecond // poll(2) counts milliseconds
	}
	return after(e, v.in-slack).standing != v.standing
}

func changesEver(e evidence, v verdict) bool {
	if v.standing != Holds && v.standing != Opaque && v.standing != Waits {
		return false
	}
	// Nobody notes unseen on what is seen.
	long := e
	long.heldFor += 1000 * time.Hour
	if e.record != nil && e.record.Deadline != nil {
		long.overdue += 1000 * time.Hour
	}
	if v.unseen {
		long.unseen += 1000 * time.Hour
	}
	return judge(long).standing != v.standing
}
