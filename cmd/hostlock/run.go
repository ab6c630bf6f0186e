//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

const defaultLinger = 2 * time.Second

// running is the flags of run and what they come to.
type running struct {
	*taking
	killAfter, linger time.Duration
	bounds            lock.Bounds
	result            string // where to write the result, or empty
	argv              []string
	file              string // what argv[0] names
	title             string // for those who wait, where argv says little
	watch             watch
}

// A watch is told what becomes of a run, if somebody wants to know.
type watch struct {
	refused  func(*lock.Dir, error)                         // nothing was run; the directory may be nil
	held     func(*lock.Dir, *lock.Hold)                    // before the command starts
	released func(ended *lock.Past, status int, lost error) // status is the command's
}

func (w watch) tellRefused(d *lock.Dir, err error) {
	if w.refused != nil {
		w.refused(d, err)
	}
}

func parseRun(args []string) (*running, error) {
	r := &running{taking: newTaking("run"), linger: defaultLinger}
	r.fs.SetInterspersed(false) // what follows the command's name is the command's
	r.fs.Var(seconds{&r.killAfter}, "kill-after", "")
	r.fs.Var(seconds{&r.linger}, "linger", "")
	r.fs.Var(number{&r.bounds.ExpectCores}, "expect-cores", "")
	r.fs.Var(number{&r.bounds.MinEfficiency}, "min-efficiency", "")
	r.fs.Var(number{&r.bounds.MaxForeignCores}, "max-foreign-cores", "")
	r.fs.StringVar(&r.result, "result", "", "")
	if err := r.parse(args); err != nil {
		return nil, err
	}
	r.argv = r.fs.Args()
	switch {
	case len(r.argv) == 0:
		return nil, r.wrong("there is no command to run: hostlock run --reason TEXT -- COMMAND")
	case r.given("kill-after") && r.killAfter == 0:
		return nil, r.wrong("--kill-after must be above 0")
	}
	return r, r.checkBounds()
}

// run takes the host, runs a command, gives the host back and returns the
// command's exit status.
func run(args []string) int {
	r, err := parseRun(args)
	if err != nil {
		return report(err)
	}
	return r.execute()
}

// errRefused is the answer to every step of a job that its hook refused.
var errRefused error = &lock.BusyError{Reason: "this job was refused the host when it began (HOSTLOCK_REFUSED=1), so nothing is run or taken"}

func (r *running) execute() int {
	var err error
	if r.result != "" {
		if r.result, err = resultPlace(r.result); err == nil {
			err = removeOld(r.result)
		}
		if err != nil {
			err = r.wrong("--result %s", err)
			r.watch.tellRefused(nil, err)
			return report(err)
		}
	}
	if os.Getenv("HOSTLOCK_REFUSED") == "1" {
		say("this job was refused the host when it began (HOSTLOCK_REFUSED=1), so nothing is run")
		say("outcome=%s", lock.Busy)
		r.watch.tellRefused(nil, errRefused)
		return exitBusy
	}
	if r.file, err = lookUp(r.argv[0], os.Getenv("PATH")); err != nil {
		r.watch.tellRefused(nil, err)
		return reportStart(err)
	}
	// From here on a signal gives up the wait or goes to the command, and never
	// kills us beside it.
	in, err := listen()
	if err != nil {
		r.watch.tellRefused(nil, err)
		return report(err)
	}
	c := caller()
	in.job = watchJob(c.Forebears)
	d, err := open(r.lockDir)
	if err != nil {
		r.watch.tellRefused(nil, err)
		return reportOutcome(err)
	}
	terminal := len(c.Forebears) > 0 && c.Forebears[0].TTYNR != 0
	if terminal {
		// A ^C from before the handlers may still be about to kill us, in a thread
		// that waits for a CPU: then let it, before we hold the host and start a
		// command. Elsewhere a signal that early is not worth the wait, which on a
		// busy machine is several milliseconds: threads that start look the same.
		awaitHandlers(100 * time.Millisecond)
	}
	req := r.request(c, r.argv)
	if r.title != "" {
		req.Cmd = r.title
	}
	req.Join, req.Notify = lock.JoinTicket, newProgress()
	speech.guard()
	h, err := d.Acquire(in, req)
	screen.clear()
	if err == nil && in.Err() != nil {
		err = errors.Join(&lock.InterruptedError{Cause: in.Err()}, h.Release())
	}
	if err != nil {
		speech.free()
		warn(d)
		r.watch.tellRefused(d, err)
		return reportOutcome(&runError{err, d.Inside(c)})
	}
	if r.watch.held != nil {
		r.watch.held(d, h)
	}
	return r.hold(d, h, in, terminal)
}

// A runError is why a run did not get the host.
type runError struct {
	error
	outer *lock.Ticket // the hold that the run is inside of, and does not end
}

func (e *runError) Unwrap() error { return e.error }

// hold runs the command while the host is held. What is said meanwhile must not
// wait for a reader.
func (r *running) hold(d *lock.Dir, h *lock.Hold, in *inbox, terminal bool) int {
	s := &supervisor{in: in, job: in.job, terminal: terminal, plan: planFor(in.job != nil, r.killAfter), linger: r.linger, family: newFamily(h.Record.ID), say: say}
	if err := proc.SetSubreaper(); err != nil {
		s.say("WARNING: what the command leaves running will not be seen: %s", err)
	}
	exports := []string{
		"HOSTLOCK_HELD=1",
		lock.EnvHoldID + "=" + h.Record.ID,
		"HOSTLOCK_ANCHOR_PID=" + strconv.Itoa(os.Getpid()),
		"HOSTLOCK_DIR=" + d.Path,
	}
	// An owner only if somebody declared one: by a default from $USER everybody's
	// lock would read as mine.
	if h.Record.OwnerDeclared {
		exports = append(exports, "HOSTLOCK_OWNER="+h.Record.Owner)
	}
	var status int
	var failed error
	s.opened = lock.ReadWindow()
	s.command, failed = launch(r.file, r.argv, environ(os.Environ(), exports))
	if failed == nil {
		// A ^C goes to the whole foreground group. Whether the command was there
		// to have it is asked of the inbox, so everything must be in it.
		if s.terminal {
			in.settle()
		}
		s.early = in.take()
		s.result = s.run()
		status = exitStatus(s.result.status)
	}
	held := proc.BootTime() - h.Record.HeldAt.Boot
	if n := len(s.result.left); n > 0 {
		h.Record.LeftRunning = &n
		s.say("WARNING: left running by the command, and let be: %s", names(s.result.left))
	}
	if failed != nil {
		var e *startError
		if errors.As(failed, &e) {
			status = e.status
		}
	} else {
		h.Record.Window = &s.opened
	}
	e := lock.Judged(s.opened, s.result.closed, s.result.own(), r.bounds, lock.FactsOf(&h.Record))
	h.Record.Evidence, h.Record.ExitStatus = &e, &status
	released := h.Release()

	speech.free()
	warn(d)
	if failed != nil {
		reportStart(failed)
	}
	ended := &h.Ended
	if ended.ID == "" { // not released in order
		ended.Record = h.Record
	}
	if r.watch.released != nil {
		r.watch.released(ended, status, released)
	}
	exit := status
	var taken *lock.TakenOverError
	switch {
	case errors.As(released, &taken):
		say("WARNING: %s", released)
		if exit == 0 {
			exit = exitDoubtful
		}
	case released != nil:
		say("WARNING: the host could not be released in order and is free when hostlock has ended: %s", released)
	}
	if failed == nil {
		tellVerdict(ended.Evidence)
		// Without a bound nobody asked to have the run judged.
		if exit == 0 && r.bounds.Given() && ended.Evidence.Verdict == lock.Suspect {
			exit = exitDoubtful
		}
	}
	say("%s", summary(&ended.Record, held))
	if r.result != "" {
		if err := writeResult(r.result, *ended); err != nil {
			say("WARNING: the result could not be written: %s", err)
			if exit == 0 {
				exit = exitDoubtful
			}
		}
	}
	return exit
}

// summary is the one line that a run ends with.
func summary(rec *lock.Record, held time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "outcome=%s hold_id=%s wait_secs=%.3f held_secs=%.3f", rec.Outcome, rec.ID, max(0, rec.HeldAt.Boot-rec.RequestedAt.Boot).Seconds(), held.Seconds())
	if rec.Gate != "none" {
		fmt.Fprintf(&b, " gate=%s", rec.Gate)
	}
	if rec.Survivors != "none" {
		fmt.Fprintf(&b, " survivors=%s", rec.Survivors)
	}
	if rec.LeftRunning != nil {
		fmt.Fprintf(&b, " left_running=%d", *rec.LeftRunning)
	}
	if e := rec.Evidence; e != nil && rec.Window != nil {
		fmt.Fprintf(&b, " verdict=%s", e.Verdict)
		for _, m := range []struct {
			key   string
			value *float64
		}{{"own_cores", e.Measures.OwnCores}, {"foreign_cores", e.Measures.ForeignCores}, {"efficiency", e.Measures.Efficiency}} {
			if m.value != nil {
				fmt.Fprintf(&b, " %s=%.3f", m.key, *m.value)
			}
		}
	}
	return b.String()
}

// reportStart tells why a command did not start.
func reportStart(err error) int {
	var e *startError
	if !errors.As(err, &e) {
		return report(err)
	}
	say("%s", e)
	return e.status
}

// reportOutcome tells why the host was not taken.
func reportOutcome(err error) int {
	code := report(err)
	if outcome := outcomeOf(err); outcome != "" {
		say("outcome=%s", outcome)
	}
	// What ended the wait would have ended the command.
	if errors.As(err, new(jobError)) {
		return 128 + int(unix.SIGTERM)
	}
	return code
}
