//go:build linux

package hook

import (
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// JobCompleted reports on the hold of the job that has ended and has it
// released as soon as nothing of the job is left. Where nothing was held it says
// nothing. Nothing that goes wrong here makes the job fail.
func (c *Call) JobCompleted(job lock.Party) {
	if job.PID == 0 {
		p, ok := c.worker()
		if !ok {
			return
		}
		id, err := proc.Identify(p.PID)
		if err != nil {
			return
		}
		job = lock.Party{Identity: id, UID: p.RealUID(), Comm: p.Comm}
	}
	d, err := c.Look("")
	if err != nil {
		return
	}
	v, err := d.Look()
	if err != nil {
		c.warnIf(err)
		return
	}
	waiting := len(v.Waiting)
	ended, err := d.EndJob(job.Identity, closeWindow(job.PID, c.bounds()))
	c.warnIf(err)
	for _, t := range ended {
		if t.Record.JobEndedAt == nil {
			c.Say("WARNING: the keeper of the hold is gone: it ends with the job's process")
		}
		c.warnIf(c.files().summary(c.account(t, nil, waiting, "")))
	}
	if len(ended) == 0 {
		c.missed(d)
	}
}

// bounds are those that the host's policy has for the job.
func (c *Call) bounds() lock.Bounds {
	grant, err := c.grant()
	if err != nil {
		return lock.Bounds{}
	}
	return lock.Bounds{MaxForeignCores: grant.MaxForeignCores}
}

// missed tells a job that had the host and lost it. Nothing else could: what the
// started hook exported does not reach this one.
func (c *Call) missed(d *lock.Dir) {
	id := c.Getenv("RUNNER_TRACKING_ID")
	past, err := d.History()
	if err != nil || id == "" {
		return
	}
	for i := len(past) - 1; i >= 0; i-- {
		p := past[i]
		// The job's own steps have holds too; those were held by a run.
		how := lostHow(p)
		if how == "" || p.Job["runner_tracking_id"] != id || p.Anchor.Comm != workerComm {
			continue
		}
		c.Say("WARNING: %s", how)
		t := &lock.Ticket{Seq: p.Seq, Record: &p.Record, UID: p.UID}
		c.warnIf(c.files().summary(c.account(t, nil, 0, how)))
		return
	}
}

// heldSpan is how long a hold has lasted.
func heldSpan(r *lock.Record) time.Duration {
	if r.HeldAt == nil {
		return 0
	}
	return time.Since(r.HeldAt.UTC)
}
