package lock

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// appendJSON writes the record as encoding/json would, byte for byte (a test
// holds it to that). A record is written once or twice in front of every
// benchmark, in a process that has only just begun: there, reflecting on the type
// took 0.19 ms, most of it under the guard.
func (r *Record) appendJSON(b []byte) ([]byte, error) {
	w := jsonWriter{b: b}
	w.open()
	err := w.record(r)
	w.close()
	return w.b, err
}

// record writes the fields of a record, in the order of the type.
func (w *jsonWriter) record(r *Record) (err error) {
	w.integer("format", int64(r.Format))
	w.unsigned("seq", r.Seq)
	w.text("id", r.ID)
	w.text("mode", r.Mode.String())
	w.text("state", r.Phase.String())
	w.optional("joins", r.Joins)
	w.optional("resumes", r.Resumes)
	if r.ResumesAnchor != nil {
		w.party("resumes_anchor", r.ResumesAnchor)
	}
	w.optional("owner", r.Owner)
	w.boolean("owner_declared", r.OwnerDeclared)
	w.optional("reason", r.Reason)
	w.optional("cmd", r.Cmd)
	w.optional("worktree", r.Worktree)
	w.party("anchor", &r.Anchor)
	w.party("body", &r.Body)
	w.instant("requested_at", &r.RequestedAt)
	w.instant("held_at", r.HeldAt)
	w.instant("deadline", r.Deadline)
	w.instant("job_ended_at", r.JobEndedAt)
	w.integer("ttl_s", r.TTLSeconds)
	w.integer("max_hold_s", r.MaxHoldSeconds)
	w.optional("outcome", r.Outcome)
	if r.Takeover != nil {
		w.text("takeover", r.Takeover.String())
	}
	if p := r.Previous; p != nil {
		w.key("previous")
		w.open()
		w.text("id", p.ID)
		w.text("owner", p.Owner)
		w.close()
	}
	w.optional("gate", r.Gate)
	w.optional("survivors", r.Survivors)
	w.optional("left_running_names", r.LeftNames)
	if r.RunnableAtAcquire != nil {
		w.integer("runnable_at_acquire", int64(*r.RunnableAtAcquire))
	}
	if r.LeftRunning != nil {
		w.integer("left_running", int64(*r.LeftRunning))
	}
	w.optional("lock_scope", r.LockScope)
	w.optional("version", r.Version)
	if len(r.Job) > 0 {
		w.key("job")
		w.open()
		keys := make([]string, 0, len(r.Job))
		for k := range r.Job {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			w.text(k, r.Job[k])
		}
		w.close()
	}
	if r.Window != nil {
		err = w.any("window", r.Window)
	}
	if r.Evidence != nil && err == nil {
		err = w.any("evidence", r.Evidence)
	}
	if r.ExitStatus != nil {
		w.integer("exit_status", int64(*r.ExitStatus))
	}
	return err
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

// A jsonWriter appends the fields of an object.
type jsonWriter struct{ b []byte }

func (w *jsonWriter) open()  { w.b = append(w.b, '{') }
func (w *jsonWriter) close() { w.b = append(w.b, '}') }

func (w *jsonWriter) key(name string) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(appendString(w.b, name), ':')
}

func (w *jsonWriter) text(name, value string) {
	w.key(name)
	w.b = appendString(w.b, value)
}

func (w *jsonWriter) optional(name, value string) {
	if value != "" {
		w.text(name, value)
	}
}

func (w *jsonWriter) integer(name string, n int64) {
	w.key(name)
	w.b = strconv.AppendInt(w.b, n, 10)
}

func (w *jsonWriter) unsigned(name string, n uint64) {
	w.key(name)
	w.b = strconv.AppendUint(w.b, n, 10)
}

func (w *jsonWriter) boolean(name string, v bool) {
	w.key(name)
	w.b = strconv.AppendBool(w.b, v)
}

func (w *jsonWriter) time(t time.Time) {
	w.b = append(w.b, '"')
	w.b = t.AppendFormat(w.b, time.RFC3339Nano)
	w.b = append(w.b, '"')
}

// seconds is a number of seconds, to the nanosecond.
func (w *jsonWriter) seconds(name string, s float64) {
	w.key(name)
	w.b = strconv.AppendFloat(w.b, s, 'f', -1, 64)
}

func (w *jsonWriter) any(name string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		w.key(name)
		w.b = append(w.b, text...)
	}
	return err
}

// instant leaves out what is nil.
func (w *jsonWriter) instant(name string, i *Instant) {
	if i == nil {
		return
	}
	w.key(name)
	w.open()
	w.key("utc")
	w.time(i.UTC)
	w.integer("boot_ns", int64(i.Boot))
	w.close()
}

func (w *jsonWriter) party(name string, p *Party) {
	w.key(name)
	w.open()
	w.integer("pid", int64(p.PID))
	for _, f := range []struct {
		name  string
		value uint64
	}{{"pid_ns", p.PIDNS}, {"pidfs_ino", p.PIDFSIno}, {"start", p.Start}} {
		if f.value != 0 {
			w.unsigned(f.name, f.value)
		}
	}
	w.optional("boot_id", p.BootID)
	if p.TimeNS != 0 {
		w.unsigned("time_ns", p.TimeNS)
	}
	w.integer("uid", int64(p.UID))
	w.optional("comm", p.Comm)
	w.close()
}

// appendString quotes as encoding/json does: what could end a script element
// is escaped, and invalid UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c == '\b':
				b = append(b, '\\', 'b')
			case c == '\f':
				b = append(b, '\\', 'f')
			case c == '\n':
				b = append(b, '\\', 'n')
			case c == '\r':
				b = append(b, '\\', 'r')
			case c == '\t':
				b = append(b, '\\', 't')
			case c < ' ' || c == '<' || c == '>' || c == '&':
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			default:
				b = append(b, c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, `\ufffd`...)
		case r == '\u2028' || r == '\u2029':
			b = append(b, '\\', 'u', '2', '0', '2', hex[r&15])
		default:
			b = append(b, s[i:i+size]...)
		}
		i += size
	}
	return append(b, '"')
}
