//go:build linux

package lock

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A ticket is two files: NAME.lock, flock'd by the process that embodies it,
// and NAME.json, its record. NAME is a kind and 20 digits. The kind says what
// a reader may skip, so that an arrival behind a thousand waiters reads a few
// records and not a thousand:
//
//	t  exclusive, at its number in the queue
//	s  shared, at its number in the queue
//	j  taken inside another hold: may hold before lower numbers do
type entry struct {
	kind byte
	seq  uint64
}

const (
	kindExclusive = 't'
	kindShared    = 's'
	kindJoined    = 'j'

	lockSuffix   = ".lock"
	recordSuffix = ".json"
	// maxSeq keeps a peer's number from ending the numbers for all.
	maxSeq = 1<<62 - 1
)

func (e entry) name() string {
	digits := strconv.FormatUint(e.seq, 10)
	return string(e.kind) + strings.Repeat("0", 20-len(digits)) + digits
}

// parseEntry reads the name of a ticket's file.
func parseEntry(name string) (e entry, ok bool) {
	base, ok := strings.CutSuffix(name, lockSuffix)
	if !ok {
		base, ok = strings.CutSuffix(name, recordSuffix)
	}
	if !ok || len(base) != 21 || base[0] != kindExclusive && base[0] != kindShared && base[0] != kindJoined {
		return e, false
	}
	seq, _ := strconv.ParseUint(base[1:], 10, 64) // what is no number is 0, or too large
	if seq == 0 || seq > maxSeq {
		return e, false
	}
	return entry{base[0], seq}, true
}

// list returns the tickets in the directory by number, and what a crash left
// half made.
func (d *Dir) list() (entries []entry, leavings []string, err error) {
	err = d.each(func(name []byte) {
		if e, ok := parseEntry(string(name)); ok {
			entries = append(entries, e)
		} else if bytes.HasPrefix(name, []byte(tmpPrefix)) {
			leavings = append(leavings, string(name))
		}
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(entries, func(a, b entry) int {
		if a.seq != b.seq {
			return cmp.Compare(a.seq, b.seq)
		}
		return cmp.Compare(a.kind, b.kind)
	})
	return slices.Compact(entries), leavings, nil
}

// A Ticket is one place in the queue as this process sees it.
type Ticket struct {
	Seq      uint64
	Record   *Record // nil: absent, or unreadable
	UID      int     // owner of the .lock file, by the kernel; -1 unknown
	Standing Standing
	Kind     Takeover // what taking the host from it would be
	Problem  string   // why the record cannot be read

	entry  entry
	raw    []byte
	note   note
	noteAt time.Time // when the .lock was last written, by the kernel
	anchor proc.Liveness
	body   proc.Liveness
	unseen bool
	in     time.Duration

	heldFor time.Duration
}

// Mode is the ticket's; what cannot be read counts as exclusive.
func (t *Ticket) Mode() Mode {
	if t.Record == nil {
		return Exclusive
	}
	return t.Record.Mode
}

// ID is the hold's id; empty where it cannot be read.
func (t *Ticket) ID() string {
	if t.Record == nil {
		return ""
	}
	return t.Record.ID
}

// HeldFor is how long the ticket had held the host when it was read; false if
// nobody recorded since when.
func (t *Ticket) HeldFor() (time.Duration, bool) {
	if t.Record == nil || t.Record.HeldAt == nil || t.Record.HeldAt.IsZero() {
		return 0, false
	}
	return t.heldFor, true
}

// AnchorLiveness is whether the process lives whose life is the hold's.
func (t *Ticket) AnchorLiveness() proc.Liveness { return t.anchor }

// Holding reports whether the ticket counts as holding the host: alive, and
// within its ttl.
func (t *Ticket) Holding() bool { return t.Standing == Holds || t.Standing == Opaque }

// A note is what others write into a ticket's .lock file. In a sticky
// directory nobody can remove or rename over another user's file, so a takeover
// is noted there. A peer may have forged it: it is only ever heard beside our
// own look at the holder.
type note struct {
	Takeover Takeover `json:"takeover,omitempty"` // whoever took over says how
	Left     bool     `json:"left,omitempty"`     // passed in the queue: it no longer waits
	By       string   `json:"by,omitempty"`       // id of who wrote that
	// Unseen is since when nothing vouched for the holder; Drain since when
	// its survivors are waited for.
	Unseen *noted `json:"unseen,omitempty"`
	Drain  *noted `json:"drain,omitempty"`
}

type noted struct {
	Instant
	BootID string `json:"boot_id"`
	TimeNS uint64 `json:"time_ns"`
}

const maxNote = 4 << 10

// since is the time from an instant that a process with that boot and time
// namespace recorded until now. It is never negative.
func (d *Dir) since(i Instant, bootID string, timeNS uint64) time.Duration {
	now := d.host.now()
	span := now.UTC.Sub(i.UTC)
	if bootID == d.host.here.BootID && timeNS == d.host.here.TimeNS && i.Boot > 0 {
		span = now.Boot - i.Boot
	}
	return max(span, 0)
}

// age is since, for an instant of a record.
func (d *Dir) age(r *Record, i Instant) time.Duration {
	return d.since(i, r.Body.BootID, r.Body.TimeNS)
}

// noted is now, as a note.
func (d *Dir) noted() *noted {
	return &noted{d.host.now(), d.host.here.BootID, d.host.here.TimeNS}
}

// load reads a ticket and judges it.
func (d *Dir) load(e entry) *Ticket {
	t := &Ticket{Seq: e.seq, entry: e, UID: -1}
	ev := evidence{}

	lockFD, st, err := d.openFile(e.name()+lockSuffix, unix.O_RDONLY)
	switch {
	case err == nil && st.Nlink > 0:
		defer unix.Close(lockFD)
		t.UID = int(st.Uid)
		t.noteAt = time.Unix(st.Mtim.Unix())
		if st.Size > 0 {
			if b, err := readUpTo(lockFD, maxNote); err == nil {
				t.note = parseNote(b)
			}
		}
	case err == nil:
		unix.Close(lockFD)
		ev.lockAbsent = true
	case errors.Is(err, unix.ENOENT):
		ev.lockAbsent = true
	default:
		t.Problem = "its lock file cannot be opened: " + err.Error()
	}
	hasLock := err == nil && !ev.lockAbsent

	raw, rst, err := d.readFile(e.name()+recordSuffix, maxRecord)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		ev.unreadable, t.Problem = true, "its record cannot be read: "+err.Error()
	case hasLock && int(rst.Uid) != t.UID && rst.Uid != 0:
		ev.unreadable, t.Problem = true, "its record belongs to another user than its lock"
	default:
		if !hasLock {
			t.UID = int(rst.Uid)
		}
		if r, err := decodeRecord(raw, e.seq); err != nil {
			ev.unreadable, t.Problem = true, err.Error()
		} else if e.kind == kindShared && r.Mode != Shared || e.kind != kindJoined && r.Joins != "" {
			ev.unreadable, t.Problem = true, "its record contradicts its name"
		} else {
			t.Record, t.raw = r, raw
		}
	}
	ev.record = t.Record
	d.witness(t, &ev, lockFD, hasLock)
	v := judge(ev)
	t.Standing, t.Kind, t.unseen, t.in = v.standing, v.kind, v.unseen, v.in
	d.remember(t)
	return t
}

// witness gathers what judge needs to know, and no more: each look costs.
func (d *Dir) witness(t *Ticket, ev *evidence, lockFD int, hasLock bool) {
	var probe bool
	if r := t.Record; r == nil {
		probe = true
	} else {
		t.anchor = d.host.look(r.Anchor.Identity)
		t.body = t.anchor
		if !r.Embodied() && r.Phase == Waiting {
			t.body = d.host.look(r.Body.Identity)
		}
		if r.Phase == Held {
			probe = t.anchor == proc.Unknown
			// Without a time its age is unknown, which is not 56 years.
			if r.HeldAt != nil && !r.HeldAt.IsZero() {
				ev.heldFor = d.age(r, *r.HeldAt)
			} else if !r.RequestedAt.IsZero() {
				ev.heldFor = d.age(r, r.RequestedAt)
			}
			t.heldFor = ev.heldFor
		} else {
			probe = t.body == proc.Unknown || t.body == proc.Running
			if r.Deadline != nil {
				ev.overdue = d.overdue(r)
			}
		}
	}
	ev.anchor, ev.body = t.anchor, t.body
	ev.marked = t.note.Takeover != NoTakeover
	if probe && hasLock {
		ev.kernel = probeLock(lockFD)
	}
	ev.unseen = d.unseenFor(t)
}

// overdue is how far a waiting record is past its deadline; negative before it.
func (d *Dir) overdue(r *Record) time.Duration {
	now := d.host.now()
	if r.Body.BootID == d.host.here.BootID && r.Body.TimeNS == d.host.here.TimeNS {
		return now.Boot - r.Deadline.Boot
	}
	return now.UTC.Sub(r.Deadline.UTC)
}

// unseenFor is how long nothing has vouched for a ticket: what this process
// saw itself, or what a visitor noted. A note cannot be older than the file's
// last change, for which the kernel vouches: a forged one hastens nothing.
func (d *Dir) unseenFor(t *Ticket) time.Duration {
	var span time.Duration
	if n := t.note.Unseen; n != nil {
		span = min(d.since(n.Instant, n.BootID, n.TimeNS), d.host.now().UTC.Sub(t.noteAt))
	}
	if first, ok := d.unseen[t.entry]; ok {
		span = max(span, d.host.now().Boot-first.Boot)
	}
	return max(span, 0)
}

// remember keeps since when this process has seen nothing vouch for a ticket.
func (d *Dir) remember(t *Ticket) {
	_, known := d.unseen[t.entry]
	switch {
	case t.unseen && !known:
		if d.unseen == nil {
			d.unseen = make(map[entry]Instant)
		}
		d.unseen[t.entry] = d.host.now()
	case !t.unseen:
		delete(d.unseen, t.entry)
	}
}

// probeLock asks whether anybody has the kernel lock, and has it shared until fd is
// closed. Two probes are not in each other's way, nor in a ticket's: it is locked
// before it has its name.
func probeLock(fd int) kernelLock {
	_, err := retry(func() (int, error) { return 0, unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) })
	switch {
	case err == nil:
		return lockFree
	case errors.Is(err, unix.EWOULDBLOCK):
		return lockHeld
	}
	return lockUnasked
}

func parseNote(b []byte) note {
	var n note
	if json.Unmarshal(b, &n) != nil {
		return note{}
	}
	if !hexID(n.By) {
		n.By = ""
	}
	return n
}

// writeNote replaces a ticket's note, in one write so that a kill cannot tear
// it. The caller holds the guard.
func (d *Dir) writeNote(e entry, change func(*note)) error {
	fd, st, err := d.openFile(e.name()+lockSuffix, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var n note
	if old, err := readUpTo(fd, maxNote); err == nil {
		n = parseNote(old)
	}
	change(&n)
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	for int64(len(b)) < min(st.Size, maxNote) {
		b = append(b, ' ')
	}
	if err := writeAt(fd, b, 0); err != nil {
		return err
	}
	if st.Size > maxNote {
		return unix.Ftruncate(fd, int64(len(b)))
	}
	return nil
}

// remove takes a ticket's files away. The .lock goes first: without it there
// is no hold. In a sticky directory another user's files stay.
func (d *Dir) remove(e entry) error {
	if err := unix.Unlinkat(d.fd, e.name()+lockSuffix, 0); err != nil && err != unix.ENOENT {
		return err
	}
	if err := unix.Unlinkat(d.fd, e.name()+recordSuffix, 0); err != unix.ENOENT {
		return err
	}
	return nil
}

// clear takes away a ticket that nobody stands for any more, or notes that it
// was passed where it belongs to somebody else: a stopped waiter that wakes
// must not think that its place is still there. The caller holds the guard.
func (d *Dir) clear(t *Ticket) {
	if d.remove(t.entry) != nil && t.Standing == Left && !t.note.Left {
		_ = d.writeNote(t.entry, func(n *note) { n.Left = true })
	}
}

// noteUnseen keeps the note since when nothing vouches for a ticket. The
// caller holds the guard.
func (d *Dir) noteUnseen(t *Ticket) {
	n := t.note.Unseen
	switch {
	case t.unseen && (n == nil || t.noteAt.After(d.host.now().UTC)):
		_ = d.writeNote(t.entry, func(n *note) { n.Unseen = d.noted() })
	case !t.unseen && n != nil:
		_ = d.writeNote(t.entry, func(n *note) { n.Unseen = nil })
	}
}

// mark notes a takeover on a ticket and takes its files away where it may. An
// error means that the takeover could be seen by nobody. The caller holds the
// guard.
func (d *Dir) mark(t *Ticket, by string) error {
	marked := d.writeNote(t.entry, func(n *note) { n.Takeover, n.By = t.Kind, by })
	if removed := d.remove(t.entry); removed != nil && marked != nil {
		return errors.Join(removed, marked)
	}
	return nil
}
