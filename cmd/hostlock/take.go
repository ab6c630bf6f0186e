//go:build linux

package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// Defaults that the usage text names.
const (
	defaultTimeout     = time.Hour
	defaultGateTimeout = 15 * time.Minute
	defaultTTL         = time.Hour
	sharedRunnerTTL    = 6 * time.Hour
)

// seconds is a flag that takes a bare number of seconds or a Go duration.
type seconds struct{ d *time.Duration }

func (s seconds) Type() string { return "duration" }
func (s seconds) String() string {
	if s.d == nil {
		return ""
	}
	return s.d.String()
}

func (s seconds) Set(text string) error {
	d, err := parseDuration(text)
	if err == nil {
		*s.d = d
	}
	return err
}

func parseDuration(text string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		if n < 0 || math.IsNaN(n) || n > 1e9 {
			return 0, fmt.Errorf("%q is not between 0 and 1000000000 seconds", text)
		}
		return time.Duration(n * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 1e9*time.Second {
		return 0, fmt.Errorf("%q is neither a number of seconds nor a duration like 15m", text)
	}
	return d, nil
}

// flagSet is a flag set whose errors are ours to print.
func flagSet(command string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(command, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}
	fs.SetOutput(discard{})
	fs.SetInterspersed(true)
	return fs
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// taking is what run and acquire share: the flags of a request for the host.
type taking struct {
	command              string
	fs                   *pflag.FlagSet
	owner, reason        string
	shared, wait, noWait bool
	timeout, ttl         time.Duration
	pid                  int
	gate                 int
	gateCPU              float64
	gateTimeout          time.Duration
	onGateTimeout        string
	strictReap           bool
	survivors            string
	nested               string
	lockDir              string
}

func newTaking(command string) *taking {
	t := &taking{command: command, fs: flagSet(command), timeout: defaultTimeout, gateTimeout: defaultGateTimeout}
	fs := t.fs
	fs.StringVar(&t.owner, "owner", "", "")
	fs.StringVar(&t.reason, "reason", "", "")
	fs.BoolVar(&t.shared, "shared", false, "")
	fs.BoolVar(&t.wait, "wait", false, "")
	fs.BoolVar(&t.noWait, "no-wait", false, "")
	fs.Var(seconds{&t.timeout}, "timeout", "")
	fs.Var(seconds{&t.ttl}, "ttl", "")
	fs.IntVar(&t.pid, "pid", 0, "")
	fs.IntVar(&t.gate, "gate", 0, "")
	fs.Float64Var(&t.gateCPU, "gate-cpu", 0, "")
	fs.Var(seconds{&t.gateTimeout}, "gate-timeout", "")
	fs.StringVar(&t.onGateTimeout, "on-gate-timeout", "fail", "")
	fs.BoolVar(&t.strictReap, "strict-reap", false, "")
	fs.StringVar(&t.survivors, "survivors", "wait", "")
	fs.StringVar(&t.nested, "nested", "", "")
	fs.StringVar(&t.lockDir, "lock-dir", "", "")
	return t
}

// environment gives the flags that were not set their values from HOSTLOCK_*.
var environment = []struct{ flag, name string }{
	{"owner", "HOSTLOCK_OWNER"},
	{"reason", "HOSTLOCK_REASON"},
	{"timeout", "HOSTLOCK_TIMEOUT"},
	{"gate", "HOSTLOCK_GATE"},
	{"gate-cpu", "HOSTLOCK_GATE_CPU"},
	{"gate-timeout", "HOSTLOCK_GATE_TIMEOUT"},
	{"on-gate-timeout", "HOSTLOCK_ON_GATE_TIMEOUT"},
}

func (t *taking) given(flag string) bool { return t.fs.Changed(flag) }

func (t *taking) wrong(format string, args ...any) error {
	return usageError(t.command, format, args...)
}

// parse reads the flags and checks what does not need the host.
func (t *taking) parse(args []string) error {
	if err := t.fs.Parse(args); err != nil {
		return t.wrong("%s", err)
	}
	typed := make(map[string]bool)
	t.fs.Visit(func(f *pflag.Flag) { typed[f.Name] = true })
	for _, e := range environment {
		text := os.Getenv(e.name)
		if text == "" || typed[e.flag] {
			continue
		}
		if err := t.fs.Lookup(e.flag).Value.Set(text); err != nil {
			return t.wrong("$%s: %s", e.name, err)
		}
	}
	waits := t.command == "run" && !t.noWait || t.wait
	switch {
	case t.wait && t.noWait:
		return t.wrong("--wait and --no-wait exclude each other")
	case typed["timeout"] && !waits:
		return t.wrong("--timeout does nothing without --wait")
	case waits && t.timeout <= 0:
		return t.wrong("--timeout must be above 0")
	case typed["gate"] && t.gate == 0:
		return t.wrong("--gate 0 can never be met: the process that reads the count is runnable itself; use --gate 1 or more, or --gate-cpu")
	case t.gate < 0:
		return t.wrong("--gate must be at least 1")
	case t.gateCPU < 0 || math.IsNaN(t.gateCPU) || typed["gate-cpu"] && t.gateCPU == 0:
		return t.wrong("--gate-cpu must be above 0")
	case t.gate > 0 && t.gateCPU > 0:
		return t.wrong("--gate and --gate-cpu exclude each other")
	case t.gate == 0 && t.gateCPU == 0 && (typed["gate-timeout"] || typed["on-gate-timeout"]):
		return t.wrong("--gate-timeout and --on-gate-timeout do nothing without --gate or --gate-cpu")
	case t.gateTimeout <= 0:
		return t.wrong("--gate-timeout must be above 0")
	case t.onGateTimeout != "fail" && t.onGateTimeout != "proceed":
		return t.wrong("--on-gate-timeout is fail or proceed, not %q", t.onGateTimeout)
	case t.survivors != "wait" && t.survivors != "ignore":
		return t.wrong("--survivors is wait or ignore, not %q", t.survivors)
	case t.owner != "" && !lock.ValidOwner(t.owner):
		return t.wrong("--owner %q is no name: letters, digits and _ . - / : #, at most %d bytes", t.owner, lock.MaxOwner)
	case typed["owner"] && t.owner == "":
		return t.wrong("--owner is empty")
	}
	return nil
}

// open resolves and opens the lock directory for taking.
func open(lockDir string) (*lock.Dir, error) {
	l, err := lock.Resolve(lockDir, os.Getenv)
	if err != nil {
		return nil, err
	}
	d, err := lock.Open(l)
	if err != nil {
		return nil, err
	}
	announce(d)
	return d, nil
}

// announce says on stderr what a lock here does not cover.
func announce(d *lock.Dir) {
	switch d.Scope {
	case lock.Private:
		if os.Getenv("HOSTLOCK_PRIVATE_OK") != "1" {
			fmt.Fprintf(os.Stderr, "hostlock: private lock in %s: it coordinates with nobody who uses %s (HOSTLOCK_PRIVATE_OK=1 silences this)\n", lock.Flatten(d.Path, 256), lock.Flatten(d.Common, 256))
		}
	case lock.Container:
		fmt.Fprintf(os.Stderr, "hostlock: WARNING: %s is this container's own: the lock does not cover the host, and no run here counts as clean (mount the host's directory)\n", lock.Flatten(d.Path, 256))
	case lock.Box:
	}
}

// caller is who we are, for the question whether we are inside a hold.
func caller() lock.Caller {
	pid := os.Getpid()
	c := lock.Caller{UID: unix.Geteuid(), HoldID: os.Getenv(lock.EnvHoldID)}
	if p, err := proc.Stat(pid); err == nil {
		c.Forebears = append(c.Forebears, p)
	}
	c.Forebears = append(c.Forebears, proc.Ancestors(pid)...)
	return c
}

// request is the flags as a request.
func (t *taking) request(c lock.Caller, cmd []string) lock.Request {
	r := lock.Request{
		Owner: t.owner, OwnerDeclared: t.owner != "", Reason: t.reason, Cmd: strings.Join(cmd, " "), Version: versionText(),
		TTL: t.ttl, Caller: c, Wait: t.wait || t.command == "run" && !t.noWait, Timeout: t.timeout,
		StrictReap: t.strictReap, IgnoreSurvivors: t.survivors == "ignore",
		Gate: lock.Gate{Runnable: t.gate, CPU: t.gateCPU, Timeout: t.gateTimeout, Proceed: t.onGateTimeout == "proceed"},
	}
	if t.shared {
		r.Mode = lock.Shared
	}
	if r.Owner == "" {
		r.Owner = defaultOwner()
	}
	r.Worktree, _ = os.Getwd()
	return r
}

// defaultOwner is the user's name, when nobody typed one.
func defaultOwner() string {
	if name := os.Getenv("USER"); name != "" {
		return lock.SafeOwner(name)
	}
	return "uid" + strconv.Itoa(unix.Getuid())
}

// jobProcesses are the programs that run CI jobs, and whether one process of
// theirs serves several jobs at once.
var jobProcesses = map[string]bool{"Runner.Worker": false, "act": true, "act_runner": true, "forgejo-runner": true}

// wrappers start one program on somebody's behalf: the hold is for who started
// them.
var wrappers = []string{"sudo", "doas", "su", "env", "timeout", "nice", "ionice", "chrt", "taskset", "numactl", "setpriv", "setsid", "nohup", "stdbuf", "time", "flock"}

// jobProcess finds the process of the CI job that we are part of.
func jobProcess(forebears []proc.Process) (p proc.Process, several, ok bool) {
	for _, p := range forebears {
		if several, ok := jobProcesses[p.Comm]; ok {
			return p, several, true
		}
	}
	return proc.Process{}, false, false
}
