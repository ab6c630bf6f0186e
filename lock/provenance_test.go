//go:build linux

package lock

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A row's provenance is what the record and the kernel said, each under its own
// name; what nobody said is unknown. (R2; defects 24 to 29.)
func TestProvenance(t *testing.T) {
	w := newWorld(t)
	d, id := w.process()
	d.Scope, d.Source = Box, FromConfig
	d.host.runnable = func() (int, error) { return 3, nil }
	asked := w.clock
	w.pass(2 * time.Second)
	held := w.clock
	w.pass(10 * time.Second)
	atAcquire := 7
	full := func() *Ticket {
		return &Ticket{Seq: 4, UID: 4242, Standing: Holds, Record: &Record{
			Mode: Exclusive, Phase: Held, ID: anID, Seq: 4, Owner: "ann", OwnerDeclared: true, Reason: "x held_by=eve", Cmd: "make", Worktree: "/w",
			Anchor: Party{Identity: id, UID: 1}, Body: d.selfParty(), RequestedAt: asked, HeldAt: &held,
			Takeover: new(StalePID), Gate: "satisfied:1<=2", Survivors: "drained:1", RunnableAtAcquire: &atAcquire,
		}}
	}
	fields := func(tk *Ticket, bound int) map[string]string {
		v := &View{State: HeldNow, At: w.clock, dir: d}
		if tk != nil {
			v.Holders = []*Ticket{tk}
		}
		m := make(map[string]string)
		text := false
		for _, f := range v.Provenance(Caller{UID: unix.Getuid()}, bound) {
			if m[f.Key] != "" || f.Value == "" {
				t.Errorf("%s is there twice, or empty", f.Key)
			}
			if text && !f.Text {
				t.Errorf("%s comes behind a peer's free text", f.Key)
			}
			if f.Text != slices.Contains([]string{"reason", "held_worktree", "held_cmd"}, f.Key) {
				t.Errorf("%s is a peer's free text: %v", f.Key, f.Text)
			}
			text = text || f.Text
			m[f.Key] = f.Value
		}
		return m
	}
	want := func(what string, got map[string]string, pairs ...string) {
		t.Helper()
		for i := 0; i < len(pairs); i += 2 {
			if got[pairs[i]] != pairs[i+1] {
				t.Errorf("%s: %s=%s, want %s", what, pairs[i], got[pairs[i]], pairs[i+1])
			}
		}
	}
	want("held", fields(full(), 0), "hostlock_state", "HELD", "declared", "yes", "held_by", "ann", "held_uid", "4242", "held_pid", strconv.Itoa(id.PID),
		"held_secs", "10.0", "wait_secs", "2.0", "takeover", "stale_pid", "gate", "satisfied:1<=2", "survivors", "drained:1",
		"runnable_at_acquire", "7", "runnable", "3", "contended", "unknown", "mode", "exclusive", "hold_id", anID, "seq", "4",
		"lock_scope", "box", "lock_dir_source", "config", "lock_dir", w.path, "sampled_at", w.clock.UTC.Format(time.RFC3339Nano), "reason", "x held_by=eve", "held_cmd", "make", "held_worktree", "/w")

	root := full()
	root.UID = 0
	want("root's", fields(root, 0), "held_uid", "0")

	// An owner that nobody declared is nobody's word; the kernel's uid stays.
	tk := full()
	tk.Record.OwnerDeclared = false
	want("not declared", fields(tk, 0), "held_by", "unknown", "held_uid", "4242", "declared", "yes")
	for s, declared := range map[Standing]string{Holds: "yes", Lapsed: "yes", Dead: "no", Opaque: "unknown"} {
		tk := full()
		tk.Standing = s
		want(s.String(), fields(tk, 0), "declared", declared)
	}

	// A verdict needs a bound and a number.
	want("at the bound", fields(full(), 3), "contended", "no")
	want("above the bound", fields(full(), 2), "contended", "yes")
	d.host.runnable = func() (int, error) { return 0, errors.New("unreadable") }
	want("no number", fields(full(), 3), "contended", "unknown", "runnable", "unknown", "runnable_at_acquire", "7")

	// Absent is unknown, whatever is absent.
	bare := &Ticket{Seq: 4, UID: -1, Standing: Holds, Record: &Record{Phase: Held, ID: anID, Seq: 4, Anchor: Party{Identity: id}, Body: d.selfParty()}}
	for name, tk := range map[string]*Ticket{"nobody": nil, "no fields": bare, "unreadable": {Seq: 4, UID: -1, Standing: Opaque}} {
		for key, v := range fields(tk, 0) {
			if v == "none" || v == "-1" || strings.HasPrefix(key, "held_") && v != "unknown" && key != "held_pid" {
				t.Errorf("%s: %s=%s is an assertion that nobody made", name, key, v)
			}
		}
	}
	want("no fields", fields(bare, 0), "takeover", "unknown", "gate", "unknown", "survivors", "unknown", "held_secs", "unknown", "wait_secs", "unknown", "runnable_at_acquire", "unknown")
}

// The porcelain form has the same keys whatever it looks at.
func TestStatusFields(t *testing.T) {
	w := newWorld(t)
	d, id := w.process()
	held := w.clock
	w.pass(90 * time.Second)
	free := (&View{dir: d, At: w.clock}).Status(Caller{})
	for _, f := range free {
		if f.Text != slices.Contains([]string{"reason", "worktree", "cmd"}, f.Key) {
			t.Errorf("%s is a peer's free text: %v", f.Key, f.Text)
		}
	}
	of := func(tk *Ticket) map[string]string {
		m := make(map[string]string)
		for i, f := range (&View{State: HeldNow, Holders: []*Ticket{tk}, Waiting: []*Ticket{{}, {}}, dir: d, At: w.clock}).Status(Caller{}) {
			if f.Key != free[i].Key || f.Text != free[i].Text {
				t.Errorf("field %d is %s, and %s where nobody holds", i, f.Key, free[i].Key)
			}
			m[f.Key] = f.Value
		}
		return m
	}
	m := of(&Ticket{Seq: 4, UID: 4242, Standing: Holds, anchor: 2, Record: &Record{Mode: Shared, ID: anID, Owner: "ann", Anchor: Party{Identity: id}, HeldAt: &held, TTLSeconds: 60}})
	for k, v := range map[string]string{"state": "HELD", "mode": "shared", "owner": "ann", "anchor_pid": strconv.Itoa(id.PID), "anchor_uid": "4242", "hold_id": anID,
		"seq": "4", "ttl": "60", "age": "90.0", "waiting": "2", "evidence": "anchor_alive", "runnable": "1"} {
		if m[k] != v {
			t.Errorf("%s=%s, want %s", k, m[k], v)
		}
	}
	m = of(&Ticket{Seq: 4, UID: -1, Standing: Opaque})
	for _, k := range []string{"mode", "anchor_pid", "anchor_uid", "ttl", "age"} {
		if m[k] != "unknown" {
			t.Errorf("of what cannot be read: %s=%s", k, m[k])
		}
	}
	if m["evidence"] != "unreadable_record" || m["hold_id"] != "" {
		t.Errorf("of what cannot be read: %v", m)
	}
	if m := of(&Ticket{Seq: 4, UID: 0, Standing: Opaque}); m["anchor_uid"] != "0" {
		t.Errorf("root's: anchor_uid=%s", m["anchor_uid"])
	}
	// Nobody recorded since when: unknown, and not 56 years. (Defect 26.)
	if m := of(&Ticket{Seq: 4, UID: 1, Standing: Holds, Record: &Record{ID: anID, HeldAt: &Instant{}}}); m["age"] != "unknown" {
		t.Errorf("age=%s", m["age"])
	}
}
