//go:build linux

package lock

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	historyFile = "history.jsonl"
	// maxHistory is the size in bytes past which the older half goes.
	maxHistory = 1 << 20
)

// How a hold ended.
const (
	endReleased  = "released"
	endTakenOver = "taken_over"
	endRemoved   = "forced" // by release --force, or acknowledged by reap
)

// past is a hold that ends now.
func (d *Dir) past(r *Record, uid int, end string) Past {
	p := Past{Record: *r, UID: uid, End: end, EndedAt: d.host.now().UTC, EndedBy: d.uid}
	if r.Window != nil { // what was counted is of use only until the other end is there
		p.Window = &Window{At: r.Window.At}
	}
	if r.HeldAt != nil {
		p.WaitSecs, p.HeldSecs = max(0, r.HeldAt.Boot-r.RequestedAt.Boot).Seconds(), d.age(r, *r.HeldAt).Seconds()
	}
	return p
}

// finish appends a hold that ends now to the history. That it cannot is a
// warning, for the host is free all the same. The caller holds the guard.
func (d *Dir) finish(r *Record, uid int, end string) { d.enterHistory(d.past(r, uid, end)) }

func (d *Dir) enterHistory(past Past) {
	if past.Phase != Held || past.HeldAt == nil {
		return
	}
	line, err := past.appendJSON(nil)
	if err == nil {
		err = d.appendHistory(append(line, '\n'))
	}
	if err != nil {
		d.Warnings = append(d.Warnings, "the history of "+d.Path+" could not be written: "+err.Error())
	}
}

func (d *Dir) appendHistory(line []byte) error {
	fd, st, err := d.openFile(historyFile, unix.O_RDWR)
	if errors.Is(err, unix.ENOENT) {
		var tmp string
		if fd, tmp, err = d.newFile(nil, 0o666); err != nil {
			return err
		}
		if err = renameNew(d.fd, tmp, historyFile); err != nil {
			_ = unix.Unlinkat(d.fd, tmp, 0)
			unix.Close(fd)
		}
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	size := st.Size
	if size > maxHistory {
		if size, err = halve(fd, size); err != nil {
			return err
		}
	}
	if size > 0 {
		var last [1]byte
		if _, _ = unix.Pread(fd, last[:], size-1); last[0] != '\n' {
			line = append([]byte{'\n'}, line...) // the last line was torn by a crash
		}
	}
	if err := writeAt(fd, line, size); err != nil {
		_ = unix.Ftruncate(fd, size) // not half a line
		return err
	}
	return nil
}

// halve keeps the newest half of the history, in place: in a sticky directory
// the file may be another user's and cannot be renamed over.
func halve(fd int, size int64) (int64, error) {
	keep := make([]byte, min(size, 2*maxHistory)/2)
	n, err := unix.Pread(fd, keep, size-int64(len(keep)))
	if err != nil {
		return size, err
	}
	keep = keep[:n]
	if i := bytes.IndexByte(keep, '\n'); i >= 0 {
		keep = keep[i+1:]
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		return size, err
	}
	return int64(len(keep)), writeAt(fd, keep, 0)
}

// History reads the finished holds, the oldest first. Lines that are damaged
// are passed over.
func (d *Dir) History() ([]Past, error) {
	if d.fd < 0 {
		return nil, nil
	}
	text, _, err := d.readFile(historyFile, 4*maxHistory)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, d.cannot("read its history", err)
	}
	var all []Past
	for line := range bytes.SplitSeq(text, []byte{'\n'}) {
		p := Past{Record: Record{Mode: noMode, Phase: noPhase}}
		if len(line) > maxRecord || json.Unmarshal(line, &p) != nil {
			continue
		}
		if p.Mode == noMode || !hexID(p.ID) {
			continue
		}
		p.Record.clean()
		p.End = token(p.End)
		all = append(all, p)
	}
	return all, nil
}

// appendJSON is one line of the history, written like a record and for the
// same reason.
func (p *Past) appendJSON(b []byte) ([]byte, error) {
	w := jsonWriter{b: b}
	w.open()
	err := w.record(&p.Record)
	w.integer("uid", int64(p.UID))
	w.text("end", p.End)
	w.key("ended_at")
	w.time(p.EndedAt)
	w.integer("ended_by_uid", int64(p.EndedBy))
	w.seconds("wait_secs", p.WaitSecs)
	w.seconds("held_secs", p.HeldSecs)
	w.close()
	return w.b, err
}

// seconds is a number of seconds, to the nanosecond.
func (w *jsonWriter) seconds(name string, s float64) {
	w.key(name)
	w.b = strconv.AppendFloat(w.b, s, 'f', -1, 64)
}
