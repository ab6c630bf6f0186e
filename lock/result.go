//go:build linux

package lock

import (
	"strings"
	"time"

	"github.com/org/hostlock-action/proc"
)

// ResultSchema names the document and ResultVersion its version. Keys are only
// added within a version; each is always there, and null where nothing is known.
// testdata/result.schema.json describes it.
const (
	ResultSchema  = "hostlock.result"
	ResultVersion = 1
)

// A Result is one hold as a program reads it: run --result writes it, log --json
// a line for each hold, and the action gives it as its provenance.
type Result struct {
	Schema   string            `json:"schema"`
	Version  int               `json:"version"`
	Hostlock *string           `json:"hostlock_version"`
	Verdict  Verdict           `json:"verdict"`
	Reasons  []Finding         `json:"reasons"`
	Measures Measures          `json:"measures"`
	Bounds   ResultBounds      `json:"bounds"`
	Times    ResultTimes       `json:"times"`
	Hold     ResultHold        `json:"hold"`
	Command  ResultCommand     `json:"command"`
	Host     ResultHost        `json:"host"`
	Job      map[string]string `json:"job"`
}

// ResultBounds is what the caller expected; null is not given.
type ResultBounds struct {
	ExpectCores     *float64 `json:"expect_cores"`
	MinEfficiency   *float64 `json:"min_efficiency"`
	MaxForeignCores *float64 `json:"max_foreign_cores"`
}

// ResultTimes is when. The wait is from the request to the hold, settling from
// there to the window (survivors and the gate), and the hold lasts until it ended.
type ResultTimes struct {
	RequestedAt    *time.Time `json:"requested_at"`
	HeldAt         *time.Time `json:"held_at"`
	WindowOpenedAt *time.Time `json:"window_opened_at"`
	EndedAt        *time.Time `json:"ended_at"`
	WaitSeconds    *float64   `json:"wait_seconds"`
	SettleSeconds  *float64   `json:"settle_seconds"`
	HeldSeconds    *float64   `json:"held_seconds"`
}

// ResultHold is the hold itself.
type ResultHold struct {
	ID                string  `json:"id"`
	Seq               uint64  `json:"seq"`
	Mode              Mode    `json:"mode"`
	Owner             *string `json:"owner"`
	OwnerDeclared     bool    `json:"owner_declared"`
	UID               *int    `json:"uid"` // by the kernel
	Reason            *string `json:"reason"`
	Worktree          *string `json:"worktree"`
	AnchorPID         *int    `json:"anchor_pid"`
	LockScope         *string `json:"lock_scope"`
	Outcome           *string `json:"outcome"`
	End               *string `json:"end"`
	Takeover          *string `json:"takeover"`
	PreviousID        *string `json:"previous_id"`
	PreviousOwner     *string `json:"previous_owner"`
	Survivors         *string `json:"survivors"`
	Gate              *string `json:"gate"`
	RunnableAtAcquire *int    `json:"runnable_at_acquire"`
	LeftRunning       *int    `json:"left_running"`
	Joins             *string `json:"joins"`
	Resumes           *string `json:"resumes"`
}

// ResultCommand is what was run.
type ResultCommand struct {
	Text       *string `json:"text"`
	ExitStatus *int    `json:"exit_status"`
}

// ResultHost is where.
type ResultHost struct {
	Name        *string  `json:"name"`
	BootID      *string  `json:"boot_id"`
	Kernel      *string  `json:"kernel"`
	CPUModel    *string  `json:"cpu_model"`
	Governor    *string  `json:"governor"`
	Turbo       *bool    `json:"turbo"`
	OnlineCores *int     `json:"online_cores"`
	UsableCores *float64 `json:"usable_cores"`
}

// NewResult is the document of a hold. m is the machine while it was held, as
// far as the caller knows it.
func NewResult(p Past, m proc.Machine) Result {
	r := &p.Record
	res := Result{
		Schema: ResultSchema, Version: ResultVersion, Hostlock: text(r.Version), Reasons: []Finding{},
		Times: ResultTimes{RequestedAt: moment(r.RequestedAt.UTC), EndedAt: moment(p.EndedAt)},
		Hold: ResultHold{
			ID: r.ID, Seq: r.Seq, Mode: r.Mode, Owner: text(r.Owner), OwnerDeclared: r.OwnerDeclared, Reason: text(r.Reason), Worktree: text(r.Worktree),
			LockScope: text(r.LockScope), Outcome: text(r.Outcome), End: text(p.End), Survivors: text(r.Survivors), Gate: text(r.Gate),
			RunnableAtAcquire: r.RunnableAtAcquire, LeftRunning: r.LeftRunning, Joins: text(r.Joins), Resumes: text(r.Resumes),
		},
		Command: ResultCommand{Text: text(r.Cmd), ExitStatus: r.ExitStatus},
		Host: ResultHost{Name: text(Flatten(m.Host, MaxText)), BootID: text(r.Body.BootID), Kernel: text(Flatten(m.Kernel, MaxText)), CPUModel: text(Flatten(m.CPUModel, MaxText)),
			Governor: text(Flatten(m.Governor, MaxText)), Turbo: m.Turbo, OnlineCores: m.OnlineCores, UsableCores: m.UsableCores},
		Job: r.Job,
	}
	if p.UID >= 0 {
		res.Hold.UID = &p.UID
	}
	if r.Anchor.PID > 0 {
		res.Hold.AnchorPID = &r.Anchor.PID
	}
	if r.Takeover != nil {
		res.Hold.Takeover = text(r.Takeover.String())
	}
	if r.Previous != nil {
		res.Hold.PreviousID, res.Hold.PreviousOwner = text(r.Previous.ID), text(r.Previous.Owner)
	}
	if r.HeldAt != nil {
		res.Times.HeldAt = moment(r.HeldAt.UTC)
		if !r.RequestedAt.IsZero() {
			res.Times.WaitSeconds = number(max(0, r.HeldAt.Boot-r.RequestedAt.Boot).Seconds())
		}
		if !p.EndedAt.IsZero() {
			res.Times.HeldSeconds = number(max(0, p.HeldSecs))
		}
		if r.Window != nil {
			res.Times.SettleSeconds = number(max(0, r.Window.At.Boot-r.HeldAt.Boot).Seconds())
		}
	}
	if r.Window != nil {
		res.Times.WindowOpenedAt = moment(r.Window.At.UTC)
	}
	if e := r.Evidence; e != nil {
		res.Verdict, res.Measures = e.Verdict, e.Measures
		res.Bounds = ResultBounds{given(e.Bounds.ExpectCores), given(e.Bounds.MinEfficiency), given(e.Bounds.MaxForeignCores)}
		res.Reasons = append(res.Reasons, e.Reasons...)
	}
	return res
}

func text(s string) *string {
	if s = strings.TrimSpace(s); s == "" {
		return nil
	}
	return &s
}

func moment(t time.Time) *time.Time {
	t = t.UTC()
	if t.IsZero() || t.Year() > 9999 || t.Year() < 0 { // more than RFC 3339 can say
		return nil
	}
	return &t
}

func given(v float64) *float64 {
	if v <= 0 {
		return nil
	}
	return &v
}
