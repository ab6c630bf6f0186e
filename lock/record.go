package lock

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/org/hostlock-action/proc"
)

// Format is the format of the directory and of its records. Formats Format and
// Format-1 are read; a newer one is refused, never guessed at.
const Format = 1

// maxRecord is the size in bytes past which a record is not read: a peer
// writes it.
const maxRecord = 64 << 10

// DefaultMaxHold bounds a hold whose anchor runs but cannot be identified:
// past it the hold is judged like one past its ttl.
const DefaultMaxHold = 120 * time.Hour

// An Instant is a moment on two clocks. Spans are measured on CLOCK_BOOTTIME
// wherever both ends share a boot and a time namespace, so that a step of the
// wall clock neither frees nor extends a lock.
type Instant struct {
	UTC  time.Time     `json:"utc"`
	Boot time.Duration `json:"boot_ns"`
}

// Add moves an instant on both clocks.
func (i Instant) Add(d time.Duration) Instant {
	return Instant{UTC: i.UTC.Add(d), Boot: i.Boot + d}
}

// IsZero reports an instant that nobody recorded.
func (i Instant) IsZero() bool { return i.UTC.IsZero() && i.Boot == 0 }

// A Party is a process with a part in a ticket. UID and Comm are what the
// writer of the record saw.
type Party struct {
	proc.Identity
	UID  int    `json:"uid"`
	Comm string `json:"comm,omitempty"`
}

// Same reports whether two parties are one process, as far as the record says.
func (p Party) Same(q Party) bool {
	return p.PID == q.PID && p.Start == q.Start && p.PIDNS == q.PIDNS && p.BootID == q.BootID && p.PIDFSIno == q.PIDFSIno
}

// Previous names the hold that was taken over.
type Previous struct {
	ID    string `json:"id"`
	Owner string `json:"owner"`
}

// A Record is what a ticket says of itself. Processes of the hold write it;
// everybody reads it, and nobody believes it without a look at the processes it
// names. The uid of the hold is not in it: that is the owner of the .lock file,
// for which the kernel vouches.
type Record struct {
	Format int    `json:"format"`
	Seq    uint64 `json:"seq"`
	ID     string `json:"id"`
	Mode   Mode   `json:"mode"`
	Phase  Phase  `json:"state"`
	// Joins is the hold inside which this one was taken; Resumes the job's
	// shared hold that comes back when this one ends, and ResumesAnchor that
	// job's process.
	Joins         string `json:"joins,omitempty"`
	Resumes       string `json:"resumes,omitempty"`
	ResumesAnchor *Party `json:"resumes_anchor,omitempty"`

	Owner         string `json:"owner,omitempty"`
	OwnerDeclared bool   `json:"owner_declared"`
	Reason        string `json:"reason,omitempty"`
	Cmd           string `json:"cmd,omitempty"`
	Worktree      string `json:"worktree,omitempty"`

	Anchor Party `json:"anchor"` // whose life is the hold's
	Body   Party `json:"body"`   // who embodies the ticket: the waiter, the run, the keeper

	RequestedAt Instant  `json:"requested_at"`
	HeldAt      *Instant `json:"held_at,omitempty"`
	Deadline    *Instant `json:"deadline,omitempty"` // of the wait
	// JobEndedAt: the job is over, and what it left running is waited for.
	JobEndedAt *Instant `json:"job_ended_at,omitempty"`

	TTLSeconds     int64 `json:"ttl_s"` // 0: none
	MaxHoldSeconds int64 `json:"max_hold_s"`

	Outcome           string            `json:"outcome,omitempty"`
	Takeover          *Takeover         `json:"takeover,omitempty"` // nil: not recorded, which is not "none"
	Previous          *Previous         `json:"previous,omitempty"`
	Gate              string            `json:"gate,omitempty"`
	Survivors         string            `json:"survivors,omitempty"`
	LeftNames         string            `json:"left_running_names,omitempty"`
	RunnableAtAcquire *int              `json:"runnable_at_acquire,omitempty"`
	LeftRunning       *int              `json:"left_running,omitempty"` // processes that outlived the run, or the job
	LockScope         string            `json:"lock_scope,omitempty"`
	Version           string            `json:"version,omitempty"`
	Job               map[string]string `json:"job,omitempty"`
	Window            *Window           `json:"window,omitempty"`      // when it opened
	Evidence          *Evidence         `json:"evidence,omitempty"`    // when it had closed
	ExitStatus        *int              `json:"exit_status,omitempty"` // of a run's command
}

// TTL is the holder's own limit; 0 is none.
func (r *Record) TTL() time.Duration { return time.Duration(r.TTLSeconds) * time.Second }

// Embodied reports whether the process that anchors the hold is the one that
// has its kernel lock: a run. Otherwise a keeper has it.
func (r *Record) Embodied() bool { return r.Anchor.Same(r.Body) }

func (r *Record) maxHold() time.Duration {
	if r.MaxHoldSeconds <= 0 {
		return DefaultMaxHold
	}
	return time.Duration(r.MaxHoldSeconds) * time.Second
}

const (
	noMode  = Mode(255)
	noPhase = Phase(255)
)

// maxSeconds keeps a peer's seconds inside what a time.Duration can hold.
const maxSeconds = int64(1<<63-1) / int64(time.Second) / 4

// decodeRecord reads a record. It fails on everything that would make the
// record's claim about the lock unclear; claims that are only shown to people
// are cleaned instead, for a peer wrote them.
func decodeRecord(b []byte, seq uint64) (*Record, error) {
	if len(b) > maxRecord {
		return nil, errors.New("record is too large")
	}
	// A zero mode or state is a valid value in Go; absent in a record it is a
	// claim that nobody made.
	r := &Record{Mode: noMode, Phase: noPhase}
	if err := r.unmarshal(b); err != nil {
		return nil, fmt.Errorf("record is damaged: %s", Flatten(err.Error(), 120))
	}
	switch {
	case r.Format > Format:
		return nil, fmt.Errorf("record has format %d, this hostlock reads %d", r.Format, Format)
	case r.Format < max(Format-1, 1):
		return nil, errors.New("record has no known format")
	case r.Seq != seq:
		return nil, errors.New("record belongs to another ticket")
	case !hexID(r.ID):
		return nil, errors.New("record has no id")
	case r.Joins != "" && !hexID(r.Joins), r.Resumes != "" && !hexID(r.Resumes):
		return nil, errors.New("record names a hold that cannot be")
	case r.TTLSeconds < 0 || r.TTLSeconds > maxSeconds || r.MaxHoldSeconds > maxSeconds:
		return nil, errors.New("record has an impossible ttl")
	case r.Mode == noMode || r.Phase == noPhase:
		return nil, errors.New("record says neither its state nor its mode")
	}
	r.clean()
	return r, nil
}

// clean makes what a peer wrote harmless to show.
func (r *Record) clean() {
	if !ValidOwner(r.Owner) {
		r.Owner, r.OwnerDeclared = "", false
	}
	r.Reason = Flatten(r.Reason, MaxText)
	r.Cmd = Flatten(r.Cmd, MaxText)
	r.Worktree = Flatten(r.Worktree, MaxText)
	r.Anchor.Comm = Flatten(r.Anchor.Comm, 64)
	r.Body.Comm = Flatten(r.Body.Comm, 64)
	r.Gate = token(r.Gate)
	r.Survivors = token(r.Survivors)
	r.LeftNames = Flatten(r.LeftNames, MaxText)
	r.LockScope = token(r.LockScope)
	r.Version = token(r.Version)
	r.Outcome = Flatten(r.Outcome, 64)
	if r.Evidence != nil {
		r.Evidence.clean()
	}
	if p := r.Previous; p != nil {
		if !ValidOwner(p.Owner) {
			p.Owner = ""
		}
		if !hexID(p.ID) {
			p.ID = ""
		}
	}
	for k, v := range r.Job {
		delete(r.Job, k)
		if k = token(k); k != "" {
			r.Job[k] = Flatten(v, MaxText)
		}
	}
}

// encode writes the record, keeping the fields of base (an earlier version of
// the same record) that this version of hostlock does not know.
func (r *Record) encode(base []byte) ([]byte, error) {
	b, err := r.appendJSON(make([]byte, 0, 2<<10))
	if err != nil || len(base) == 0 {
		return b, err
	}
	var old map[string]json.RawMessage
	_ = json.Unmarshal(base, &old) // of what is damaged nothing is kept
	known := recordFields()
	// In front of ours, for encoding/json takes the last of two names that differ in case.
	w := jsonWriter{b: []byte{'{'}}
	for k, v := range old {
		if !known[k] {
			w.key(k)
			w.b = append(w.b, v...)
		}
	}
	if len(w.b) == 1 {
		return b, nil
	}
	return append(append(w.b, ','), b[1:]...), nil
}

// recordFields are the keys that this version writes.
func recordFields() map[string]bool {
	known := make(map[string]bool)
	t := reflect.TypeFor[Record]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		known[name] = true
	}
	return known
}

// A Past is one finished hold. Peers wrote it: it has been cleaned like a
// record.
type Past struct {
	Record
	UID      int       `json:"uid"` // owner of the ticket, by the kernel
	End      string    `json:"end"`
	EndedAt  time.Time `json:"ended_at"`
	EndedBy  int       `json:"ended_by_uid"`
	WaitSecs float64   `json:"wait_secs"`
	HeldSecs float64   `json:"held_secs"`
}
