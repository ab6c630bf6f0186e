//go:build linux

package lock

import (
	"bytes"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// own reports whether the hold's ticket is still in its place, and what others
// noted on it: also on one that was taken away, for the descriptor keeps it. Only what
// is not there is gone, not what the kernel will not show. The caller holds the guard.
func (h *Hold) own() (n note, ok bool) {
	var mine, named unix.Stat_t
	if err := unix.Fstat(h.lockFD, &mine); err != nil {
		return n, err != unix.EBADF // released
	}
	err := unix.Fstatat(h.d.fd, h.entry.name()+lockSuffix, &named, unix.AT_SYMLINK_NOFOLLOW)
	ok = err == nil && sameInode(&mine, &named) || err != nil && err != unix.ENOENT
	if mine.Size > 0 {
		if b, err := readUpTo(h.lockFD, maxNote); err == nil {
			n = parseNote(b)
		}
	}
	return n, ok
}

// write puts the record in its place, whole. The caller holds the guard.
func (h *Hold) write(base []byte) error {
	b, err := h.Record.encode(base)
	if err != nil {
		return err
	}
	return h.d.replaceFile(h.entry.name()+recordSuffix, b, 0o644)
}

// update changes the record; if it cannot be written, nothing has changed. The
// caller holds the guard.
func (h *Hold) update(change func(*Record)) error {
	old := h.Record
	if h.job != nil {
		h.hearOfJobEnd()
	}
	change(&h.Record)
	if err := h.write(h.raw); err != nil {
		h.Record = old
		return err
	}
	return nil
}

// amend is update in a session of its own, and only while the ticket is ours:
// a result must never be written onto a successor's record.
func (h *Hold) amend(change func(*Record)) error {
	s, err := h.d.enter()
	if err != nil {
		return err
	}
	defer s.leave()
	if err := h.lost(); err != nil {
		return err
	}
	if err := h.update(change); err != nil {
		return h.d.cannot("record the hold", err)
	}
	return nil
}

// lost tells how a hold was taken from us; nil if it was not. A mark alone
// takes nothing: on a ticket in its place it counts only if by our own record we
// are past our ttl, which is what whoever wrote it saw.
func (h *Hold) lost() error {
	n, ok := h.own()
	if ok && (n.Takeover == NoTakeover || !h.lapsed()) {
		return nil
	}
	return &TakenOverError{Kind: n.Takeover, By: n.By}
}

func (h *Hold) lapsed() bool {
	ttl := h.Record.TTL()
	return ttl > 0 && h.Record.HeldAt != nil && h.d.age(&h.Record, *h.Record.HeldAt) >= ttl
}

// Release gives the host back. A *TakenOverError means that it was not ours to
// the end; then nothing of a successor's is touched. On any other error the
// ticket may still be there and ends with this process.
func (h *Hold) Release() error {
	if h.Outer != nil {
		return nil
	}
	if h.job != nil {
		return h.turnBack()
	}
	s, err := h.d.enter()
	moved := h.d.moved()
	if err != nil && !moved {
		return err
	}
	// Whoever follows wakes when the kernel lock is free, and wants the guard: so the
	// guard goes first. Closed, not unlocked: a descriptor that is shared with a keeper
	// would lose the lock for both.
	ended := false
	defer func() {
		if ended {
			unix.Close(h.lockFD)
			h.lockFD = -1
		}
	}()
	if err == nil {
		defer s.leave()
	}
	lost := h.lost()
	if moved {
		lost = &TakenOverError{}
	}
	end := endReleased
	if lost != nil {
		end = endTakenOver
		if h.Record.Evidence != nil {
			h.Record.Evidence.object(TakenOver, takenOverText)
		}
	}
	told := h.Ended.End != "" // by a trade that could not turn back
	if !told {
		h.Ended = h.d.past(&h.Record, unix.Geteuid(), end)
	}
	if _, ok := h.own(); ok && err == nil {
		if lost == nil && !told { // else whoever took over has written that
			h.d.enterHistory(h.Ended)
		}
		if err := h.d.remove(h.entry); err != nil {
			return h.d.cannot("remove the ticket", err)
		}
	}
	ended = true
	return lost
}

// moved reports whether the directory's path names another directory by now, or
// none: whoever comes now locks something else.
func (d *Dir) moved() bool {
	var mine, named unix.Stat_t
	return unix.Fstat(d.fd, &mine) == nil && (unix.Stat(d.Path, &named) != nil || !sameInode(&mine, &named))
}

func sameInode(a, b *unix.Stat_t) bool {
	return a.Ino == b.Ino &&
		a.Dev == b.Dev
}

// evict takes the host from a holder that lives past its own ttl, or is dead
// and drained. The caller holds the guard and has just been admitted.
func (d *Dir) evict(h *Hold, t *Ticket) error {
	by := ""
	if h != nil {
		by = h.Record.ID
	}
	if h != nil {
		// First, so that a takeover which is cut short is told twice and not
		// never: by the ticket that is still there it will be seen again.
		if err := h.update(func(r *Record) { r.tookOver(t) }); err != nil {
			return err
		}
	}
	if err := d.mark(t, by); err != nil {
		return err
	}
	if t.Record != nil {
		d.finish(t.Record, t.UID, endTakenOver)
	}
	return nil
}

// tookOver records a takeover; of several, the gravest is the one to report.
func (r *Record) tookOver(t *Ticket) {
	kind := t.Kind
	if !graver(&kind, r.Takeover) {
		return
	}
	r.Takeover = &kind
	r.Previous = &Previous{ID: t.ID(), Owner: t.ownerText()}
	if r.Joins == "" {
		r.Outcome = AcquiredAfterReap.With(kind)
	}
}

// inherit is what a hold inside another has to say of the host: the window that
// it measures in is no better than that of the hold around it.
func (r *Record) inherit(outer *Record) {
	if graver(outer.Takeover, r.Takeover) {
		r.Takeover, r.Previous = outer.Takeover, outer.Previous
	}
	if rank := survivorsRank(outer.Survivors); rank > survivorsRank(r.Survivors) {
		r.Survivors = outer.Survivors
	}
	if r.Gate == "none" && outer.Gate != "" {
		r.Gate = outer.Gate
	}
}

// survivorsRank orders what was found of a dead holder's processes by how much
// it takes from a measurement; what was not recorded is unknown.
func survivorsRank(s string) int {
	word, _, _ := strings.Cut(s, ":")
	return slices.Index([]string{"none", "drained", "idle", "", "unknown", "busy"}, word)
}

func (t *Ticket) ownerText() string {
	if t.Record == nil {
		return ""
	}
	return t.Record.Owner
}

// comm is the name of this process, by prctl(PR_GET_NAME).
func (d *Dir) comm() string {
	var buf [16]byte
	if err := unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&buf[0])), 0, 0, 0); err != nil {
		return ""
	}
	name, _, _ := bytes.Cut(buf[:], []byte{0})
	return strings.ToValidUTF8(string(name), "?")
}

// object adds to evidence what is only known once the hold has ended.
func (e *Evidence) object(r Reason, text string) {
	e.Reasons = append([]Finding{{r, text}}, e.Reasons...)
	if r.Verdict() == Suspect {
		e.Verdict = Suspect
	} else if e.Verdict == Clean {
		e.Verdict = VerdictUnknown
	}
}
