package lock

import (
	"encoding"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// unmarshal reads a record as json.Unmarshal does. What hostlock writes itself while a
// hold lasts is read by hand: whoever meets a ticket has only just begun, and to reflect
// on the type takes it 0.2 ms and more, in front of every benchmark; and who joins a
// hundred that share the host reads them all. Anything unexpected is for encoding/json to
// judge: space between the tokens, a field that is unknown, twice there, null or of
// another kind, and the counters of a job. (A fuzz test holds the one to the other.)
func (r *Record) unmarshal(b []byte) error {
	if quick := *r; quick.read(b) {
		*r = quick
		return nil
	}
	return json.Unmarshal(b, r)
}

// read reports whether nothing was unexpected.
func (r *Record) read(b []byte) bool {
	q := jsonReader{rest: string(b), ok: true}
	q.record(r)
	return q.ok && strings.Trim(q.rest, " \t\r\n") == ""
}

// maxKeys is more than an object of a record has.
const maxKeys = 64

// A jsonReader reads what it expects and is not ok from the first surprise on, when what
// it says means nothing any more.
type jsonReader struct {
	rest string
	ok   bool
}

func (q *jsonReader) record(r *Record) {
	q.object(func(key string) {
		switch key {
		case "format":
			q.integer(&r.Format)
		case "seq":
			q.unsigned(&r.Seq)
		case "id":
			q.string(&r.ID)
		case "mode":
			q.word(&r.Mode)
		case "state":
			q.word(&r.Phase)
		case "joins":
			q.string(&r.Joins)
		case "resumes":
			q.string(&r.Resumes)
		case "resumes_anchor":
			r.ResumesAnchor = new(Party)
			q.party(r.ResumesAnchor)
		case "owner":
			q.string(&r.Owner)
		case "owner_declared":
			r.OwnerDeclared = q.boolean()
		case "reason":
			q.string(&r.Reason)
		case "cmd":
			q.string(&r.Cmd)
		case "worktree":
			q.string(&r.Worktree)
		case "anchor":
			q.party(&r.Anchor)
		case "body":
			q.party(&r.Body)
		case "requested_at":
			q.instant(&r.RequestedAt)
		case "held_at":
			r.HeldAt = new(Instant)
			q.instant(r.HeldAt)
		case "deadline":
			r.Deadline = new(Instant)
			q.instant(r.Deadline)
		case "job_ended_at":
			r.JobEndedAt = new(Instant)
			q.instant(r.JobEndedAt)
		case "ttl_s":
			q.long(&r.TTLSeconds)
		case "max_hold_s":
			q.long(&r.MaxHoldSeconds)
		case "outcome":
			q.string(&r.Outcome)
		case "takeover":
			r.Takeover = new(Takeover)
			q.word(r.Takeover)
		case "previous":
			r.Previous = new(Previous)
			q.object(func(key string) {
				switch key {
				case "id":
					q.string(&r.Previous.ID)
				case "owner":
					q.string(&r.Previous.Owner)
				default:
					q.ok = false
				}
			})
		case "gate":
			q.string(&r.Gate)
		case "survivors":
			q.string(&r.Survivors)
		case "left_running_names":
			q.string(&r.LeftNames)
		case "runnable_at_acquire":
			r.RunnableAtAcquire = new(int)
			q.integer(r.RunnableAtAcquire)
		case "left_running":
			r.LeftRunning = new(int)
			q.integer(r.LeftRunning)
		case "lock_scope":
			q.string(&r.LockScope)
		case "version":
			q.string(&r.Version)
		case "job":
			r.Job = make(map[string]string)
			q.object(func(key string) {
				var v string
				q.string(&v)
				r.Job[key] = v
			})
		case "exit_status":
			r.ExitStatus = new(int)
			q.integer(r.ExitStatus)
		default:
			q.ok = false
		}
	})
}

func (q *jsonReader) party(p *Party) {
	q.object(func(key string) {
		switch key {
		case "pid":
			q.integer(&p.PID)
		case "pid_ns":
			q.unsigned(&p.PIDNS)
		case "pidfs_ino":
			q.unsigned(&p.PIDFSIno)
		case "start":
			q.unsigned(&p.Start)
		case "boot_id":
			q.string(&p.BootID)
		case "time_ns":
			q.unsigned(&p.TimeNS)
		case "uid":
			q.integer(&p.UID)
		case "comm":
			q.string(&p.Comm)
		default:
			q.ok = false
		}
	})
}

func (q *jsonReader) instant(i *Instant) {
	q.object(func(key string) {
		switch key {
		case "utc":
			q.time(&i.UTC)
		case "boot_ns":
			q.long((*int64)(&i.Boot))
		default:
			q.ok = false
		}
	})
}

// object calls field for each field, whose value that reads.
func (q *jsonReader) object(field func(key string)) {
	q.expect("{")
	if q.skip("}") {
		return
	}
	for seen := []string(nil); q.ok; {
		key, plain := q.quoted()
		// The second adds to the first, or replaces it. Of more than there should be each
		// would be sought among all, under the guard.
		if len(seen) == maxKeys || slices.Contains(seen, key) {
			q.ok = false
		}
		seen = append(seen, key)
		q.ok = q.ok && plain
		if q.expect(":"); !q.ok {
			return
		}
		field(key)
		if q.skip("}") {
			return
		}
		q.expect(",")
	}
}

// skip passes over a token if that is the next.
func (q *jsonReader) skip(token string) (found bool) {
	q.rest, found = strings.CutPrefix(q.rest, token)
	return found
}

func (q *jsonReader) expect(token string) { q.ok = q.skip(token) && q.ok }

// quoted is what stands between the quotes of a string: the string itself, if plain.
func (q *jsonReader) quoted() (s string, plain bool) {
	q.expect(`"`)
	plain = true
	for i := 0; i < len(q.rest); i++ {
		switch c := q.rest[i]; {
		case c == '"':
			s, q.rest = q.rest[:i], q.rest[i+1:]
			return s, plain && utf8.ValidString(s)
		case c == '\\':
			plain = false
			i++ // over a quote, for one
		case c < ' ':
			plain = false // and is not allowed
		}
	}
	q.ok = false
	return "", plain
}

func (q *jsonReader) text() string {
	s, plain := q.quoted()
	if q.ok && !plain {
		q.ok = json.Unmarshal([]byte(`"`+s+`"`), &s) == nil
	}
	return s
}

func (q *jsonReader) string(s *string) { *s = q.text() }

func (q *jsonReader) boolean() bool {
	if q.skip("true") {
		return true
	}
	q.expect("false")
	return false
}

// number is the next token if that is a whole number as we write it.
func (q *jsonReader) number() string {
	digits := strings.TrimPrefix(q.rest, "-")
	end := len(digits) - len(strings.TrimLeft(digits, "0123456789"))
	if end > 1 && digits[0] == '0' {
		q.ok = false
	}
	n := len(q.rest) - len(digits) + end
	s := q.rest[:n]
	q.rest = q.rest[n:]
	return s
}

func (q *jsonReader) long(n *int64) {
	v, err := strconv.ParseInt(q.number(), 10, 64)
	q.ok = q.ok && err == nil
	*n = v
}

func (q *jsonReader) integer(n *int) {
	v, err := strconv.Atoi(q.number())
	q.ok = q.ok && err == nil
	*n = v
}

func (q *jsonReader) unsigned(n *uint64) {
	v, err := strconv.ParseUint(q.number(), 10, 64)
	q.ok = q.ok && err == nil
	*n = v
}

// word is one of a vocabulary.
func (q *jsonReader) word(v encoding.TextUnmarshaler) {
	if s := q.text(); q.ok {
		q.ok = v.UnmarshalText([]byte(s)) == nil
	}
}

// time is one that is written without an escape, which time.Time does not know.
func (q *jsonReader) time(t *time.Time) {
	s, _ := q.quoted()
	q.ok = q.ok && t.UnmarshalText([]byte(s)) == nil
}
