//go:build linux

package hook

import (
	"fmt"
	"io"
	"os"

	"github.com/sethvargo/go-githubactions"
)

// files are the ways back to the runner: the files that a step or a hook may
// write, and commands in its log. A file that the runner did not name is no error:
// hooks have no outputs, and by hand there are none at all.
type files struct {
	getenv func(string) string
	gh     *githubactions.Action
}

func newFiles(getenv func(string) string, log io.Writer) files {
	return files{getenv, githubactions.New(githubactions.WithGetenv(getenv), githubactions.WithWriter(log))}
}

// write calls the client library, which panics where a file cannot be written,
// and would wait for ever for a reader of a FIFO.
func (f files) write(variable string, call func()) (err error) {
	path := f.getenv(variable)
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !os.SameFile(info, null()) {
		return fmt.Errorf("$%s: %s is no regular file", variable, path)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("$%s: %v", variable, p)
		}
	}()
	call()
	return nil
}

// null is /dev/null, where nothing that is written has to arrive.
func null() os.FileInfo {
	info, _ := os.Stat(os.DevNull)
	return info
}

// env, output and state give a single line to later steps, to the workflow, and
// to the action's own post step.
func (f files) env(name, v string) error {
	return f.write("GITHUB_ENV", func() { f.gh.SetEnv(name, value(v)) })
}

func (f files) output(name, v string) error {
	return f.write("GITHUB_OUTPUT", func() { f.gh.SetOutput(name, value(v)) })
}

func (f files) state(name, v string) error {
	return f.write("GITHUB_STATE", func() { f.gh.SaveState(name, value(v)) })
}

// path puts a directory on the PATH of later steps.
func (f files) path(dir string) error {
	return f.write("GITHUB_PATH", func() { f.gh.AddPath(value(dir)) })
}

// summary adds Markdown to the page of the run. All text in it that is not ours
// went through cell or tame.
func (f files) summary(markdown string) error {
	return f.write("GITHUB_STEP_SUMMARY", func() { f.gh.AddStepSummary(markdown) })
}

// annotate shows a line on the page of the run.
func (f files) annotate(text string) {
	defer func() { _ = recover() }() // the log is closed: there is nobody to tell
	f.gh.Errorf("%s", message(text))
}
