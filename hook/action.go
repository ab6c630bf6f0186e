//go:build linux

package hook

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// Outputs are those of action.yml. All are written whatever happens.
var Outputs = []string{"outcome", "state", "takeover", "gate", "hold-id", "held-by", "held-uid", "wait-seconds", "runnable-at-acquire",
	"command-exit-code", "verdict", "reasons", "contended", "foreign-cores", "own-cores", "efficiency", "pressure", "provenance", "provenance-line"}

// The action's state, for its own post step.
const (
	stateHold = "hold_id"
	stateDir  = "lock_dir"
	stateMute = "no_summary"
)

// A Step is what became of the action's step.
type Step struct {
	Err     error        // why the host was not got
	Hold    *lock.Record // what was taken
	Joined  *lock.Ticket // the hold that answered instead
	Command *int         // exit status of the command
	Lost    error        // how the hold was lost before it was released
	Past    *lock.Past   // the hold of a run, as it ended
	Waited  time.Duration
	Dir     *lock.Dir
	sample  []lock.Field
}

// Input is an input of the action.
func (c *Call) Input(name string) string { return c.files().input(name) }

// AddPath makes this binary known to the command, and to the job's later steps.
// Where one is installed the PATH stays as it is: to put /usr/bin in front of it
// would hide what the job has set up.
func (c *Call) AddPath() {
	if _, err := exec.LookPath("hostlock"); err == nil {
		return
	}
	self, err := os.Executable()
	if err != nil || filepath.Base(self) != "hostlock" {
		return
	}
	dir := filepath.Dir(self)
	c.warnIf(os.Setenv("PATH", dir+string(os.PathListSeparator)+c.Getenv("PATH")), c.files().path(dir))
}

// Acquire takes the host for the rest of the job.
func (c *Call) Acquire(ctx context.Context, d *lock.Dir, req lock.Request, summary bool) *Step {
	began := proc.BootTime()
	s := &Step{Dir: d}
	h, err := d.Acquire(ctx, req)
	if err == nil && h.Outer == nil {
		h.Record.Window = openWindow(req.Anchor)
		err = handOver(ctx, d, h, req.Anchor, c.Caller)
	}
	s.Waited = proc.BootTime() - began
	switch {
	case err != nil:
		s.Err = err
	case h.Outer != nil:
		s.Joined = h.Outer
		c.Say("inside the hold of %s already: nothing was taken, and nothing is to be released", who(h.Outer))
	default:
		s.Hold = &h.Record
		f := c.files()
		c.warnIf(f.state(stateHold, h.Record.ID), f.state(stateDir, d.Path))
		if !summary {
			c.warnIf(f.state(stateMute, "1"))
		}
		c.export(&h.Record, d.Path)
		c.Say("%s is held (%s, %s) until this job ends, as %s", c.Host, h.Record.Mode, h.Outcome(), h.Record.Owner)
	}
	return s
}

// Sample takes the occupancy sample that the outputs give, while the host is
// held.
func (c *Call) Sample(s *Step) {
	if s.sample != nil || s.Dir == nil {
		return
	}
	v, err := s.Dir.Look()
	if err != nil {
		return
	}
	caller := c.Caller
	switch {
	case s.Hold != nil:
		caller.HoldID = s.Hold.ID
	case s.Joined != nil:
		caller.HoldID = s.Joined.ID()
	}
	s.sample = v.Provenance(caller, 0)
}

// Publish writes every output, and the summary. A hold that goes on until the
// post step is accounted for there.
func (c *Call) Publish(s *Step, summary bool) {
	c.Sample(s)
	out := c.outputs(s)
	f := c.files()
	for _, name := range Outputs {
		c.warnIf(f.output(name, out[name]))
	}
	if s.Err != nil {
		r := explain(s.Err, "the input timeout")
		f.annotate("hostlock: this step did not get the host: " + r.line())
		if summary {
			c.warnIf(f.summary(c.refusal("this step did not get the host", s.Err, r)))
		}
		return
	}
	if summary && s.Hold != nil && s.Command != nil {
		lost := ""
		if s.Lost != nil {
			lost = s.Lost.Error()
		}
		t := &lock.Ticket{Seq: s.Hold.Seq, Record: s.Hold, UID: c.Caller.UID}
		if s.Past != nil {
			t.Record = &s.Past.Record
		}
		c.warnIf(f.summary(c.account(t, s.Command, 0, lost)))
	}
}

// outputs are the values of the outputs.
func (c *Call) outputs(s *Step) map[string]string {
	fields := make(map[string]string, len(s.sample))
	for _, f := range s.sample {
		fields[f.Key] = f.Value
	}
	out := map[string]string{
		"state": "unknown", "hold-id": "", "command-exit-code": "", "provenance-line": c.Line(s.sample),
		"held-by": fields["held_by"], "held-uid": fields["held_uid"],
		"wait-seconds": strconv.FormatFloat(s.Waited.Seconds(), 'f', 1, 64),
	}
	var gate *lock.GateError
	switch {
	case s.Err != nil:
		out["outcome"] = c.Outcome(s.Err)
		if errors.As(s.Err, &gate) {
			out["gate"] = gate.Gate
		}
	case s.Joined != nil:
		out["outcome"], out["hold-id"] = lock.Joined.String(), s.Joined.ID()
		out["takeover"], out["gate"], out["runnable-at-acquire"] = fields["takeover"], fields["gate"], fields["runnable_at_acquire"]
	case s.Hold != nil:
		out["outcome"], out["hold-id"] = s.Hold.Outcome, s.Hold.ID
		out["takeover"], out["gate"], out["runnable-at-acquire"] = fields["takeover"], fields["gate"], fields["runnable_at_acquire"]
		out["wait-seconds"] = fields["wait_secs"]
	}
	if s.Dir != nil {
		if v, err := s.Dir.Look(); err == nil {
			out["state"] = v.State.String()
		}
	}
	if s.Command != nil {
		out["command-exit-code"] = strconv.Itoa(*s.Command)
	}
	believe(out, s)
	out["provenance"] = c.provenance(s)
	for _, name := range Outputs {
		if out[name] == "" && name != "hold-id" && name != "command-exit-code" {
			out[name] = "unknown"
		}
	}
	return out
}

// Post releases what the action's main took, and only that. It returns an
// error if that was not the action's to the end.
func (c *Call) Post() error {
	id, dir := c.Getenv("STATE_"+stateHold), c.Getenv("STATE_"+stateDir)
	if id == "" {
		return nil
	}
	d, err := c.Look(dir)
	if err != nil {
		return err
	}
	v, err := d.Look()
	if err != nil {
		return err
	}
	caller := c.Caller
	caller.HoldID = id
	closing := func(*lock.Record) {}
	if m := v.Main(caller); m != nil && m.ID() == id {
		closing = closeWindow(m.Record.Anchor.PID, lock.Bounds{})
	}
	t, err := d.ReleaseClosing(id, caller, false, closing)
	var notOurs *lock.NotOursError
	if err != nil && !errors.As(err, &notOurs) && !errors.Is(err, lock.ErrNotHeld) {
		return err
	}
	lost := ""
	if err != nil || t.Standing == lock.Over {
		if t, lost = c.past(d, id); t == nil {
			c.Say("the hold %s is gone already", id)
			return nil
		}
	}
	if c.Getenv("STATE_"+stateMute) == "" {
		c.warnIf(c.files().summary(c.account(t, nil, len(v.Waiting), lost)))
	}
	if lost != "" {
		c.files().annotate("hostlock: " + lost + ": what was measured in this job is suspect")
		return &lock.TakenOverError{}
	}
	return nil
}

// past finds a hold that has ended, and how it was lost; empty if it was
// released in order.
func (c *Call) past(d *lock.Dir, id string) (*lock.Ticket, string) {
	past, err := d.History()
	if err != nil {
		return nil, ""
	}
	for i := len(past) - 1; i >= 0; i-- {
		if p := past[i]; p.ID == id {
			return &lock.Ticket{Seq: p.Seq, Record: &p.Record, UID: p.UID}, lostHow(p)
		}
	}
	return nil, ""
}

// lostHow says how a hold was lost before it was released.
func lostHow(p lock.Past) string {
	switch p.End {
	case "taken_over":
		return "the host was taken over while it was held, at " + clock(p.EndedAt)
	case "forced":
		return "the host was released by force while it was held, at " + clock(p.EndedAt)
	}
	return ""
}
