//go:build linux && githubactions

package hook

import (
	"fmt"
	"io"
	"strings"

	"github.com/sethvargo/go-githubactions"
)

// A client takes lines to the runner, by the library.
type client struct{ *githubactions.Action }

func newClient(getenv func(string) string, log io.Writer) client {
	return client{githubactions.New(githubactions.WithGetenv(getenv), githubactions.WithWriter(log))}
}

// toFile appends a line to the file that a variable names.
func (c client) toFile(variable, text string) (err error) {
	defer recovered(&err)
	c.IssueFileCommand(&githubactions.Command{Name: strings.TrimPrefix(variable, "GITHUB_"), Message: text})
	return nil
}

// toLog writes a workflow command.
func (c client) toLog(command, text string) (err error) {
	defer recovered(&err)
	c.IssueCommand(&githubactions.Command{Name: command, Message: text})
	return nil
}

// recovered turns the library's panics into errors.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%v", p)
	}
}
