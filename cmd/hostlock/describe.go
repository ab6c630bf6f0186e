//go:build linux

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// jobRunURL is the key of a record's job that links to the run.
const jobRunURL = "run_url"

// who names a ticket: what somebody typed and what the kernel says, never
// merged.
func who(t *lock.Ticket) string {
	uid := "uid unknown"
	if t.UID >= 0 {
		uid = fmt.Sprintf("uid %d", t.UID)
	}
	r := t.Record
	if r == nil {
		return fmt.Sprintf("ticket %d (%s, record unreadable)", t.Seq, uid)
	}
	name := r.Owner
	switch {
	case name == "":
		name = "somebody"
	case !r.OwnerDeclared:
		name += " [no owner declared]"
	}
	return fmt.Sprintf("%s (%s, %s)", name, uid, process(r.Anchor))
}

// process names the process whose life a hold is.
func process(p lock.Party) string {
	s := fmt.Sprintf("pid %d", p.PID)
	if p.Comm != "" {
		s += " " + p.Comm
	}
	if here := proc.Here().PIDNS; p.PIDNS != 0 && here != 0 && p.PIDNS != here {
		s += " in another pid namespace"
	}
	return s
}

// since says from when and for how long a ticket has held the host.
func since(t *lock.Ticket) string {
	held, ok := t.HeldFor()
	if !ok {
		return "since an unknown time"
	}
	return fmt.Sprintf("since %s (%s)", sinceMoment(t), span(held))
}

// sinceMoment is when a ticket got the host.
func sinceMoment(t *lock.Ticket) string {
	if _, ok := t.HeldFor(); !ok {
		return "an unknown time"
	}
	return moment(t.Record.HeldAt.UTC)
}

// purpose is what a ticket is for, in its owner's words.
func purpose(t *lock.Ticket) string {
	switch r := t.Record; {
	case r == nil:
		return ""
	case r.Reason != "":
		return r.Reason
	case r.Cmd != "":
		return r.Cmd
	}
	return "no reason given"
}

// stopped says that the process which holds or waits is stopped, by SIGSTOP or at its
// terminal; empty: it is not, or that cannot be seen from here. Which process that is was
// said by a peer, so nobody is advised to do anything to it.
func stopped(t *lock.Ticket) string {
	if t.Record == nil {
		return ""
	}
	p := t.Record.Anchor
	if t.Standing == lock.Waits {
		p = t.Record.Body
	}
	s, err := proc.Stat(p.PID)
	if err != nil || s.State != 'T' || proc.Look(p.Identity) != proc.Alive {
		return ""
	}
	return fmt.Sprintf(", and stopped (pid %d)", p.PID)
}

// link is the CI run that a ticket belongs to, if its record names one.
func link(t *lock.Ticket) string {
	if t == nil || t.Record == nil {
		return ""
	}
	return t.Record.Job[jobRunURL]
}

// limit says when a hold lapses by its own ttl.
func limit(t *lock.Ticket) string {
	if t.Record == nil {
		return "its record cannot be read: it counts as held for as long as somebody has its kernel lock, and for 5 min at most otherwise"
	}
	ttl := t.Record.TTL()
	held, ok := t.HeldFor()
	switch {
	case t.Standing == lock.Lapsed && (ttl <= 0 || held < ttl):
		return fmt.Sprintf("nobody can prove that its process is the one that took it, and the maximum of %s is over", span(time.Duration(t.Record.MaxHoldSeconds)*time.Second))
	case ttl <= 0:
		return "it has no ttl: it lasts until it is released or its process ends"
	case !ok:
		return fmt.Sprintf("its ttl is %s", span(ttl))
	case held >= ttl:
		return fmt.Sprintf("its ttl of %s ran out %s ago", span(ttl), span(held-ttl))
	}
	return fmt.Sprintf("its ttl of %s ends at %s (in %s)", span(ttl), moment(time.Now().Add(ttl-held)), span(ttl-held))
}

// machine is the name of the host.
func machine() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return lock.Flatten(name, 256)
	}
	return "this host"
}

// verb says what a ticket does, for "X … the host".
func verb(t *lock.Ticket) string {
	if t.Mode() == lock.Shared {
		return "shares"
	}
	return "holds"
}
