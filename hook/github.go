//go:build linux

package hook

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// files are the ways back to the runner: the files that a step or a hook may
// write, and commands in its log. A file that the runner did not name is no error:
// hooks have no outputs, and by hand there are none at all.
//
// How bytes get there is behind a build seam: see client.
type files struct {
	getenv func(string) string
	client client
}

func newFiles(getenv func(string) string, log io.Writer) files {
	return files{getenv, newClient(getenv, log)}
}

// write appends a line to the file that a variable of the runner names. It does not
// wait for a reader, as of a FIFO.
func (f files) write(variable, text string) error {
	path := f.getenv(variable)
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !os.SameFile(info, null()) {
		return fmt.Errorf("$%s: %s is no regular file", variable, path)
	}
	if err := f.client.toFile(variable, text); err != nil {
		return fmt.Errorf("$%s: %w", variable, err)
	}
	return nil
}

// null is /dev/null, where nothing that is written has to arrive.
func null() os.FileInfo {
	info, _ := os.Stat(os.DevNull)
	return info
}

// named is a value with its name, as the runner's command files have it.
func named(name, v string) string {
	return name + "<<" + fileDelimiter + "\n" + value(v) + "\n" + fileDelimiter
}

// env, output and state give a single line to later steps, to the workflow, and
// to the action's own post step.
func (f files) env(name, v string) error    { return f.write("GITHUB_ENV", named(name, v)) }
func (f files) output(name, v string) error { return f.write("GITHUB_OUTPUT", named(name, v)) }
func (f files) state(name, v string) error  { return f.write("GITHUB_STATE", named(name, v)) }

// path puts a directory on the PATH of later steps.
func (f files) path(dir string) error { return f.write("GITHUB_PATH", value(dir)) }

// summary adds Markdown to the page of the run. All text in it that is not ours
// went through cell or tame.
func (f files) summary(markdown string) error { return f.write("GITHUB_STEP_SUMMARY", markdown) }

// annotate shows a line on the page of the run. Where the log is closed there is
// nobody to tell.
func (f files) annotate(text string) { _ = f.client.toLog("error", message(text)) }

// input is an input of the action.
func (f files) input(name string) string {
	return strings.TrimSpace(f.getenv("INPUT_" + strings.ToUpper(strings.ReplaceAll(name, " ", "_"))))
}
