//go:build linux

package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// The levels of a finding. Only a failure keeps the host from being locked as
// its administrator means it.
const (
	fine    = "ok"
	warning = "warning"
	failure = "failure"
)

// A Finding is what one look at the host found, and what to do about it.
type Finding struct {
	Check string `json:"check"`
	Level string `json:"level"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
}

// A Checkup is all that was found.
type Checkup struct {
	Host     string    `json:"host"`
	Version  string    `json:"version"`
	Findings []Finding `json:"findings"`
	Warnings int       `json:"warnings"`
	Failures int       `json:"failures"`
}

func (c *Checkup) add(check, level, text, fix string) {
	c.Findings = append(c.Findings, Finding{check, level, lock.Flatten(text, lock.MaxText), fix})
	switch level {
	case warning:
		c.Warnings++
	case failure:
		c.Failures++
	}
}

// Doctor looks at everything that a lock of this host rests on. It takes and
// creates nothing. dirs are runners' directories beside those whose listeners run.
func (c *Call) Doctor(lockDir string, dirs []string) *Checkup {
	d := &Checkup{Host: c.Host, Version: c.Version}
	c.checkPolicy(d)
	c.checkDirectory(d, lockDir)
	checkProc(d)
	checkKernel(d)
	c.checkRunners(d, dirs)
	return d
}

func (c *Call) checkPolicy(d *Checkup) {
	path := cmp.Or(c.Getenv("HOSTLOCK_CONF"), lock.ConfigFile)
	conf, err := lock.ReadConfig(path)
	var p *Policy
	if err == nil {
		p, err = ParsePolicy(conf)
	}
	switch {
	case err != nil:
		d.add("configuration", failure, err.Error(), "correct it: until then no job starts")
	case conf == nil:
		d.add("configuration", fine, "there is no "+path+": the directory is the default, each job gets the host alone", "")
	case p == nil:
		d.add("configuration", fine, path+" has no policy: each job gets the host alone", "")
	default:
		d.add("configuration", fine, fmt.Sprintf("%s has a policy of %d lines", path, len(conf.Policy)), "")
		if p.fallback == nil {
			d.add("configuration", warning, "the policy has no default line: a job that no line matches gets the host alone and waits an hour for it", "add: default mode=…")
		}
	}
}

func (c *Call) checkDirectory(d *Checkup, lockDir string) {
	dir, err := c.Look(lockDir)
	if err != nil {
		d.add("directory", failure, err.Error(), "")
		return
	}
	defer dir.Close()
	from := fmt.Sprintf("%s (from the %s)", dir.Path, dir.Source)
	if dir.Scope == lock.Private {
		d.add("scope", warning, "the lock is private: everybody else uses "+dir.Common, "unset HOSTLOCK_DIR, leave --lock-dir away, or name it as lock_dir in "+lock.ConfigFile)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir.Path, &st); err != nil {
		d.add("directory", fine, from+" does not exist yet: whoever comes first makes it, for everybody", "")
		return
	}
	d.add("directory", fine, fmt.Sprintf("%s belongs to uid %d, mode %04o", from, st.Uid, st.Mode&0o7777), "")
	if dir.Problem != "" {
		d.add("directory", warning, dir.Problem, "chown root and chmod 1777 it, or use one that root lays out (hostlock hook install --host)")
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir.Path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		d.add("directory", failure, fmt.Sprintf("uid %d cannot take the lock there: %s", unix.Geteuid(), err), "chmod 1777 it, or add the user to its group")
	}
	switch dir.Scope {
	case lock.Box:
		d.add("scope", fine, "the lock covers this host", "")
	case lock.Container:
		d.add("scope", warning, "the lock covers this container alone, and no run in it counts as clean", "mount the host's directory at the same path")
	case lock.Private: // said already
	}
	v, err := dir.Look()
	if err != nil {
		d.add("lock", failure, err.Error(), "")
		return
	}
	text := fmt.Sprintf("%s, %d waiting", v.State, len(v.Waiting))
	switch v.State {
	case lock.Stale:
		d.add("lock", warning, text, "the next in line takes over by itself; hostlock reap acknowledges it now")
	case lock.Expired:
		d.add("lock", warning, text, "its holder is past the limit that it set itself, and the next in line takes over")
	case lock.Free, lock.HeldNow:
		d.add("lock", fine, text, "")
	}
	checkVersions(d, c.Version, v)
}

// checkVersions compares with those who use the lock now.
func checkVersions(d *Checkup, ours string, v *lock.View) {
	var others []string
	for _, t := range append(slices.Clone(v.Holders), v.Waiting...) {
		if r := t.Record; r != nil && r.Version != "" && r.Version != ours && !slices.Contains(others, r.Version) {
			others = append(others, r.Version)
		}
	}
	if len(others) > 0 {
		d.add("versions", warning, fmt.Sprintf("this is %s; in use here are %s too", ours, strings.Join(others, ", ")), "replace the others: hostlock hook install --copy-to PATH does it while jobs run")
	} else {
		d.add("versions", fine, "nobody here uses another version than "+ours, "")
	}
}

func checkProc(d *Checkup) {
	here := proc.Here()
	switch {
	case here.PIDNS == 0:
		d.add("pid namespace", failure, "it cannot be told", "mount /proc")
	case here.PIDNS != proc.InitialPIDNS:
		d.add("pid namespace", warning, "this is a container: processes of the host are out of sight, and the kernel's locks speak for them", "")
	default:
		d.add("pid namespace", fine, "the host's own", "")
	}
	switch _, err := os.Stat("/proc/1/stat"); {
	case !here.ProcOurs:
		d.add("/proc", failure, "it is none of this pid namespace", "mount -t proc proc /proc")
	case err != nil:
		d.add("/proc", warning, "other users' processes are hidden (hidepid): they are judged through pidfds, and what a dead job of another user left running is not found", "")
	default:
		d.add("/proc", fine, "shows every process", "")
	}
}

func checkKernel(d *Checkup) {
	var have, lack []string
	note := func(ok bool, name string) {
		if ok {
			have = append(have, name)
		} else {
			lack = append(lack, name)
		}
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		unix.Close(fd)
	}
	note(err == nil, "pidfd")
	note(proc.Self().PIDFSIno != 0, "pidfs")
	_, perr := os.Stat("/proc/pressure/cpu")
	note(perr == nil, "pressure")
	switch {
	case err != nil:
		d.add("kernel", failure, "it has no pidfd_open (Linux 5.3), so nothing can be waited for without polling", "use a newer kernel, or allow pidfd_open in the container's seccomp profile")
	case len(lack) > 0:
		d.add("kernel", warning, "has "+strings.Join(have, ", ")+", lacks "+strings.Join(lack, ", "), "nothing breaks: identity then rests on start times, or a run's pressure is unknown")
	default:
		d.add("kernel", fine, "has "+strings.Join(have, ", "), "")
	}
}

// LocalRunners are the runners whose listeners run here now.
func LocalRunners() []*Runner {
	var all []*Runner
	for _, p := range proc.Descendants(0) {
		if p.Comm != "Runner.Listener" {
			continue
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
		if err != nil {
			continue // another user's
		}
		r, err := FindRunner(filepath.Dir(filepath.Dir(exe)))
		if err == nil && !slices.ContainsFunc(all, func(q *Runner) bool { return q.Dir == r.Dir }) {
			all = append(all, r)
		}
	}
	return all
}

// hookedCount is how many of some runners have our hooks: "3/5".
func hookedCount(runners []*Runner) string {
	n := 0
	for _, r := range runners {
		if r.Hooked() {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(runners))
}

func (c *Call) checkRunners(d *Checkup, dirs []string) {
	runners := LocalRunners()
	for _, dir := range dirs {
		r, err := FindRunner(dir)
		if err != nil {
			d.add("runner", failure, err.Error(), "")
		} else if !slices.ContainsFunc(runners, func(q *Runner) bool { return q.Dir == r.Dir }) {
			runners = append(runners, r)
		}
	}
	if len(runners) == 0 {
		d.add("runners", fine, "no runner's listener runs here that this user may see", "")
		return
	}
	for _, r := range runners {
		c.checkRunner(d, r)
	}
	d.add("runners", fine, "runners_hooked="+hookedCount(runners), "")
}

func (c *Call) checkRunner(d *Checkup, r *Runner) {
	if !r.Hooked() {
		d.add("runner", failure, r.Dir+" takes no lock: its jobs run beside everybody's measurements", "hostlock hook install --runner-dir "+quote(r.Dir))
		return
	}
	binary, version, err := r.calls()
	switch {
	case err != nil:
		d.add("runner", failure, r.Dir+": its hooks cannot start hostlock, so every job fails: "+err.Error(), "hostlock hook install --runner-dir "+quote(r.Dir))
		return
	case version != c.Version:
		d.add("runner", warning, fmt.Sprintf("%s calls %s, which is %s, and this is %s", r.Dir, binary, version, c.Version), "hostlock hook install --copy-to "+quote(binary)+" --runner-dir "+quote(r.Dir))
	}
	for _, l := range r.Listeners {
		info, err := os.Stat(r.env())
		began := time.Now().Add(time.Duration(l.Start)*time.Second/proc.TicksPerSecond - proc.BootTime())
		if err == nil && info.ModTime().After(began.Add(time.Second)) {
			fix := "restart it"
			if l.Service != "" {
				fix = "systemctl restart " + l.Service
			}
			d.add("runner", warning, fmt.Sprintf("%s: listener %d is older than its .env and may not know of the hooks", r.Dir, l.PID), fix)
			return
		}
	}
	d.add("runner", fine, r.Dir+" is hooked", "")
}

// calls is the program that the runner's hooks start, and its version.
func (r *Runner) calls() (binary, version string, err error) {
	in, err := r.installed()
	if err == nil && in == nil {
		err = errors.New(r.state() + " is gone")
	}
	if err != nil {
		return "", "", err
	}
	if _, err := os.Stat(r.script("job-started")); err != nil {
		return in.Binary, "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, in.Binary, "version").Output()
	return in.Binary, strings.TrimPrefix(strings.TrimSpace(string(out)), "hostlock "), err
}
