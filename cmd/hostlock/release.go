//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/org/hostlock-action/lock"
)

// release gives back a hold that an acquire of this job took.
func release(args []string) error {
	fs := flagSet("release")
	id := fs.String("hold-id", "", "")
	force := fs.Bool("force", false, "")
	lockDir := addLockDir(fs)
	if err := parseAll("release", fs, args); err != nil {
		return err
	}
	if fs.Changed("hold-id") && !isHoldID(*id) {
		return usageError("release", "--hold-id %q is no hold id: 32 hexadecimal digits, as acquire printed them", lock.Flatten(*id, 60))
	}
	d, err := openToAct(*lockDir)
	if err != nil {
		return err
	}
	defer d.Close()
	defer warn(d)
	c := caller()
	t, err := d.Release(*id, c, *force)
	if err == nil {
		say("released: %s held %s %s", who(t), machine(), since(t))
		return nil
	}
	asked := *id
	if asked == "" {
		asked = os.Getenv(lock.EnvHoldID)
	}
	var notOurs *lock.NotOursError
	missed := errors.Is(err, lock.ErrNotHeld) || errors.As(err, &notOurs) && notOurs.Ticket.ID() != asked
	if !missed {
		if notOurs != nil && notOurs.Ticket.UID == c.UID && notOurs.Ticket.Record != nil && notOurs.Ticket.Record.Embodied() {
			say("that hold ends with its own command: %s", inTheWay(notOurs.Ticket))
			say("  end that process, or take the hold away from it with --force")
			return exitError(exitBusy)
		}
		return err
	}
	// What was asked for is not there. Whether that is as it should be, the
	// history can tell.
	v, verr := d.Look()
	if verr != nil {
		return verr
	}
	if taken := takenOver(d, v, asked); taken != nil {
		return taken
	}
	if past := ended(d, asked); past != nil {
		say("nothing to release: that hold ended at %s (%s)", moment(past.EndedAt), strings.ReplaceAll(past.End, "_", " "))
		return exitError(exitBusy)
	}
	if notOurs != nil {
		return err
	}
	say("nothing to release: nobody holds %s", machine())
	return exitError(exitBusy)
}

func isHoldID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// ended finds a hold among those that have ended.
func ended(d *lock.Dir, id string) *lock.Past {
	if !isHoldID(id) {
		return nil
	}
	all, err := d.History()
	if err != nil {
		return nil
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

// takenOver tells how a hold was taken away from its owner; nil if nothing
// says that it was.
func takenOver(d *lock.Dir, v *lock.View, id string) error {
	past := ended(d, id)
	if past == nil || past.End == "released" {
		return nil
	}
	text := fmt.Sprintf("the hold of %s was not its own to the end: it was taken away at %s (%s)", past.Owner, moment(past.EndedAt), strings.ReplaceAll(past.End, "_", " "))
	for _, t := range v.Holders {
		if r := t.Record; r != nil && r.Previous != nil && r.Previous.ID == id {
			text = fmt.Sprintf("the hold of %s was taken over (%s): %s", past.Owner, takeoverOf(r), inTheWay(t))
		}
	}
	return &doubtfulError{text}
}

func takeoverOf(r *lock.Record) string {
	if r.Takeover == nil {
		return "unknown"
	}
	return r.Takeover.String()
}
