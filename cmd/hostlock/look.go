//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/org/hostlock-action/lock"
)

// openToLook opens the lock directory to read it: nothing is created, and a
// directory that is not there holds nobody.
func openToLook(lockDir string) (*lock.Dir, error) {
	l, err := lock.Resolve(lockDir, os.Getenv)
	if err != nil {
		return nil, err
	}
	return lock.OpenToLook(l)
}

// openToAct is openToLook for a command whose answer depends on what the lock
// covers, which it says on stderr. It creates nothing either.
func openToAct(lockDir string) (*lock.Dir, error) {
	d, err := openToLook(lockDir)
	if err == nil {
		announce(d)
	}
	return d, err
}

// addLockDir is the flag that every command has.
func addLockDir(fs *pflag.FlagSet) *string { return fs.String("lock-dir", "", "") }

// parseAll reads the flags of a command that takes no arguments.
func parseAll(command string, fs *pflag.FlagSet, args []string) error {
	if err := parseFlags(command, fs, args); err != nil {
		return err
	}
	if f := fs.Lookup("lock-dir"); f.Changed && f.Value.String() == "" {
		return usageError(command, "--lock-dir is empty")
	}
	return noArguments(command, fs)
}

// excluding refuses two forms of output at once.
func excluding(command string, fs *pflag.FlagSet, a, b string) error {
	if fs.Changed(a) && fs.Changed(b) {
		return usageError(command, "--%s and --%s exclude each other", a, b)
	}
	return nil
}

// put prints an answer on stdout. An answer that cannot be delivered is no
// success.
func put(text string) error { return putOn(os.Stdout, text) }

func putOn(w io.StringWriter, text string) error {
	if _, err := w.WriteString(text); err != nil {
		return fmt.Errorf("the answer cannot be written: %w", err)
	}
	return nil
}

// porcelain is fields as lines of key=value.
func porcelain(fields []lock.Field) string {
	var b strings.Builder
	for _, f := range fields {
		b.WriteString(defuse(f.Key+"="+f.Value) + "\n")
	}
	return b.String()
}

// object is fields as one line of JSON, in their order.
func object(fields []lock.Field) (string, error) {
	var b strings.Builder
	for i, f := range fields {
		value, err := json.Marshal(f.Value)
		if err != nil {
			return "", err
		}
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		fmt.Fprintf(&b, "%q:%s", f.Key, value)
	}
	b.WriteString("}\n")
	return defuseJSON(b.String()), nil
}

// asJSON is a value as one line of JSON.
func asJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return defuseJSON(string(b)) + "\n", nil
}

// defuseJSON is defuse for JSON text, where what a runner would take for a
// command can only stand within a string: an escape breaks it and changes nothing
// of what the string means.
func defuseJSON(text string) string {
	text = strings.ReplaceAll(text, "::", `:\u003a`)
	return strings.ReplaceAll(text, "##[", `#\u0023[`)
}
