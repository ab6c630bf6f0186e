//go:build linux

package main

import (
	"os"

	"github.com/org/hostlock-action/hook"
	"github.com/org/hostlock-action/lock"
)

// newCall is a call by a CI runner. Commands to it go to stdout, which it reads
// like stderr; everything else that we say stays on stderr.
func newCall() *hook.Call {
	return &hook.Call{
		Getenv: os.Getenv, Log: stdout, Version: versionText(), Caller: caller(), Host: machine(),
		Open: open, Look: openToLook, Notify: newProgress(), Say: say, Line: line, Outcome: outcomeOf,
	}
}

// jobHook is what a runner calls before and after a job.
func jobHook(args []string) int {
	const command = "hook"
	if len(args) == 0 {
		return report(usageError(command, "job-started, job-completed, install or uninstall?"))
	}
	if args[0] == "install" || args[0] == "uninstall" {
		return report(install(args[0], args[1:]))
	}
	t := &taking{command: command, fs: flagSet(command)}
	t.fs.Var(whole{&t.pid}, "pid", "")
	err := parseFlags(command, t.fs, args[1:])
	if err == nil {
		err = noArguments(command, t.fs)
	}
	if err != nil {
		return report(err)
	}
	var job lock.Party
	if t.given("pid") {
		if job, err = t.named(t.pid); err != nil {
			return report(err)
		}
	}
	switch args[0] {
	case "job-started":
		ctx, err := untilSignalled()
		if err != nil {
			return report(err)
		}
		speech.guard()
		err = newCall().JobStarted(ctx, job)
		speech.free()
		if err != nil {
			return exitCode(err) // it has been told, as the runner shows it best
		}
		return exitOK
	case "job-completed":
		newCall().JobCompleted(job)
		return exitOK
	}
	return report(usageError(command, "job-started, job-completed, install or uninstall, not %q", lock.Flatten(args[0], 60)))
}
