//go:build linux

package main

import (
	"errors"
	"slices"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// anchor finds the process whose life the hold is to be, and the ttl that is
// usual for its kind.
func (t *taking) anchor(c lock.Caller) (lock.Party, time.Duration, error) {
	if t.given("pid") {
		ttl := defaultTTL
		if _, several, ok := jobProcess(c.Forebears); ok && !several {
			ttl = 0
		} else if ok {
			ttl = sharedRunnerTTL
		}
		p, err := t.named(t.pid)
		return p, ttl, err
	}
	above := c.Forebears
	if len(above) > 0 {
		above = above[1:] // ourselves
	}
	p, ttl, err := choose(above, proc.Here().PIDNS == proc.InitialPIDNS)
	if err == nil {
		if p.UID = p.RealUID(); p.UID != c.UID && c.UID != 0 {
			err = foreignError{p}
		}
	}
	var foreign foreignError
	switch {
	case errors.As(err, &foreign):
		return lock.Party{}, 0, t.wrong("the process to hold the host for, %d (%s), is uid %d's and we are uid %d: name the process with --pid", p.PID, lock.Flatten(p.Comm, 64), p.UID, c.UID)
	case err != nil:
		return lock.Party{}, 0, t.wrong("%s", err)
	}
	id, err := p.Identify()
	if err != nil {
		return lock.Party{}, 0, t.wrong("the process to hold the host for, %d (%s), has ended", p.PID, lock.Flatten(p.Comm, 64))
	}
	return lock.Party{Identity: id, UID: p.UID, Comm: p.Comm}, ttl, nil
}

type foreignError struct{ proc.Process }

func (foreignError) Error() string { return "another user's process" }

// choose picks the anchor among the ancestors, nearest first: the job's
// process in a CI job, else the nearest that does not merely start another.
func choose(above []proc.Process, initialPIDNS bool) (proc.Process, time.Duration, error) {
	if p, several, ok := jobProcess(above); ok {
		if several {
			return p, sharedRunnerTTL, nil
		}
		return p, 0, nil
	}
	for _, p := range above {
		if slices.Contains(wrappers, p.Comm) {
			continue
		}
		if p.PID == 1 && initialPIDNS {
			return proc.Process{}, 0, errors.New("this was started by init, which never ends, and so would the hold: name the process to hold the host for with --pid")
		}
		return p, defaultTTL, nil
	}
	return proc.Process{}, 0, errors.New("there is no process above this one to hold the host for: name it with --pid")
}

// named is the process that somebody typed the pid of.
func (t *taking) named(pid int) (lock.Party, error) {
	switch {
	case pid <= 0:
		return lock.Party{}, t.wrong("--pid %d is no process", pid)
	case pid == 1 && (proc.Here().PIDNS == proc.InitialPIDNS || proc.Here().PIDNS == 0):
		return lock.Party{}, t.wrong("--pid 1 is init, which never ends, and so would the hold")
	}
	id, err := proc.Identify(pid)
	if err != nil {
		return lock.Party{}, t.wrong("--pid %d: there is no such process, or it has ended", pid)
	}
	p, err := proc.Stat(pid)
	if err != nil || id.Start != 0 && p.Start != id.Start {
		// Under hidepid /proc shows nothing of another user's process, which
		// the pidfd proves all the same.
		p = proc.Process{UID: -1}
	}
	return lock.Party{Identity: id, UID: p.UID, Comm: p.Comm}, nil
}
