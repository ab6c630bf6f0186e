//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/hook"
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

// whole and number are numbers whose errors a person can read.
type (
	whole  struct{ n *int }
	number struct{ f *float64 }
)

func (w whole) Type() string { return "number" }
func (w whole) String() string {
	if w.n == nil {
		return ""
	}
	return strconv.Itoa(*w.n)
}

func (w whole) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", lock.Flatten(text, 60))
	}
	*w.n = int(n)
	return nil
}

func (f number) Type() string { return "number" }
func (f number) String() string {
	if f.f == nil {
		return ""
	}
	return strconv.FormatFloat(*f.f, 'g', -1, 64)
}

func (f number) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return fmt.Errorf("%q is not a number", lock.Flatten(text, 60))
	}
	*f.f = n
	return nil
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

// parseFlags reads flags, and words what is wrong with them for a person.
func parseFlags(command string, fs *pflag.FlagSet, args []string) error {
	err := fs.Parse(args)
	var (
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &missing):
		return usageError(command, "--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &invalid):
		return usageError(command, "--%s: %s", invalid.GetFlag().Name, errors.Unwrap(invalid))
	case err != nil:
		return usageError(command, "%s", err)
	}
	// A value that is itself a flag of this command was none: the value was
	// forgotten.
	fs.Visit(func(f *pflag.Flag) {
		name, isFlag := strings.CutPrefix(f.Value.String(), "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && name != "" && fs.Lookup(name) != nil && err == nil {
			err = usageError(command, "--%s needs a value, and got the flag --%s", f.Name, name)
		}
	})
	return err
}

// noArguments refuses what is left after the flags.
func noArguments(command string, fs *pflag.FlagSet) error {
	if fs.NArg() > 0 {
		return usageError(command, "unexpected argument %q", lock.Flatten(fs.Arg(0), 60))
	}
	return nil
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

	job   hook.Job // the CI job that we are part of
	inJob bool
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
	fs.Var(whole{&t.pid}, "pid", "")
	fs.Var(whole{&t.gate}, "gate", "")
	fs.Var(number{&t.gateCPU}, "gate-cpu", "")
	fs.Var(seconds{&t.gateTimeout}, "gate-timeout", "")
	fs.StringVar(&t.onGateTimeout, "on-gate-timeout", "fail", "")
	fs.BoolVar(&t.strictReap, "strict-reap", false, "")
	fs.StringVar(&t.survivors, "survivors", "wait", "")
	fs.StringVar(&t.nested, "nested", "", "")
	fs.StringVar(&t.lockDir, "lock-dir", "", "")
	return t
}

// environment gives the flags that were not typed their values from HOSTLOCK_*.
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

// waits reports whether the request waits for the host.
func (t *taking) waits() bool { return t.wait || t.command == "run" && !t.noWait }

// parse reads the flags and checks what does not need the host.
func (t *taking) parse(args []string) error {
	if err := parseFlags(t.command, t.fs, args); err != nil {
		return err
	}
	typed := make(map[string]bool)
	t.fs.Visit(func(f *pflag.Flag) { typed[f.Name] = true })
	t.job, t.inJob = hook.CurrentJob(os.Getenv)
	from := make(map[string]string) // the flag: the variable that set it
	for _, e := range environment {
		text := os.Getenv(e.name)
		// One gate that was typed is the gate, whatever is the other's default.
		if text == "" || typed[e.flag] || e.flag == "gate" && typed["gate-cpu"] || e.flag == "gate-cpu" && typed["gate"] {
			continue
		}
		if err := t.fs.Lookup(e.flag).Value.Set(text); err != nil {
			return t.wrong("$%s: %s", e.name, err)
		}
		from[e.flag] = "$" + e.name
	}
	// name is what a message calls a flag: as its value was given.
	name := func(flag string) string {
		if variable := from[flag]; variable != "" {
			return variable
		}
		return "--" + flag
	}
	set := func(flag string) bool { return typed[flag] || from[flag] != "" }
	gated := set("gate") || set("gate-cpu")
	switch {
	case t.wait && t.noWait:
		return t.wrong("--wait and --no-wait exclude each other")
	case typed["timeout"] && !t.waits():
		return t.wrong("--timeout does nothing where nothing is waited for")
	case set("timeout") && t.timeout <= 0:
		return t.wrong("%s must be above 0", name("timeout"))
	case t.command == "run" && typed["pid"]:
		return t.wrong("--pid does nothing for run, whose hold is for the run itself; acquire has it")
	case t.command == "run" && t.ttl > 0:
		return t.wrong("--ttl would hand the host to somebody else while the command runs: bound the command instead (timeout 15m hostlock run …)")
	case t.ttl > 0 && t.ttl < time.Second:
		return t.wrong("--ttl must be 0 (none) or at least 1 s")
	case set("gate") && t.gate == 0:
		return t.wrong("%s 0 can never be met: the process that reads the count is runnable itself; use 1 or more, or --gate-cpu", name("gate"))
	case t.gate < 0:
		return t.wrong("%s must be at least 1", name("gate"))
	case set("gate-cpu") && t.gateCPU <= 0:
		return t.wrong("%s must be above 0", name("gate-cpu"))
	case set("gate") && set("gate-cpu"):
		return t.wrong("%s and %s exclude each other", name("gate"), name("gate-cpu"))
	case typed["gate-timeout"] && !gated:
		return t.wrong("--gate-timeout does nothing without --gate or --gate-cpu")
	case typed["on-gate-timeout"] && !gated:
		return t.wrong("--on-gate-timeout does nothing without --gate or --gate-cpu")
	case t.gateTimeout <= 0:
		return t.wrong("%s must be above 0", name("gate-timeout"))
	case t.onGateTimeout != "fail" && t.onGateTimeout != "proceed":
		return t.wrong("%s is fail or proceed, not %q", name("on-gate-timeout"), t.onGateTimeout)
	case t.survivors != "wait" && t.survivors != "ignore":
		return t.wrong("--survivors is wait or ignore, not %q", t.survivors)
	case typed["nested"] && t.nested != "join":
		return t.wrong("--nested is join, not %q", t.nested)
	case t.command == "run" && typed["nested"]:
		return t.wrong("--nested does nothing for run, which always joins the hold that it is inside of")
	case set("owner") && !lock.ValidOwner(t.owner):
		return t.wrong("%s %q is no name: letters, digits and _ . - / : #, at most %d bytes", name("owner"), lock.Flatten(t.owner, 60), lock.MaxOwner)
	case typed["lock-dir"] && t.lockDir == "":
		return t.wrong("--lock-dir is empty")
	case typed["reason"] && strings.TrimSpace(t.reason) == "":
		return t.wrong("--reason is empty")
	case t.command == "run" && t.reason == "" && !t.inJob:
		return t.wrong("--reason is needed: say what the host is for, in words for whoever has to wait")
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
			say("private lock in %s: it coordinates with nobody who uses %s (HOSTLOCK_PRIVATE_OK=1 silences this)", d.Path, d.Common)
		}
	case lock.Container:
		say("WARNING: %s is this container's own: the lock does not cover the host, and no run here counts as clean (mount the host's directory)", d.Path)
	case lock.Box:
	}
}

// caller is who we are, for the question whether we are inside a hold.
func caller() lock.Caller {
	return lock.Caller{UID: unix.Geteuid(), HoldID: os.Getenv(lock.EnvHoldID), Forebears: proc.Lineage()}
}

// request is the flags as a request.
func (t *taking) request(c lock.Caller, cmd []string) lock.Request {
	r := lock.Request{
		Owner: t.owner, OwnerDeclared: t.owner != "", Reason: t.reason, Cmd: strings.Join(cmd, " "), Version: versionText(),
		TTL: t.ttl, Caller: c, Wait: t.waits(), Timeout: t.timeout,
		StrictReap: t.strictReap, IgnoreSurvivors: t.survivors == "ignore",
		Gate: lock.Gate{Runnable: t.gate, CPU: t.gateCPU, Timeout: t.gateTimeout, Proceed: t.onGateTimeout == "proceed"},
	}
	if t.shared {
		r.Mode = lock.Shared
	}
	if t.inJob {
		r.Job = t.job.Fields
		if r.Reason == "" {
			r.Reason = t.job.Reason
		}
		if r.Owner == "" {
			r.Owner, r.OwnerDeclared = t.job.Owner, true
		}
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

// jobProcesses are the programs that run CI jobs. One process of the first
// serves one job; one of the others serves several, so that its life says little.
var jobProcesses = [][]string{{"Runner.Worker"}, {"act", "act_runner", "forgejo-runner"}}

// wrappers start one program on somebody's behalf: the hold is for who started
// them.
var wrappers = []string{"sudo", "doas", "su", "env", "timeout", "nice", "ionice", "chrt", "taskset", "numactl", "setpriv", "setsid", "nohup", "stdbuf", "time", "flock",
	"runuser", "chroot", "unshare", "nsenter", "prlimit", "setarch", "perf", "strace", "ltrace", "hyperfine", "xargs", "find"}

// jobProcess finds the process of the CI job that we are part of.
func jobProcess(forebears []proc.Process) (p proc.Process, several, ok bool) {
	for i, names := range jobProcesses {
		for _, p := range forebears {
			if slices.Contains(names, p.Comm) {
				return p, i > 0, true
			}
		}
	}
	return proc.Process{}, false, false
}
