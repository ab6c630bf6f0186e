//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/org/hostlock-action/lock"
)

// maxLine bounds one line of ours, in bytes: a record's texts are shorter.
const maxLine = 4096

// defuse breaks what a CI runner would take for a command in a log line. A
// runner reads stdout and stderr of every step by line: "::name …::" at the
// start of one and "##[name …]" anywhere in one are commands
// (Runner.Common/ActionCommand.cs), and a peer's text must form neither.
func defuse(line string) string {
	for _, trigger := range []struct{ text, broken string }{{"::", ": :"}, {"##[", "# #["}} {
		// Again for ":::", whose second pair only shows once the first is broken.
		for strings.Contains(line, trigger.text) {
			line = strings.ReplaceAll(line, trigger.text, trigger.broken)
		}
	}
	return line
}

// plain is any text as one harmless line.
func plain(text string) string { return defuse(lock.Flatten(text, maxLine)) }

// span is a length of time as a person says it: two units at most.
func span(d time.Duration) string {
	if d = max(d, 0); d >= 10*time.Second {
		d = d.Round(time.Second)
	}
	switch {
	case d < 10*time.Second:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return units(d, time.Minute, "min", time.Second, "s")
	case d < 48*time.Hour:
		return units(d, time.Hour, "h", time.Minute, "min")
	}
	return units(d, 24*time.Hour, "days", time.Hour, "h")
}

func units(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d %s", d/big, bigName)
	if rest := d % big / small; rest > 0 {
		text += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return text
}

// moment is a time of day, with the date where that is not today's.
func moment(t time.Time) string {
	t = t.Local()
	if y, m, d := time.Now().Date(); t.Year() == y && t.Month() == m && t.Day() == d {
		return t.Format("15:04:05 MST")
	}
	return t.Format("2006-01-02 15:04:05 MST")
}

// ordinal is 1st, 2nd, 3rd, 4th …
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}
