//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// A family is what the command started, and that only. We are the subreaper of
// all that runs below us, so that is everything below us but the children that we
// had before: a shell that started something and then exec'd hostlock left us its
// children.
type family struct {
	self    int
	holdID  string
	foreign map[int]uint64 // pid and start of what was below us before the command
}

// newFamily is called before the command is started.
func newFamily(holdID string) family {
	f := family{self: unix.Getpid(), holdID: holdID}
	if !haveChildren() {
		return f
	}
	f.foreign = make(map[int]uint64)
	for _, p := range proc.Descendants(f.self) {
		f.foreign[p.PID] = p.Start
	}
	return f
}

func haveChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD)
}

func (f family) isForeign(p proc.Process) bool { return p.Start != 0 && f.foreign[p.PID] == p.Start }

// A relative is a process of the family, known for good.
type relative struct {
	proc.Process
	id proc.Identity
}

func (r relative) String() string {
	return fmt.Sprintf("%d (%s, uid %d)", r.PID, lock.Flatten(r.Comm, 64), r.UID)
}

// living lists the family as it runs now, without zombies.
func (f family) living() []relative {
	below := proc.Descendants(f.self)
	if len(f.foreign) > 0 {
		below = f.withoutForeign(below)
	}
	var live []relative
	for _, p := range below {
		if id, err := p.Identify(); err == nil {
			live = append(live, relative{p, id})
		}
	}
	return live
}

// withoutForeign leaves out what was below us before the command and what it
// started since. An orphan of either has become our child and does not show whose it
// was; then it must carry the hold's id.
func (f family) withoutForeign(below []proc.Process) []proc.Process {
	carrying, _ := proc.Carrying(func(env []byte) bool { return proc.HasEnv(env, lock.EnvHoldID, f.holdID) })
	return related(f.self, below, f.isForeign, func(p proc.Process) bool {
		return slices.ContainsFunc(carrying, func(c proc.Process) bool { return c.PID == p.PID && c.Start == p.Start })
	})
}

// related keeps of what is below self that which has a marked process, and no
// foreign one, on its line up to self, itself included.
func related(self int, below []proc.Process, foreign, marked func(proc.Process) bool) []proc.Process {
	byPID := make(map[int]proc.Process, len(below))
	for _, p := range below {
		byPID[p.PID] = p
	}
	var kept []proc.Process
	for _, p := range below {
		keep := false
		for q, n := p, 0; n <= len(below); n++ {
			if foreign(q) {
				keep = false
				break
			}
			keep = keep || marked(q)
			parent, ok := byPID[q.PPID]
			if q.PPID == self || !ok {
				break
			}
			q = parent
		}
		if keep {
			kept = append(kept, p)
		}
	}
	return kept
}

// signal sends a signal to one of the family, if it still is: through a pidfd
// of that very process, looked at once more for being below us.
func (f family) signal(r relative, s unix.Signal) error {
	fd, l := proc.Open(r.id)
	if fd < 0 {
		return proc.ErrGone
	}
	defer unix.Close(fd)
	if l != proc.Alive || !slices.ContainsFunc(proc.Ancestors(r.PID), func(p proc.Process) bool { return p.PID == f.self }) {
		return proc.ErrGone
	}
	return proc.SignalFD(fd, s)
}
