//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/hook"
	"github.com/org/hostlock-action/lock"
)

// An installing is the flags of hook install and uninstall.
type installing struct {
	command string
	fs      *pflag.FlagSet
	dirs    []string
	restart bool
	copyTo  string
	host    bool
	group   string
}

// install changes the job hooks of runners on this host.
func install(command string, args []string) error {
	in := &installing{command: "hook", fs: flagSet("hook")}
	in.fs.StringArrayVar(&in.dirs, "runner-dir", nil, "")
	in.fs.BoolVar(&in.restart, "restart-idle", false, "")
	if command == "install" {
		in.fs.StringVar(&in.copyTo, "copy-to", "", "")
		in.fs.BoolVar(&in.host, "host", false, "")
		in.fs.StringVar(&in.group, "group", "", "")
	}
	if err := parseFlags(in.command, in.fs, args); err != nil {
		return err
	}
	in.dirs = append(in.dirs, in.fs.Args()...) // what a shell made of a glob
	switch {
	case len(in.dirs) == 0 && !in.host:
		return usageError("hook", "which runners? --runner-dir DIR...")
	case in.group != "" && !in.host:
		return usageError("hook", "--group does nothing without --host")
	case in.fs.Changed("copy-to") && !filepath.IsAbs(in.copyTo):
		return usageError("hook", "--copy-to needs an absolute path")
	case in.host && unix.Geteuid() != 0:
		return usageError("hook", "--host writes below /etc and /run, which takes root")
	}
	runners, err := in.runners()
	if err != nil {
		return err
	}
	var binary string
	if command == "install" {
		if binary, err = in.binary(); err != nil {
			return err
		}
		if in.host {
			if err := in.layOut(); err != nil {
				return err
			}
		}
	}
	var failed error
	for _, r := range runners {
		if err := in.one(command, r, binary); err != nil {
			say("%s: %s", r.Dir, err)
			failed = exitError(exitUnusable) // the others are done all the same
		}
	}
	return failed
}

// runners finds the directories that were named, each once.
func (in *installing) runners() ([]*hook.Runner, error) {
	var all []*hook.Runner
	for _, pattern := range in.dirs {
		dirs := []string{pattern}
		if _, err := os.Lstat(pattern); err != nil {
			if dirs, err = filepath.Glob(pattern); err != nil || len(dirs) == 0 {
				return nil, usageError("hook", "--runner-dir %s: there is no such directory", lock.Flatten(pattern, 200))
			}
		}
		for _, dir := range dirs {
			r, err := hook.FindRunner(dir)
			if err != nil {
				return nil, usageError("hook", "--runner-dir: %s", err)
			}
			if !slices.ContainsFunc(all, func(q *hook.Runner) bool { return q.Dir == r.Dir }) {
				all = append(all, r)
			}
		}
	}
	return all, nil
}

// binary is the program that the hooks are to start, for as long as they are
// installed.
func (in *installing) binary() (string, error) {
	if in.copyTo != "" {
		if err := hook.InstallBinary(in.copyTo); err != nil {
			return "", fmt.Errorf("--copy-to: %w", err)
		}
		return in.copyTo, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if strings.Contains(self, "/go-build") {
		return "", usageError("hook", "%s goes away when `go run` ends: build hostlock, or have it copied with --copy-to /usr/local/bin/hostlock", self)
	}
	return self, nil
}

func (in *installing) layOut() error {
	gid := 0
	if in.group != "" {
		var err error
		if gid, err = groupID(in.group); err != nil {
			return err
		}
	}
	return hook.LayOut("/", in.group, gid, func(line string) { say("%s", line) })
}

// groupID finds a group, and makes it if it is not there.
func groupID(name string) (int, error) {
	find := func() (int, bool) {
		text, err := os.ReadFile("/etc/group")
		if err != nil {
			return 0, false
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(strings.TrimSpace(line), ":")
			if len(f) > 2 && f[0] == name {
				gid, err := strconv.Atoi(f[2])
				return gid, err == nil
			}
		}
		return 0, false
	}
	if gid, ok := find(); ok {
		return gid, nil
	}
	if out, err := exec.Command("groupadd", "--system", "--", name).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("groupadd %s: %w: %s", name, err, out)
	}
	gid, ok := find()
	if !ok {
		return 0, errors.New("the group " + name + " is not in /etc/group")
	}
	say("made the group %s: add the runners' users to it (usermod -aG %s USER)", name, name)
	return gid, nil
}

// one installs or uninstalls the hooks of one runner and says what is left to
// do there.
func (in *installing) one(command string, r *hook.Runner, binary string) error {
	var changed bool
	var err error
	done := "hooks installed"
	if command == "install" {
		changed, err = r.Install(binary)
	} else {
		changed, err = r.Uninstall()
		done = "hooks taken away"
	}
	if err != nil {
		return err
	}
	if !changed {
		fmt.Println(r.Dir + ": nothing to change")
		return nil
	}
	fmt.Println(r.Dir + ": " + done)
	if len(r.Listeners) == 0 {
		fmt.Println("  no listener runs: it will read .env when it starts")
	}
	for _, l := range r.Listeners {
		in.tellListener(l)
	}
	return nil
}

// tellListener restarts a listener if that was asked and no job runs, or says
// that it must be.
func (in *installing) tellListener(l hook.Listener) {
	what := fmt.Sprintf("  listener %d", l.PID)
	restart := "stop it and start run.sh again"
	if l.Service != "" {
		restart = "systemctl restart " + l.Service
	}
	switch {
	case l.Busy:
		fmt.Printf("%s runs a job and must be restarted after it: %s\n", what, restart)
	case !in.restart:
		fmt.Printf("%s is idle and must be restarted (--restart-idle does it): %s\n", what, restart)
	case l.Service == "":
		fmt.Printf("%s is no service, so it is not restarted here: %s\n", what, restart)
	default:
		if out, err := exec.Command("systemctl", "restart", "--", l.Service).CombinedOutput(); err != nil {
			say("%s: %s: %s", restart, err, out)
			return
		}
		fmt.Printf("%s was restarted\n", what)
	}
}
