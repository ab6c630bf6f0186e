//go:build linux

package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// A Call is one call of hostlock by a CI runner. The command line fills it.
type Call struct {
	Getenv  func(string) string
	Log     io.Writer // what the runner reads for workflow commands
	Version string
	Caller  lock.Caller
	Open    func(dir string) (*lock.Dir, error)
	Look    func(dir string) (*lock.Dir, error) // takes and creates nothing
	Notify  func(lock.Event)                    // tells of the wait
	Say     func(format string, args ...any)    // one line, made harmless
	Outcome func(err error) string              // as it is published
	Line    func([]lock.Field) string           // the one-line form of provenance
	Host    string
}

// job is the CI job of the call, or what is known of it by hand.
func (c *Call) job() Job {
	j, _ := CurrentJob(c.Getenv)
	return j
}

func (c *Call) files() files { return newFiles(c.Getenv, c.Log) }

// warnIf tells of what could not be written. It changes nothing about the lock.
func (c *Call) warnIf(errs ...error) {
	for _, err := range errs {
		if err != nil {
			c.Say("WARNING: %s", err)
		}
	}
}

// export tells the job's later steps what is held.
func (c *Call) export(r *lock.Record, dir string) {
	f := c.files()
	c.warnIf(
		f.env("HOSTLOCK_HELD", "1"),
		f.env(lock.EnvHoldID, r.ID),
		f.env("HOSTLOCK_ANCHOR_PID", fmt.Sprint(r.Anchor.PID)),
		f.env("HOSTLOCK_OWNER", r.Owner),
		f.env("HOSTLOCK_DIR", dir),
	)
}

// A reason is why the host was not got, for people: what is wrong, and what to do.
type reason struct {
	text   string
	holder *lock.Ticket // who is in the way, if a ticket is
	advice string
}

func explain(err error, limit string) reason {
	var (
		busy     *lock.BusyError
		timeout  *lock.TimeoutError
		reap     *lock.ReapRefusedError
		gate     *lock.GateError
		stopped  *lock.InterruptedError
		unusable *lock.UnusableError
		nested   *lock.NestedError
		policy   *PolicyError
	)
	r := reason{text: err.Error()}
	switch {
	case errors.As(err, &timeout):
		r.holder = timeout.InTheWay()
		r.advice = "Run the job again when that has ended"
		if len(timeout.Survivors) > 0 {
			r.text += ": a dead holder left running " + strings.Join(timeout.Survivors, ", ")
			r.advice = "Stop these processes on the host, and run the job again"
		}
		if limit != "" {
			r.advice += "; the limit of the wait is from " + limit
		}
	case errors.As(err, &busy):
		r.holder, r.advice = busy.Blocker, "Run the job again when that has ended"
	case errors.As(err, &reap):
		r.holder = reap.Ticket
		r.advice = "See what became of that job, then acknowledge it on the host with: hostlock reap"
	case errors.As(err, &gate):
		r.advice = "Nothing held the lock, but something loads the host: find it there, or run the job again later"
	case errors.As(err, &policy):
		r.text = "the policy of this host cannot be read, so no job starts: " + r.text
		r.advice = "An administrator of the host has to correct it"
	case errors.As(err, &nested):
		r.holder = nested.Hold
	case errors.As(err, &stopped):
		r.advice = "Nothing is held"
	case errors.As(err, &unusable):
		r.advice = "An administrator of the host has to look; hostlock doctor says what is wrong there"
	}
	return r
}

// line is the reason on one line. What a peer typed in it is not yet harmless.
func (r reason) line() string {
	s := r.text
	if r.holder != nil {
		s += "; " + in(r.holder)
	}
	if r.advice != "" {
		s += ". " + r.advice
	}
	return s
}

// in says who is in the way, on one line.
func in(t *lock.Ticket) string {
	verb := "held"
	switch t.Standing {
	case lock.Waits:
		verb = "before us in the queue is"
	case lock.Dead:
		verb = "last held"
	case lock.Left, lock.Over, lock.Holds, lock.Opaque, lock.Lapsed:
	}
	s := fmt.Sprintf("%s by %s", verb, who(t))
	if t.Standing == lock.Waits {
		s = verb + " " + who(t)
	}
	if since := since(t); since != "" {
		s += " since " + since
	}
	if t.Record != nil && t.Record.Reason != "" {
		s += " for: " + t.Record.Reason
	}
	return s
}

// who names a ticket: what was typed and what the kernel says, never merged.
func who(t *lock.Ticket) string {
	name := "somebody"
	if t.Record == nil {
		name = fmt.Sprintf("ticket %d, whose record cannot be read,", t.Seq)
	} else if t.Record.Owner != "" {
		name = t.Record.Owner
	}
	if t.UID >= 0 {
		name += fmt.Sprintf(" (uid %d", t.UID)
		if t.Record != nil {
			name += fmt.Sprintf(", pid %d", t.Record.Anchor.PID)
		}
		name += ")"
	}
	return name
}

func since(t *lock.Ticket) string {
	held, ok := t.HeldFor()
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s (%s)", clock(t.Record.HeldAt.UTC), span(held))
}

// clock is a moment as people on different machines read it.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", max(d, 0).Seconds()), ".0") + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
}

// workerComm is the name of the process that runs one job of a GitHub Actions
// runner.
const workerComm = "Runner.Worker"

// worker finds the job process of a GitHub Actions runner above us.
func (c *Call) worker() (proc.Process, bool) {
	for _, p := range c.Caller.Forebears {
		if p.Comm == workerComm {
			return p, true
		}
	}
	return proc.Process{}, false
}

// page is a value as harmless JSON for people.
func page(v any) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return "{}"
	}
	return tame(b)
}

// jsonOf is a value as one harmless line of JSON.
func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	return tame(b)
}
