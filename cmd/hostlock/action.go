//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/org/hostlock-action/hook"
	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// action is what the action's shims start.
func action(args []string) int {
	if len(args) != 1 || args[0] != "main" && args[0] != "post" {
		return report(usageError("action", "main or post?"))
	}
	c := newCall()
	if args[0] == "post" {
		return report(c.Post())
	}
	in, err := hook.ReadInputs(c.Input)
	if err != nil {
		err = usageError("action", "input %s", err)
	} else if os.Getenv("HOSTLOCK_REFUSED") == "1" {
		err = errRefused
	}
	if err != nil {
		c.Publish(&hook.Step{Err: err}, in.Summary)
		return exitCode(err)
	}
	c.AddPath()
	if in.Run != "" {
		return actionRun(c, in)
	}
	return actionAcquire(c, in)
}

// actionAcquire takes the host until the post step.
func actionAcquire(c *hook.Call, in hook.Inputs) int {
	t := newTaking("acquire")
	s, err := &hook.Step{}, t.parse(append([]string{"--wait"}, in.Flags...))
	var anchor lock.Party
	if err == nil {
		anchor, err = t.jobAnchor(c.Caller)
	}
	var d *lock.Dir
	if err == nil {
		d, err = open(t.lockDir)
	}
	var ctx *inbox
	if err == nil {
		ctx, err = untilSignalled()
	}
	if err == nil {
		req := t.request(c.Caller, nil)
		req.Anchor, req.Join, req.Notify = anchor, lock.JoinHold, c.Notify
		speech.guard()
		s = c.Acquire(ctx, d, req, in.Summary)
		speech.free()
		warn(d)
		err = s.Err
	}
	s.Err = err
	c.Publish(s, in.Summary)
	if err != nil {
		return exitCode(err)
	}
	return exitOK
}

// jobAnchor is the process whose life is the job's.
func (t *taking) jobAnchor(c lock.Caller) (lock.Party, error) {
	if _, _, ok := jobProcess(c.Forebears); !ok {
		// In a job container the runner is out of sight; the container is the
		// job's, and its first process lives as long.
		if here := proc.Here().PIDNS; here != 0 && here != proc.InitialPIDNS && os.Getenv("GITHUB_ACTIONS") == "true" {
			t.ttl = sharedRunnerTTL
			return t.named(1)
		}
		return lock.Party{}, t.wrong("the process of this job cannot be found, so there is nothing to hold the host for: use the action with run")
	}
	anchor, ttl, err := t.anchor(c)
	t.ttl = ttl
	return anchor, err
}

// actionRun runs the input run while the host is held.
func actionRun(c *hook.Call, in hook.Inputs) int {
	fail := func(err error) int {
		c.Publish(&hook.Step{Err: err}, in.Summary)
		return exitCode(err)
	}
	script, err := hook.NewScript(in.Shell, in.Run)
	if err != nil {
		return fail(usageError("action", "input %s", err))
	}
	file, err := writeScript(script)
	if err != nil {
		return fail(fmt.Errorf("the script cannot be written: %w", err))
	}
	defer os.Remove(file)
	if in.Dir != "" {
		if err := os.Chdir(in.Dir); err != nil {
			return fail(usageError("action", "input working-directory: %s", err))
		}
	}
	r, err := parseRun(append(append(in.Flags, "--"), script.Argv(file)...))
	if err != nil {
		return fail(err)
	}
	r.title = script.Title()
	s := &hook.Step{}
	began := proc.BootTime()
	r.watch = watch{
		refused: func(d *lock.Dir, err error) { s.Err, s.Dir = err, d },
		held: func(d *lock.Dir, h *lock.Hold) {
			s.Dir, s.Hold = d, &h.Record
			c.Sample(s)
		},
		released: func(ended *lock.Past, status int, err error) {
			s.Command, s.Past = &status, ended
			if errors.As(err, new(*lock.TakenOverError)) {
				s.Lost = err
			}
		},
	}
	code := r.execute()
	s.Waited = proc.BootTime() - began
	c.Publish(s, in.Summary)
	return code
}

// writeScript puts the script where the runner clears up after the job.
func writeScript(s hook.Script) (string, error) {
	f, err := os.CreateTemp(os.Getenv("RUNNER_TEMP"), "hostlock-*"+s.Extension)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(s.Text)
	return f.Name(), errors.Join(err, f.Close())
}
