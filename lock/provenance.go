//go:build linux

package lock

import (
	"strconv"
	"time"

	"github.com/org/hostlock-action/proc"
)

// A Field is one key and its value in an output whose keys are an interface:
// they are never renamed, only added to. Text marks values that a peer typed
// freely; they are one line but may contain anything else.
type Field struct {
	Key, Value string
	Text       bool
}

// unknown is the value of what nobody recorded or what cannot be seen. It is
// never "none": that would be an assertion.
const unknown = "unknown"

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return s
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(max(d, 0).Seconds(), 'f', 1, 64)
}

// Provenance says where a measured row comes from: who holds the host, by what
// evidence, what had to be taken over. bound is the number of runnable tasks that
// the caller calls contended; 0 is no bound and gives no verdict. The free-text
// fields come last.
func (v *View) Provenance(c Caller, bound int) []Field {
	d := v.dir
	t := v.Main(c)
	if t == nil {
		t = &Ticket{UID: -1}
	}
	r := t.Record
	blank := r == nil
	if blank {
		r = new(Record)
	}
	fields := map[string]string{"hostlock_state": v.State.String()}
	switch t.Standing {
	case Holds, Lapsed:
		fields["declared"] = "yes"
	case Left, Waits, Over, Dead:
		fields["declared"] = "no"
	case Opaque:
	}
	if r.OwnerDeclared {
		fields["held_by"] = r.Owner
	}
	if t.UID >= 0 {
		fields["held_uid"] = strconv.Itoa(t.UID)
	}
	if !blank {
		fields["held_pid"] = strconv.Itoa(r.Anchor.PID)
		fields["mode"] = r.Mode.String()
		fields["hold_id"] = r.ID
		fields["seq"] = strconv.FormatUint(r.Seq, 10)
		if r.Takeover != nil {
			fields["takeover"] = r.Takeover.String()
		}
		if held, ok := v.HeldFor(t); ok {
			fields["held_secs"] = seconds(held)
			if !r.RequestedAt.IsZero() {
				fields["wait_secs"] = seconds(r.HeldAt.Boot - r.RequestedAt.Boot)
			}
		}
		fields["gate"] = r.Gate
		fields["survivors"] = r.Survivors
		if r.RunnableAtAcquire != nil {
			fields["runnable_at_acquire"] = strconv.Itoa(*r.RunnableAtAcquire)
		}
	}
	if n, err := d.host.runnable(); err == nil {
		fields["runnable"] = strconv.Itoa(n)
		if bound > 0 {
			fields["contended"] = map[bool]string{true: "no", false: "yes"}[n <= bound]
		}
	}
	fields["lock_dir"] = Flatten(d.Path, MaxText)
	fields["lock_scope"] = d.Scope.String()
	fields["lock_dir_source"] = d.Source.String()
	fields["sampled_at"] = v.At.UTC.Format(time.RFC3339Nano)

	var out []Field
	for _, k := range []string{"hostlock_state", "declared", "held_by", "held_uid", "held_pid", "held_secs", "takeover", "gate",
		"runnable_at_acquire", "runnable", "contended", "mode", "hold_id", "seq", "wait_secs", "survivors", "lock_dir", "lock_scope",
		"lock_dir_source", "sampled_at"} {
		out = append(out, Field{Key: k, Value: orUnknown(fields[k])})
	}
	for _, f := range []Field{{"reason", r.Reason, true}, {"held_worktree", r.Worktree, true}, {"held_cmd", r.Cmd, true}} {
		f.Value = orUnknown(f.Value)
		out = append(out, f)
	}
	return out
}

// Status is the porcelain form of a look: always the same keys, empty or
// unknown where there is nothing.
func (v *View) Status(c Caller) []Field {
	d := v.dir
	t := v.Main(c)
	r := new(Record)
	var anchor, uid, age, ttl, evidence, mode, seq string
	if t != nil {
		evidence = t.Evidence()
		age = unknown
		if held, ok := v.HeldFor(t); ok {
			age = seconds(held)
		}
		uid = unknown
		if t.UID >= 0 {
			uid = strconv.Itoa(t.UID)
		}
		seq = strconv.FormatUint(t.Seq, 10)
		mode, ttl, anchor = unknown, unknown, unknown
		if t.Record != nil {
			r = t.Record
			mode, anchor = r.Mode.String(), strconv.Itoa(r.Anchor.PID)
			ttl = strconv.FormatInt(r.TTLSeconds, 10)
		}
	}
	runnable := unknown
	if n, err := d.host.runnable(); err == nil {
		runnable = strconv.Itoa(n)
	}
	return []Field{
		{Key: "state", Value: v.State.String()}, {Key: "mode", Value: mode}, {Key: "owner", Value: r.Owner},
		{Key: "anchor_pid", Value: anchor}, {Key: "anchor_uid", Value: uid}, {Key: "hold_id", Value: r.ID}, {Key: "seq", Value: seq},
		{"reason", r.Reason, true}, {"worktree", r.Worktree, true}, {"cmd", r.Cmd, true},
		{Key: "ttl", Value: ttl}, {Key: "age", Value: age}, {Key: "waiting", Value: strconv.Itoa(len(v.Waiting))},
		{Key: "evidence", Value: evidence}, {Key: "runnable", Value: runnable},
		{Key: "lock_dir", Value: Flatten(d.Path, MaxText)}, {Key: "lock_scope", Value: d.Scope.String()},
		{Key: "lock_dir_source", Value: d.Source.String()}, {Key: "lock_dir_problem", Value: Flatten(d.Problem, MaxText)},
	}
}

// Evidence says in one word what a ticket's standing rests on.
func (t *Ticket) Evidence() string {
	switch {
	case t.Record == nil:
		return "unreadable_record"
	case t.anchor == proc.Unknown:
		return "anchor_unseen"
	}
	return "anchor_" + t.anchor.String()
}
