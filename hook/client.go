//go:build linux && !githubactions

package hook

import (
	"io"
	"os"
	"strings"
)

// A client takes lines to the runner. There are two, chosen by a build tag: this
// one, and with -tags githubactions the library go-githubactions.
//
// The library is not in the usual build because it brings net/http, crypto/tls and
// html/template (for OIDC tokens and templates, which nobody asks for here), and Go
// sets up every linked package at every start: in front of each benchmark, and in
// each status and assert-held. TestFilesAreTheLibrarys holds every byte of this one
// to it.
type client struct {
	getenv func(string) string
	log    io.Writer
}

func newClient(getenv func(string) string, log io.Writer) client { return client{getenv, log} }

// toFile appends a line to the file that a variable names.
func (c client) toFile(variable, text string) error {
	f, err := os.OpenFile(c.getenv(variable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// commandData escapes the text of a workflow command (escapeData in
// packages/core/src/command.ts of actions/toolkit).
var commandData = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")

// toLog writes a workflow command.
func (c client) toLog(command, text string) error {
	_, err := io.WriteString(c.log, "::"+command+"::"+commandData.Replace(text)+"\n")
	return err
}
