//go:build linux

package main

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A runner that cancels a step sends INT to the step's first process only, TERM
// 7.5 s later, KILL 2.5 s after that, and leaves everything below it running. We
// must be through before it is.
const (
	jobTermAfter = 5 * time.Second
	jobKillAfter = 7 * time.Second
	// rekill is how often a killed tree is walked again: what was started during
	// the last walk was not on it.
	rekill = 200 * time.Millisecond
)

// A plan is what follows the first signal that asks the command to end, for a
// command that stays. 0 is never.
type plan struct{ term, kill time.Duration }

// planFor: inside a CI job, and elsewhere only as far as --kill-after says. A
// job's limit can be shortened but not extended: past it the runner kills
// hostlock, and the benchmark would run on without its lock.
func planFor(inJob bool, killAfter time.Duration) plan {
	p := plan{kill: killAfter}
	if inJob {
		if p.kill == 0 || p.kill > jobKillAfter {
			p.kill = jobKillAfter
		}
		if jobTermAfter < p.kill {
			p.term = jobTermAfter
		}
	}
	return p
}

// A scene is all that the next move depends on.
type scene struct {
	asked      bool          // a signal asked the command to end while it ran
	sinceAsked time.Duration // since the first of them
	ended      bool          // the command has been reaped
	sinceEnd   time.Duration
	family     bool // something that the command started still runs; asked when it has ended
	hurried    bool // a signal came after the command had ended
	termed     bool // the plan's TERM has been sent
	beyond     bool // all that is left after a KILL may not be signalled by us
}

type move uint8

const (
	sleep move = iota
	sendTerm
	sendKill
	finish // nothing runs any more
	leave  // something runs on, and is named
)

// next decides what to do now and for how long to sleep after it; 0 is until
// something happens.
//
// A teardown that has a limit goes on for what the command leaves behind: a
// shell that dies of the first TERM leaves the benchmark, and to release then
// would hand on a host that is not idle.
func (p plan) next(s scene, linger time.Duration) (move, time.Duration) {
	switch tearing := s.asked && p.kill > 0; {
	case s.ended && !s.family:
		return finish, 0
	case tearing && s.sinceAsked >= p.kill:
		if s.ended && s.beyond && s.sinceEnd >= linger {
			return leave, 0
		}
		return sendKill, rekill
	case tearing && p.term > 0 && !s.termed && s.sinceAsked >= p.term:
		return sendTerm, 0
	case tearing && p.term > 0 && !s.termed:
		return sleep, p.term - s.sinceAsked
	case tearing:
		return sleep, p.kill - s.sinceAsked
	case !s.ended:
		return sleep, 0
	case s.hurried || s.sinceEnd >= linger:
		return leave, 0
	}
	return sleep, linger - s.sinceEnd
}

// hasItAlready reports whether a signal that reached us has reached the command
// by itself: the terminal sends ^C and ^\ to every process of its foreground group.
func hasItAlready(s unix.Signal, us, it proc.Process) bool {
	return (s == unix.SIGINT || s == unix.SIGQUIT) &&
		us.TTYNR != 0 && us.TPGID > 0 && us.TPGID == us.PGRP && it.PGRP == us.PGRP
}
