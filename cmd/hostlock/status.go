//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// longHold is how long a hold without any limit may last before status points
// that out. It is an observation and gives nobody a right.
const longHold = 24 * time.Hour

// status says who holds the host and what an acquire would do. It takes
// nothing, creates nothing, and writes nothing to stderr while it works.
func status(args []string) error {
	fs := flagSet("status")
	lines := fs.Bool("porcelain", false, "")
	form := fs.Bool("json", false, "")
	lockDir := addLockDir(fs)
	if err := parseAll("status", fs, args); err != nil {
		return err
	}
	if err := excluding("status", fs, "porcelain", "json"); err != nil {
		return err
	}
	d, err := openToLook(*lockDir)
	var v *lock.View
	if err == nil {
		defer d.Close()
		v, err = d.Look()
	}
	if err != nil {
		return errors.Join(err, unusableStatus(err, *lines, *form))
	}
	c := caller()
	switch {
	case *lines:
		return put(porcelain(v.Status(c)))
	case *form:
		text, err := asJSON(everything(d, v, c))
		if err != nil {
			return err
		}
		return put(text)
	}
	return put(humanStatus(d, v, c))
}

// unusableStatus answers a program that asks about a directory which can
// vouch for nothing: the same keys as ever, and no state.
func unusableStatus(err error, lines, form bool) error {
	path := ""
	var u *lock.UnusableError
	if errors.As(err, &u) {
		path = u.Path
	}
	fields := []lock.Field{{Key: "state", Value: "unknown"}}
	if lines {
		for _, k := range []string{"mode", "owner", "anchor_pid", "anchor_uid", "hold_id", "seq", "reason", "worktree", "cmd", "ttl", "age", "waiting", "evidence", "runnable"} {
			fields = append(fields, lock.Field{Key: k, Value: "unknown"})
		}
	}
	fields = append(fields, lock.Field{Key: "lock_dir", Value: lock.Flatten(path, lock.MaxText)},
		lock.Field{Key: "lock_scope", Value: "unknown"}, lock.Field{Key: "lock_dir_source", Value: "unknown"},
		lock.Field{Key: "lock_dir_problem", Value: lock.Flatten(err.Error(), lock.MaxText)})
	switch {
	case lines:
		return put(porcelain(fields))
	case form:
		text, err := object(fields)
		if err != nil {
			return err
		}
		return put(text)
	}
	return nil
}

// humanStatus is the text for a person. Every word about the state follows
// from the state that the other forms print.
func humanStatus(d *lock.Dir, v *lock.View, c lock.Caller) string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	host, n := machine(), len(v.Waiting)
	t := v.Main(c)
	switch v.State {
	case lock.Free:
		switch n {
		case 0:
			add("FREE: nobody holds %s", host)
		default:
			add("FREE: nobody holds %s at this moment, but %s for it", host, counted(n, "waits", "wait"))
		}
	case lock.HeldNow:
		add("HELD: %s %s %s %s", who(t), verb(t), host, since(t))
	case lock.Stale:
		add("STALE: nobody alive holds %s: %s never released it, and %s", host, who(t), deadBecause(t))
	case lock.Expired:
		add("EXPIRED: %s still %s %s, %s, past its own limit, and %s", who(t), verb(t), host, since(t), livesBecause(t))
	}
	for _, h := range v.Holders {
		if h != t {
			add("also: %s", holderLine(h))
		}
		for _, line := range details(h) {
			add("  %s", line)
		}
	}
	for i, w := range v.Waiting {
		if i == 20 {
			add("waiting: and %d more", n-i)
			break
		}
		add("waiting, %s: %s, %s, since %s%s: %s", ordinal(i+1), who(w), w.Mode(), waitingSince(w), stopped(w), purpose(w))
	}
	add("acquire would %s", wouldDo(v, c))
	add("lock: %s, which covers %s (from %s)", d.Path, coverage(d), d.Source)
	if d.Problem != "" {
		add("problem: %s", d.Problem)
	}
	var b strings.Builder
	for _, l := range out {
		b.WriteString(strings.TrimRight(indented(l), " ") + "\n")
	}
	return b.String()
}

// indented is plain, with the spaces in front kept.
func indented(line string) string {
	text := strings.TrimLeft(line, " ")
	return line[:len(line)-len(text)] + plain(text)
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// holderLine is a holder beside the one that the first line speaks of.
func holderLine(t *lock.Ticket) string {
	switch t.Standing {
	case lock.Dead:
		return fmt.Sprintf("%s never released, and %s", who(t), deadBecause(t))
	case lock.Lapsed:
		return fmt.Sprintf("%s still %s, past its own limit, and %s", who(t), verb(t), livesBecause(t))
	case lock.Left, lock.Waits, lock.Holds, lock.Opaque, lock.Over:
	}
	return fmt.Sprintf("%s %s the host %s", who(t), verb(t), since(t))
}

// deadBecause is on what evidence a holder counts as dead.
func deadBecause(t *lock.Ticket) string {
	switch {
	case t.Kind == lock.Unverifiable:
		return "nothing has vouched for it for 5 min"
	case t.AnchorLiveness() == proc.Unknown:
		return "its process cannot be seen from here, but the kernel has let go of its lock"
	}
	return "its process has ended"
}

// livesBecause is on what evidence a holder counts as alive.
func livesBecause(t *lock.Ticket) string {
	if t.Record == nil {
		return "its record cannot be read (" + t.Problem + ")"
	}
	switch t.AnchorLiveness() {
	case proc.Alive:
		return "its process is alive"
	case proc.Running:
		return "a process with its pid runs; that it is the same cannot be proven, so it counts as alive"
	case proc.Unknown:
		return "its process cannot be seen from here, so it counts as alive"
	case proc.Gone:
	}
	return "its process has ended"
}

// details is what is known of a holder beside who it is.
func details(t *lock.Ticket) []string {
	var out []string
	add := func(key, value string) {
		if value != "" {
			out = append(out, fmt.Sprintf("%-9s %s", key, value))
		}
	}
	r := t.Record
	if r == nil {
		add("evidence", livesBecause(t))
		add("limit", limit(t))
		return out
	}
	add("for", purpose(t))
	if r.Cmd != "" && r.Cmd != purpose(t) {
		add("command", r.Cmd)
	}
	add("run", link(t))
	add("in", r.Worktree)
	if t.Standing == lock.Dead {
		add("held", since(t))
	} else {
		add("limit", limit(t))
		add("evidence", livesBecause(t)+stopped(t))
	}
	if r.Takeover != nil && *r.Takeover != lock.NoTakeover {
		from := ""
		if p := r.Previous; p != nil && p.Owner != "" {
			from = ", from " + p.Owner
		}
		add("takeover", takeoverOf(r)+from)
	}
	if r.Gate != "" && r.Gate != "none" {
		add("gate", r.Gate)
	}
	add("hold", r.ID)
	if held, ok := t.HeldFor(); ok && r.TTL() == 0 && held > longHold && t.Standing != lock.Dead {
		add("note", fmt.Sprintf("held for %s with no limit, longer than most measurements take. That gives nobody the right to take it: ask its owner", span(held)))
	}
	return out
}

func waitingSince(t *lock.Ticket) string {
	if t.Record == nil || t.Record.RequestedAt.IsZero() {
		return "an unknown time"
	}
	return moment(t.Record.RequestedAt.UTC)
}

// wouldDo says what acquire, called the same way, would really do.
func wouldDo(v *lock.View, c lock.Caller) string {
	if own := v.Own(c); own != nil {
		return "be refused (exit 9): this is inside that hold already; run joins it, and so does acquire --nested=join"
	}
	n := len(v.Waiting)
	behind := fmt.Sprintf("be refused (exit 2); with --wait it would queue, as the %s", ordinal(n+1))
	switch v.State {
	case lock.HeldNow:
		return behind
	case lock.Free:
		if n > 0 {
			return behind
		}
		return "take it at once"
	case lock.Stale:
		if n > 0 {
			return behind
		}
		return fmt.Sprintf("reap it and take the host, unless the dead holder left busy processes (exit 2; --wait waits for them; idle ones are let be): %s. hostlock reap acknowledges it; acquire --strict-reap refuses (exit 4)", lock.AcquiredAfterReap.With(kind(v, lock.Dead)))
	case lock.Expired:
		if n > 0 {
			return behind
		}
		return fmt.Sprintf("take the host from a holder that lives, with a warning that both sets of numbers are suspect: %s; --strict-reap refuses (exit 4)", lock.AcquiredAfterReap.With(kind(v, lock.Lapsed)))
	}
	return "not be sure"
}

// kind is what the takeover of the holders with that standing would be.
func kind(v *lock.View, s lock.Standing) lock.Takeover {
	k := lock.NoTakeover
	for _, t := range v.Holders {
		if t.Standing == s && (k == lock.NoTakeover || t.Kind == lock.Unverifiable) {
			k = t.Kind
		}
	}
	return k
}

// coverage says in words what the lock covers.
func coverage(d *lock.Dir) string {
	switch d.Scope {
	case lock.Box:
		return "the whole host"
	case lock.Container:
		return "only what shares this container or its /tmp, not the host"
	case lock.Private:
		return "only who is pointed at it too; everybody else uses " + d.Common
	}
	return "an unknown part of the host"
}

// document is everything that a look at the directory shows.
type document struct {
	State          string   `json:"state"`
	SampledAt      string   `json:"sampled_at"`
	AcquireWould   string   `json:"acquire_would"`
	Own            string   `json:"own_hold_id"` // the hold that the caller is inside of
	Runnable       *int     `json:"runnable"`
	LockDir        string   `json:"lock_dir"`
	LockScope      string   `json:"lock_scope"`
	LockDirSource  string   `json:"lock_dir_source"`
	LockDirProblem string   `json:"lock_dir_problem"`
	Holders        []ticket `json:"holders"`
	Waiting        []ticket `json:"waiting"`
}

type ticket struct {
	Seq      uint64       `json:"seq"`
	Standing string       `json:"standing"`
	Evidence string       `json:"evidence"`
	UID      *int         `json:"uid"` // by the kernel; null: unknown
	HeldSecs *float64     `json:"held_secs"`
	Takeover string       `json:"takeover_would_be,omitempty"`
	Problem  string       `json:"problem,omitempty"`
	Record   *lock.Record `json:"record"`
}

func everything(d *lock.Dir, v *lock.View, c lock.Caller) document {
	doc := document{
		State: v.State.String(), SampledAt: v.At.UTC.Format(time.RFC3339Nano), AcquireWould: wouldDo(v, c),
		LockDir: d.Path, LockScope: d.Scope.String(), LockDirSource: d.Source.String(), LockDirProblem: d.Problem,
		Holders: []ticket{}, Waiting: []ticket{},
	}
	if own := v.Own(c); own != nil {
		doc.Own = own.ID()
	}
	if n, err := proc.Runnable(); err == nil {
		doc.Runnable = &n
	}
	for _, t := range v.Holders {
		doc.Holders = append(doc.Holders, asTicket(t))
	}
	for _, t := range v.Waiting {
		doc.Waiting = append(doc.Waiting, asTicket(t))
	}
	return doc
}

func asTicket(t *lock.Ticket) ticket {
	out := ticket{Seq: t.Seq, Standing: t.Standing.String(), Evidence: t.Evidence(), Problem: t.Problem, Record: t.Record}
	if t.UID >= 0 {
		out.UID = &t.UID
	}
	if held, ok := t.HeldFor(); ok {
		secs := held.Seconds()
		out.HeldSecs = &secs
	}
	if t.Kind != lock.NoTakeover {
		out.Takeover = t.Kind.String()
	}
	return out
}
