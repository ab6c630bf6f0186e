//go:build linux

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A stream is stdout or stderr, for a command that has something to undo when its reader
// has gone. An os.File would have us die of it (epipecheck in os/file_unix.go).
type stream int

const (
	stdout stream = 1
	stderr stream = 2
)

func (s stream) Write(b []byte) (int, error) {
	if s == stderr {
		speech.mayEnd()
	}
	done := 0
	for done < len(b) {
		n, err := uninterrupted(func() (int, error) { return unix.Write(int(s), b[done:]) })
		switch {
		case err == unix.EAGAIN: // whoever shares it does not want to wait; we do
			poll([]unix.PollFd{{Fd: int32(s), Events: unix.POLLOUT}}, 0)
		case err != nil:
			return done, &os.PathError{Op: "write", Path: s.name(), Err: err}
		case n == 0: // a file system's own idea
			return done, io.ErrUnexpectedEOF
		default:
			done += n
		}
	}
	return done, nil
}

// WriteString is for io.WriteString.
func (s stream) WriteString(text string) (int, error) { return s.Write([]byte(text)) }

func (s stream) name() string {
	if s == stdout {
		return os.Stdout.Name()
	}
	return os.Stderr.Name()
}
