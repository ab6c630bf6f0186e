//go:build linux

package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/org/hostlock-action/lock"
)

// A SetupError is a hook that is called where it cannot work.
type SetupError struct{ Problem string }

func (e *SetupError) Error() string { return e.Problem }

// JobStarted takes the host for the job that is about to start, as the host's
// policy says. On an error the job has nothing, and its steps know: always()
// steps run all the same. job is the process to hold the host for; the zero
// Party is the Runner.Worker above us.
func (c *Call) JobStarted(ctx context.Context, job lock.Party) error {
	grant, err := c.grant()
	if err == nil && grant.None {
		c.Say("this job needs no lock, says %s", grant.From)
		return nil
	}
	if err == nil {
		err = c.take(ctx, grant, job)
	}
	if err == nil {
		return nil
	}
	f := c.files()
	c.warnIf(f.env("HOSTLOCK_REFUSED", "1"))
	r := explain(err, grant.From)
	f.annotate("hostlock: this job does not get the host: " + r.line())
	c.warnIf(f.summary(c.refusal("this job did not get the host", err, r)))
	return err
}

// grant is what the host's policy, or the runner's environment, gives the job.
func (c *Call) grant() (Grant, error) {
	conf, err := lock.ReadConfig(cmp.Or(c.Getenv("HOSTLOCK_CONF"), lock.ConfigFile))
	if err != nil {
		return Grant{}, err
	}
	p, err := ParsePolicy(conf)
	switch {
	case err != nil:
		return Grant{}, err
	case p == nil:
		return grantFromEnv(c.Getenv)
	}
	return p.Decide(c.Getenv), nil
}

func (c *Call) take(ctx context.Context, grant Grant, anchor lock.Party) error {
	if anchor.PID == 0 {
		var err error
		if anchor, err = c.jobParty(); err != nil {
			return err
		}
	}
	d, err := c.Open("")
	if err != nil {
		return err
	}
	job := c.job()
	if job.Fields != nil {
		// How much of the host's load asks for the lock at all.
		if runners := LocalRunners(); len(runners) > 0 {
			job.Fields["runners_hooked"] = hookedCount(runners)
		}
	}
	h, err := d.Acquire(ctx, lock.Request{
		Mode: grant.Mode, Owner: cmp.Or(job.Owner, "job"), OwnerDeclared: job.Owner != "", Reason: job.Reason, Job: job.Fields,
		Worktree: c.Getenv("GITHUB_WORKSPACE"), Version: c.Version, Anchor: anchor, Caller: c.Caller, Join: lock.JoinHold,
		Wait: true, Timeout: grant.Wait, Gate: grant.Gate, StrictReap: grant.StrictReap, Notify: c.Notify,
	})
	if err != nil {
		return err
	}
	if h.Outer != nil {
		c.Say("this job is inside the hold of %s already: nothing was taken", who(h.Outer))
		c.export(h.Outer.Record, d.Path)
		return nil
	}
	h.Record.Window = openWindow(anchor)
	if err := handOver(ctx, d, h, anchor, c.Caller); err != nil {
		return err
	}
	c.export(&h.Record, d.Path)
	c.Say("%s is held (%s, %s) for this job until it ends, as %s; by %s", c.Host, h.Record.Mode, h.Outcome(), h.Record.Owner, grant.From)
	return nil
}

// handOver leaves a hold to its keeper, or releases it.
func handOver(ctx context.Context, d *lock.Dir, h *lock.Hold, anchor lock.Party, caller lock.Caller) error {
	if ctx.Err() == nil {
		if err := h.HandOver(anchor); err != nil {
			return errors.Join(err, h.Release())
		}
		if ctx.Err() == nil {
			return nil
		}
		_, err := d.Release(h.Record.ID, caller, false)
		return errors.Join(&lock.InterruptedError{Cause: context.Cause(ctx)}, err)
	}
	return errors.Join(&lock.InterruptedError{Cause: context.Cause(ctx)}, h.Release())
}

// jobParty is the job's process, whose life is to be that of the hold.
func (c *Call) jobParty() (lock.Party, error) {
	p, ok := c.worker()
	if !ok {
		return lock.Party{}, &SetupError{"no process above this one is called Runner.Worker, so there is no job to hold the host for: call this from the hooks of a GitHub Actions runner, or name the job's process with --pid"}
	}
	if p.UID = p.RealUID(); p.UID != c.Caller.UID {
		return lock.Party{}, &SetupError{fmt.Sprintf("the job's process %d is uid %d's and this is uid %d: call the hook as the runner's own user, without sudo", p.PID, p.UID, c.Caller.UID)}
	}
	id, err := p.Identify()
	if err != nil {
		return lock.Party{}, &lock.InterruptedError{Cause: lock.ErrAnchorGone}
	}
	return lock.Party{Identity: id, UID: p.UID, Comm: p.Comm}, nil
}
