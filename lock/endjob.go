//go:build linux

package lock

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// jobEndPatience bounds how long a hold outlives its job for the sake of what
// the job left running.
const jobEndPatience = time.Minute

// EndJob says that the job of a job process has ended. What the job left
// running is killed by its runner only after the last hook, so a hold must not
// go at once: each hold that job anchors is anchored to its keeper from now on,
// who lets go once no process of the job is left, a minute later at the latest.
// closing completes each record; it is called under the guard and must only
// reckon. It returns these holds. One whose keeper is gone keeps its anchor and
// ends with that (its Record.JobEndedAt is nil). A trade of the job is told, so
// that the shared hold for which it stands does not come back.
func (d *Dir) EndJob(job proc.Identity, closing func(*Record)) ([]*Ticket, error) {
	if d.fd < 0 {
		return nil, nil
	}
	s, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	entries, _, err := d.list()
	if err != nil {
		return nil, d.cannot("list it", err)
	}
	var ended []*Ticket
	for _, e := range entries { // a trade may be anywhere in the queue
		t := d.load(e)
		r := t.Record
		if r == nil || t.Standing == Left || t.Standing == Over || t.UID != d.uid && d.uid != 0 {
			continue
		}
		if r.ResumesAnchor != nil && r.ResumesAnchor.Same(Party{Identity: job}) {
			h := &Hold{Record: *r, d: d, entry: t.entry, lockFD: -1, raw: t.raw}
			if err := h.update(func(r *Record) {
				now := d.host.now()
				r.JobEndedAt = &now
			}); err != nil {
				return ended, d.cannot("tell the job's trade", err)
			}
			continue
		}
		if r.Phase != Held || r.Embodied() || !r.Anchor.Same(Party{Identity: job}) {
			continue
		}
		ended = append(ended, t)
		if d.host.look(r.Body.Identity) == proc.Gone {
			continue
		}
		h := &Hold{Record: *r, d: d, entry: t.entry, lockFD: -1, raw: t.raw}
		if err := h.update(func(r *Record) {
			closing(r)
			now := d.host.now()
			r.JobEndedAt, r.Anchor = &now, r.Body
		}); err != nil {
			return ended, d.cannot("record the end of the job", err)
		}
		*r = h.Record
		// The keeper hears of changes to the .lock. What stands in it is left
		// alone: anybody may write there, so it can wake and decides nothing.
		if err := d.writeNote(t.entry, func(*note) {}); err != nil {
			return ended, d.cannot("tell the keeper", err)
		}
	}
	return ended, nil
}

// endedByJob is the hold's record as EndJob wrote it; nil if no job has ended.
// Only the hold's own uid and root can replace a record.
func (h *Hold) endedByJob() (r *Record, raw []byte) {
	raw, st, _ := h.d.readFile(h.entry.name()+recordSuffix, maxRecord)
	if int(st.Uid) == h.d.uid || st.Uid == 0 {
		r, _ = decodeRecord(raw, h.entry.seq) // nil, too, of what could not be read
	}
	if r == nil || r.ID != h.Record.ID || r.JobEndedAt == nil {
		return nil, nil
	}
	return r, raw
}

// jobEnded reports whether the job of the keeper's hold has ended.
func (k *keeper) jobEnded() bool {
	r, raw := k.hold.endedByJob()
	if r != nil {
		k.hold.Record, k.hold.raw = *r, raw
	}
	return r != nil
}

// outlast waits until the job has no process left, and releases the hold. It
// kills nobody: that is the runner's to do.
func (k *keeper) outlast() {
	d := k.hold.d
	end := d.host.now().Boot + jobEndPatience - d.since(*k.hold.Record.JobEndedAt, k.hold.Record.Body.BootID, k.hold.Record.Body.TimeNS)
	var left []proc.Process
	// One walk can miss a child that is started meanwhile, so nobody is left
	// only when two in a row say so.
	for empty := 0; empty < 2; {
		// At least a moment, so that whoever is left is named.
		found, ok := k.carriers(max(end-d.host.now().Boot, time.Second))
		if !ok {
			break
		}
		if left = found; len(left) == 0 {
			empty++
			continue
		}
		empty = 0
		if !k.watch(left, end) {
			break
		}
	}
	if len(left) > 0 {
		names := make([]string, len(left))
		for i, p := range left {
			names[i] = describe(p)
		}
		// In the history, for nobody is there to be told.
		n := len(left)
		_ = k.hold.amend(func(r *Record) { r.LeftRunning, r.LeftNames = &n, Flatten(join(names), MaxText) })
	}
	_ = k.hold.Release()
}

// carriers finds the processes of the job, but for the job process itself.
// Another process's environment can be made to block whoever reads it, and that
// must not keep the host: ok is false if it took longer than patience.
func (k *keeper) carriers(patience time.Duration) (found []proc.Process, ok bool) {
	id := k.hold.Record.Job[jobTrackingID]
	if id == "" {
		return nil, true
	}
	done := make(chan []proc.Process, 1)
	go func() {
		all, _ := k.hold.d.host.carrying(func(environ []byte) bool { return proc.HasEnv(environ, envTrackingID, id) })
		done <- all
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case all := <-done:
		for _, p := range all {
			if p.PID != k.anchor.PID {
				found = append(found, p)
			}
		}
		return found, true
	case <-timer.C:
		return nil, false
	}
}

// watch waits until all of these processes have ended, in one poll each time
// one does; false: the time is up, or the ticket is not ours any more.
func (k *keeper) watch(all []proc.Process, end time.Duration) bool {
	d := k.hold.d
	var v vigil
	defer v.close()
	d.watchFile(&v, k.hold.entry)
	watched := len(v.fds)
	for _, p := range all {
		id, err := p.Identify()
		if err != nil {
			continue
		}
		if !d.watchProcess(&v, id) {
			v.within(blindLook)
		}
	}
	// Who cannot be watched is looked at by the next walk, and not at once: one walk
	// after the other would be a load of its own.
	for open := len(v.fds) - watched; open > 0 || v.limit > 0; {
		left := end - d.host.now().Boot
		if left <= 0 {
			return false
		}
		if v.limit > 0 {
			left = min(left, v.limit)
		}
		if !poll(v.fds, left) {
			return true // the time is up, or one cannot be watched: look
		}
		for i := range v.fds {
			f := &v.fds[i]
			switch {
			case f.Revents == 0:
			case i < watched: // the ticket's file
				var buf [4096]byte
				_, _ = unix.Read(int(f.Fd), buf[:])
				if k.removed() {
					return false
				}
			default:
				unix.Close(int(f.Fd))
				f.Fd = -1 // passed over by poll(2)
				open--
			}
		}
	}
	return true
}

// removed reports whether the ticket is gone or was taken over.
func (k *keeper) removed() bool { return k.hold.lost() != nil }
