//go:build linux

package main

import (
	"strings"

	"github.com/org/hostlock-action/lock"
)

// provenance says where a measured row comes from.
func provenance(args []string) error {
	fs := flagSet("provenance")
	oneline := fs.Bool("oneline", false, "")
	form := fs.Bool("json", false, "")
	bound := 0
	fs.Var(whole{&bound}, "expect-runnable", "")
	lockDir := addLockDir(fs)
	if err := parseAll("provenance", fs, args); err != nil {
		return err
	}
	if err := excluding("provenance", fs, "oneline", "json"); err != nil {
		return err
	}
	if fs.Changed("expect-runnable") && bound < 1 {
		return usageError("provenance", "--expect-runnable must be at least 1: the process that reads the count is runnable itself")
	}
	d, err := openToLook(*lockDir)
	if err != nil {
		return err
	}
	defer d.Close()
	v, err := d.Look()
	if err != nil {
		return err
	}
	fields := v.Provenance(caller(), bound)
	switch {
	case *form:
		text, err := object(fields)
		if err != nil {
			return err
		}
		return put(text)
	case *oneline:
		return put(line(fields) + "\n")
	}
	return put(porcelain(fields))
}

// line is the one-line form. It is made to be pasted into a row of results
// and taken apart at its spaces, so it has none of what a peer typed freely, and no
// value with a space. Only gate has "=", within the "<=" of a gate that was
// met: what follows the first "=" is the value.
func line(fields []lock.Field) string {
	var words []string
	for _, f := range fields {
		if !f.Text {
			words = append(words, f.Key+"="+word(f.Key, f.Value))
		}
	}
	return strings.Join(words, " ")
}

// word encodes what could end a word or be taken for anything but text, as %XX.
func word(key, value string) string {
	const hex = "0123456789ABCDEF"
	allowed := "_.-/:#+,@"
	if key == "gate" {
		allowed += "<=>"
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		c := value[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if letter || strings.IndexByte(allowed, c) >= 0 && !(c == ':' && i > 0 && value[i-1] == ':') {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}
