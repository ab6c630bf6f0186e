//go:build linux

package main

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
)

// What a shell exits with when a command cannot be run (POSIX, Shell Command
// Language 2.8.2).
const (
	statusNotExecutable = 126
	statusNotFound      = 127
)

// A startError is a command that did not start.
type startError struct {
	name   string
	status int
	err    error
}

func (e *startError) Error() string {
	name := lock.Flatten(e.name, 256)
	switch {
	case e.status == statusNotFound:
		return "command not found: " + name
	case errors.Is(e.err, unix.ENOENT):
		return "cannot run " + name + ": the interpreter that its first line names is missing"
	}
	return "cannot run " + name + ": " + e.err.Error()
}

// lookUp finds a command as a shell does: by path if the name has a slash, else
// along $PATH, where an empty entry is the current directory and a file that is
// not executable is only remembered. (os/exec would refuse the current directory.)
func lookUp(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		if err := executable(name); err != nil {
			return "", newStartError(name, err)
		}
		return name, nil
	}
	found := error(unix.ENOENT)
	if name != "" {
		for dir := range strings.SplitSeq(path, ":") {
			file := dir + "/" + name
			if dir == "" {
				file = "./" + name
			}
			switch err := executable(file); {
			case err == nil:
				return file, nil
			case errors.Is(err, unix.EACCES):
				found = err
			}
		}
	}
	return "", newStartError(name, found)
}

func newStartError(name string, err error) error {
	status := statusNotExecutable
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		status = statusNotFound
	}
	return &startError{name, status, err}
}

// executable says why a file cannot be run, as far as its mode tells.
func executable(file string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// A command is the process that was started.
type command struct {
	pid   int
	pidfd int // -1: the kernel gives none, and nothing can be passed on
}

// launch starts the command in our process group, with our terminal and our
// standard descriptors. Nothing of ours is inherited, for all that we open is
// close-on-exec; what our caller left open stays open.
func launch(file string, argv, env []string) (command, error) {
	c := command{pidfd: -1}
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{PidFD: &c.pidfd}}
	var err error
	c.pid, err = syscall.ForkExec(file, argv, attr)
	if errors.Is(err, unix.ENOEXEC) {
		// A script without a first line that names its interpreter: execvp(3)
		// and every shell give it to sh.
		c.pid, err = syscall.ForkExec("/bin/sh", append([]string{"/bin/sh", file}, argv[1:]...), attr)
	}
	if err != nil {
		// The file was found, so even ENOENT is about what it needs.
		return c, &startError{argv[0], statusNotExecutable, err}
	}
	return c, nil
}

// environ is the environment for the command: what we have, and our exports in
// place of what has their names.
func environ(inherited, exports []string) []string {
	env := make([]string, 0, len(inherited)+len(exports))
	for _, e := range inherited {
		name, _, _ := strings.Cut(e, "=")
		replaced := false
		for _, x := range exports {
			replaced = replaced || strings.HasPrefix(x, name+"=")
		}
		if !replaced {
			env = append(env, e)
		}
	}
	return append(env, exports...)
}

// exitStatus is a command's end as a shell reports it.
func exitStatus(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
