//go:build linux

package main

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A terminalLine is a line of the terminal on stderr that is drawn again and again
// in its place. Whatever else is said there first takes it away.
type terminalLine struct {
	mu    sync.Mutex
	drawn bool
}

var screen terminalLine

const eraseLine = "\r\x1b[K" // ECMA-48: carriage return, erase to the end of the line

// draw shows text in place of what was drawn before. It reports false, and does
// nothing, where that cannot be: no terminal, somebody else's turn at it, or a CI
// job, whose runner may give its steps a terminal but keeps what they write as lines.
func (l *terminalLine) draw(text string) bool {
	if os.Getenv("CI") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	fd := int(stderr)
	size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		return false
	}
	if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && group != unix.Getpgrp() {
		return false
	}
	if speech.stuck() {
		return true // by the time that it could be seen it would not be true any more
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	width := int(size.Col)
	if width == 0 {
		width = 80
	}
	if line := eraseLine + fit(plain("hostlock: "+text), width-1); !speech.takes(line) {
		_, err = stderr.WriteString(line)
	}
	l.drawn = err == nil
	return true
}

// clear takes away what was drawn, unless that would have to wait: then it is left
// to whatever is said next.
func (l *terminalLine) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drawn && !speech.stuck() {
		if !speech.takes(eraseLine) {
			_, _ = stderr.WriteString(eraseLine)
		}
		l.drawn = false
	}
}

// fit cuts a line to so many columns. A character may be two wide from U+1100
// on, and counts as that: a line that wrapped could not be drawn over.
func fit(s string, columns int) string {
	for i, r := range s {
		if columns--; r >= 0x1100 {
			columns--
		}
		if columns < 0 {
			return s[:i]
		}
	}
	return s
}
