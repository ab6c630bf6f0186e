//go:build linux

package main

import (
	"fmt"

	"github.com/org/hostlock-action/lock"
)

// assertHeld answers a harness that asks whether it is inside a host lock of
// its own.
func assertHeld(args []string) error {
	fs := flagSet("assert-held")
	owner := fs.String("owner", "", "")
	lockDir := addLockDir(fs)
	if err := parseAll("assert-held", fs, args); err != nil {
		return err
	}
	if fs.Changed("owner") && !lock.ValidOwner(*owner) {
		return usageError("assert-held", "--owner %q is no name: letters, digits and _ . - / : #, at most %d bytes", lock.Flatten(*owner, 60), lock.MaxOwner)
	}
	d, err := openToAct(*lockDir)
	if err != nil {
		return err
	}
	defer d.Close()
	v, err := d.Look()
	if err != nil {
		return err
	}
	c := caller()
	own := v.Own(c)
	switch {
	case own == nil:
		if taken := takenOver(d, v, c.HoldID); taken != nil {
			return taken
		}
		refuse := "this is not inside a host lock: nobody holds " + machine()
		if t := v.Main(c); t != nil {
			refuse = "this is not inside a host lock of its own: " + inTheWay(t)
		}
		say("%s", refuse)
		return exitError(exitBusy)
	case *owner != "" && (own.Record.Owner != *owner || !own.Record.OwnerDeclared):
		say("this is inside a host lock, and not inside one of %s: %s", *owner, inTheWay(own))
		return exitError(exitBusy)
	case own.Standing != lock.Holds:
		return &doubtfulError{fmt.Sprintf("this is inside its own host lock, which has lapsed: %s; anybody may take the host from it", limit(own))}
	}
	return nil
}
