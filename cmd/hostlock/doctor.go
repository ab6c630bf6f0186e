//go:build linux

package main

import (
	"fmt"
	"strings"
)

// doctor looks at what a lock of this host rests on.
func doctor(args []string) error {
	fs := flagSet("doctor")
	form := fs.Bool("json", false, "")
	dirs := fs.StringArray("runner-dir", nil, "")
	lockDir := addLockDir(fs)
	if err := parseAll("doctor", fs, args); err != nil {
		return err
	}
	found := newCall().Doctor(*lockDir, *dirs)
	var text string
	if *form {
		var err error
		if text, err = asJSON(found); err != nil {
			return err
		}
	} else {
		var b strings.Builder
		for _, f := range found.Findings {
			fmt.Fprintf(&b, "%-8s %-14s %s\n", f.Level, f.Check, defuse(f.Text))
			if f.Fix != "" {
				fmt.Fprintf(&b, "%-8s %-14s -> %s\n", "", "", defuse(f.Fix))
			}
		}
		fmt.Fprintf(&b, "%d warnings, %d failures\n", found.Warnings, found.Failures)
		text = b.String()
	}
	if err := put(text); err != nil {
		return err
	}
	if found.Failures > 0 {
		return exitError(exitUnusable)
	}
	return nil
}
