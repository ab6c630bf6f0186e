package main

import (
	"bytes"
	"strings"
	"sync"
)

// logger collects a step's two streams by line.
type logger struct {
	mu       sync.Mutex
	lines    []string
	commands []Command
	seen     func(line string)
}

func (l *logger) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	if c, ok := parseCommand(line); ok {
		l.commands = append(l.commands, c)
	}
	l.seen(line)
}

// lines cuts one stream into lines for a logger.
type lines struct {
	log  *logger
	rest []byte
}

func (s *lines) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		line, rest, found := bytes.Cut(s.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		// .NET ends a line at a lone carriage return too, so a peer's text
		// may begin a line with one.
		for part := range strings.SplitSeq(strings.TrimSuffix(string(line), "\r"), "\r") {
			s.log.add(part)
		}
		s.rest = rest
	}
}

func (s *lines) flush() {
	if len(s.rest) > 0 {
		s.Write([]byte("\n"))
	}
}

// parseCommand reads a line as Runner.Common/ActionCommand.cs does, but without
// its list of known names: a test wants to hear of every line that could be one.
func parseCommand(line string) (Command, bool) {
	if text := strings.TrimLeft(line, " \t\v\f"); strings.HasPrefix(text, "::") {
		if head, value, ok := strings.Cut(text[len("::"):], "::"); ok {
			name, properties, _ := strings.Cut(head, " ")
			return Command{name, properties, value}, name != ""
		}
	}
	if _, text, ok := strings.Cut(line, "##["); ok {
		if head, value, ok := strings.Cut(text, "]"); ok {
			name, properties, _ := strings.Cut(head, " ")
			return Command{name, properties, value}, name != ""
		}
	}
	return Command{}, false
}
