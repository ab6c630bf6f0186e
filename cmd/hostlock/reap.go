//go:build linux

package main

import (
	"strings"

	"github.com/org/hostlock-action/lock"
)

// reap acknowledges a STALE lock. It kills nobody, and leaves the living as
// they are.
func reap(args []string) error {
	fs := flagSet("reap")
	survivors := fs.String("survivors", "wait", "")
	lockDir := addLockDir(fs)
	if err := parseAll("reap", fs, args); err != nil {
		return err
	}
	if *survivors != "wait" && *survivors != "ignore" {
		return usageError("reap", "--survivors is wait or ignore, not %q", lock.Flatten(*survivors, 60))
	}
	d, err := openToAct(*lockDir)
	if err != nil {
		return err
	}
	defer d.Close()
	defer warn(d)
	v, err := d.Look()
	if err != nil {
		return err
	}
	var dead []*lock.Ticket
	for _, t := range v.Holders {
		if t.Standing == lock.Dead {
			dead = append(dead, t)
		}
	}
	if len(dead) == 0 {
		nothing := "nothing to reap: nobody holds " + machine()
		if t := v.Main(caller()); t != nil {
			nothing = "nothing to reap, no holder is dead: " + inTheWay(t)
		}
		say("%s", nothing)
		return nil
	}
	if *survivors == "wait" {
		left := lock.LookForSurvivors(dead)
		if len(left.Busy) > 0 {
			say("not reaped: the dead holder, %s, left running: %s", who(dead[0]), strings.Join(left.Busy, ", "))
			say("  end them, or acknowledge the lock beside them with --survivors ignore; nobody was killed and the lock is as it was")
			return exitError(exitBusy)
		}
		for _, p := range left.Idle {
			say("left running by the dead holder, idle, and let be: %s", p)
		}
		if left.Unreadable > 0 {
			say("%d processes could not be asked whether the dead holder left them running", left.Unreadable)
		}
	}
	reaped, err := d.Reap(dead)
	for _, t := range reaped {
		say("reaped: %s held %s %s, and %s; nobody was killed", who(t), machine(), since(t), deadBecause(t))
	}
	if err == nil && len(reaped) == 0 {
		say("nothing to reap any more: somebody else was faster")
	}
	return err
}
