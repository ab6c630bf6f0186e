//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// A result is how the command ended.
type result struct {
	status unix.WaitStatus
	used
	closed lock.Window // when the command had ended
	left   []relative  // runs on
}

// A supervisor stays with the command until it and what it started have ended.
// It sleeps in one poll(2), has no timer while the command runs undisturbed, and
// waits in one place: a second wait4 beside it would take statuses away.
type supervisor struct {
	in       *inbox
	job      *jobWatch
	terminal bool // we have one, which signals its foreground group
	plan     plan
	linger   time.Duration
	family   family
	say      func(format string, args ...any) // must not wait for a reader
	// between is a test's: it comes between the two looks of the loop.
	between func()

	opened  lock.Window // when the command was about to start
	command command
	early   proc.Signals // came before the command was there: it has none of them
	result  result
	asked   time.Time // the first signal that asks the command to end
	askedBy string
	ended   time.Time // the command was reaped
	orphans bool      // we have children that are not foreign, or may have
	termed  bool
	killed  bool
	beyond  bool
	hurried bool
}

// run stays until the command has been reaped and the rest of its family has
// ended, or had its time.
func (s *supervisor) run() result {
	for {
		// In this order: a child that ends after the look has its SIGCHLD still
		// in the inbox, and the poll returns at once.
		came := s.in.take()
		if s.between != nil {
			s.between()
		}
		s.reap()
		s.deliver(came)
		if p, ok := s.job.ended(); ok {
			s.say("%s has ended: so must the command", p)
			s.ask("the end of " + p)
			s.send(unix.SIGTERM)
		}
		do, limit := s.plan.next(s.scene(), s.linger)
		switch do {
		case finish:
			return s.result
		case leave:
			s.result.left = s.family.living()
			return s.result
		case sendTerm:
			s.term()
			continue
		case sendKill:
			s.kill()
		case sleep:
		}
		poll(append([]unix.PollFd{{Fd: int32(s.in.wake), Events: unix.POLLIN}}, s.job.fds()...), limit)
	}
}

func (s *supervisor) scene() scene {
	sc := scene{asked: !s.asked.IsZero(), ended: !s.ended.IsZero(), termed: s.termed, beyond: s.beyond, hurried: s.hurried}
	if sc.asked {
		sc.sinceAsked = time.Since(s.asked)
	}
	if sc.ended {
		sc.sinceEnd = time.Since(s.ended)
		sc.family = s.orphans && (len(s.family.foreign) == 0 || len(s.family.living()) > 0)
	}
	return sc
}

// reap takes the status of every child that has ended. An orphan of the family
// has become our child, so when there is none left nothing of it runs. The measured
// window ends with the command: what runs on has its share until then counted from
// /proc, and what it uses afterwards counts for nothing.
func (s *supervisor) reap() {
	if s.ended.IsZero() {
		s.closeWindow()
	}
	s.takeAll()
	if !s.ended.IsZero() && !s.result.whole {
		s.result.whole = true
		if s.orphans {
			s.result.cpu += s.family.used()
		}
	}
}

// closeWindow reads the counters if the command has ended. It is a zombie yet,
// and can be asked whether its children's CPU was counted.
func (s *supervisor) closeWindow() {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, s.command.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || info.Signo == 0 {
		return
	}
	s.result.closed = lock.CloseWindow(s.opened)
	s.result.lost, _ = proc.LosesChildren(s.command.pid)
}

func (s *supervisor) takeAll() {
	for {
		var ws unix.WaitStatus
		var ru unix.Rusage
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, &ru)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD
			s.orphans = false
			return
		case pid == 0:
			s.orphans = true
			return
		case pid == s.command.pid && s.ended.IsZero():
			s.result.status, s.ended = ws, time.Now()
			if s.result.closed.Mono == 0 { // it ended since closeWindow looked
				s.result.closed = lock.CloseWindow(s.opened)
			}
			if s.command.pidfd >= 0 {
				unix.Close(s.command.pidfd)
				s.command.pidfd = -1
			}
		case s.family.foreign[pid] != 0:
			delete(s.family.foreign, pid) // the number is free for others now
			continue
		}
		s.result.add(&ru)
	}
}

// deliver passes signals on to the command.
func (s *supervisor) deliver(came proc.Signals) {
	early := s.early
	s.early = 0
	came |= early
	for _, n := range passedOn {
		switch {
		case !came.Has(n):
		case !s.ended.IsZero():
			s.hurried = true
		default:
			if ends(n) {
				s.ask(unix.SignalName(n))
			}
			if early.Has(n) || !s.hasItAlready(n) {
				s.send(n)
			}
		}
	}
}

func (s *supervisor) hasItAlready(n unix.Signal) bool {
	if n != unix.SIGINT && n != unix.SIGQUIT {
		return false
	}
	us, err := proc.Stat(s.family.self)
	if err != nil {
		return false
	}
	it, err := proc.Stat(s.command.pid)
	return err == nil && hasItAlready(n, us, it)
}

// ask begins the teardown's clock.
func (s *supervisor) ask(by string) {
	if s.asked.IsZero() && s.ended.IsZero() {
		s.asked, s.askedBy = time.Now(), by
	}
}

// send signals the command. It is our child and not yet reaped, so its pidfd
// cannot fail to name it.
func (s *supervisor) send(n unix.Signal) {
	if !s.ended.IsZero() || s.command.pidfd < 0 {
		return
	}
	if err := proc.SignalFD(s.command.pidfd, n); err != nil && !errors.Is(err, proc.ErrGone) {
		s.say("WARNING: %s cannot be passed on to the command (pid %d): %s", unix.SignalName(n), s.command.pid, err)
	}
}

// term is the plan's second word to a command that stays, or to what it left.
func (s *supervisor) term() {
	s.termed = true
	if s.ended.IsZero() {
		s.say("the command still runs %s after %s: sending it SIGTERM", span(s.plan.term), s.askedBy)
		s.send(unix.SIGTERM)
		s.send(unix.SIGCONT) // a stopped process takes no signal but this one and KILL
		return
	}
	for _, r := range s.family.living() {
		s.say("left by the command, and still there %s after %s: sending SIGTERM to %s", span(s.plan.term), s.askedBy, r)
		_ = s.family.signal(r, unix.SIGTERM)
	}
}

// kill kills the command and all that is below it. It is called until nothing
// is left: what is started during the walk is found by the next.
func (s *supervisor) kill() {
	living := s.family.living()
	if !s.killed {
		s.killed = true
		s.say("still running %s after %s, and killed: %s", span(s.plan.kill), s.askedBy, names(living))
	}
	s.send(unix.SIGKILL) // should /proc not show it
	refused := 0
	for _, r := range living {
		if errors.Is(s.family.signal(r, unix.SIGKILL), unix.EPERM) {
			refused++
		}
	}
	beyond := refused > 0 && refused == len(living)
	if beyond && !s.beyond {
		s.say("WARNING: another user's, and not ours to kill: %s", names(living))
	}
	s.beyond = beyond
}

// names lists processes for a message.
func names(rs []relative) string {
	const most = 5
	var b strings.Builder
	for i, r := range rs {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(rs)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(r.String())
	}
	return b.String()
}

// poll waits until a descriptor is readable, or for limit if that is not 0.
func poll(fds []unix.PollFd, limit time.Duration) {
	timeout := -1
	if limit > 0 {
		// Rounded up: waking a moment early would be a second wake-up.
		timeout = int(min((limit+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	_, _ = unix.Poll(fds, timeout) // EINTR: the loop looks at everything anyway
}

// A jobWatch is the processes whose death ends a CI job's step: the job's
// process and, as a cancel kills only that, the step's first process. Nil is no job.
type jobWatch struct {
	who   []string
	pidfd []int // -1: has been told
}

// watchJob finds them among our ancestors.
func watchJob(forebears []proc.Process) *jobWatch {
	job, _, ok := jobProcess(forebears)
	if !ok {
		return nil
	}
	w := new(jobWatch)
	w.add("the job's process", job)
	i := slices.IndexFunc(forebears, func(p proc.Process) bool { return p.PID == job.PID })
	if i > 1 { // 0 is ourselves: a step that exec'd us
		w.add("the step's process", forebears[i-1])
	}
	return w
}

func (w *jobWatch) add(what string, p proc.Process) {
	fd := -1
	id, err := p.Identify()
	if err == nil {
		fd, _ = proc.Open(id)
	}
	if fd < 0 && err == nil && proc.Look(id) != proc.Gone {
		return // it lives and cannot be watched
	}
	w.who = append(w.who, fmt.Sprintf("%s (%d, %s)", what, p.PID, lock.Flatten(p.Comm, 64)))
	if fd < 0 {
		fd = gone
	}
	w.pidfd = append(w.pidfd, fd)
}

const (
	told = -1 // its end has been reported
	gone = -2 // it had ended when we came to watch it
)

// ended names a process whose end has not been reported yet.
func (w *jobWatch) ended() (string, bool) {
	if w == nil {
		return "", false
	}
	for i, fd := range w.pidfd {
		if fd == told {
			continue
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if fd != gone {
			if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
				continue
			}
			unix.Close(fd)
		}
		w.pidfd[i] = told
		return w.who[i], true
	}
	return "", false
}

// fds is what to poll, where a negative descriptor is passed over (poll(2)).
func (w *jobWatch) fds() []unix.PollFd {
	if w == nil {
		return nil
	}
	var fds []unix.PollFd
	for _, fd := range w.pidfd {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return fds
}

// A jobError is the end of the job as the reason why a wait was given up.
type jobError struct{ who string }

func (e jobError) Error() string { return e.who + " has ended" }
