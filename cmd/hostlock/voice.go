//go:build linux

package main

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A voice is what we say on stderr. While it is guarded, from the request for
// the host until that is given back or handed over, it waits for no reader: what
// stderr does not take at once is kept, in order, until it is free again. Whoever
// has stopped reading would otherwise keep the host from everybody.
type voice struct {
	mu      sync.Mutex
	guarded bool
	over    bool // it was guarded: nothing is held any more, or asked for
	kept    []string
}

var speech voice

func (v *voice) guard() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.guarded, v.over = true, false
}

// free says what was kept. It may wait for the reader, so nothing may be held.
func (v *voice) free() {
	v.mu.Lock()
	kept := v.kept
	v.guarded, v.over, v.kept = false, true, nil
	v.mu.Unlock()
	for _, text := range kept {
		screen.clear()
		_, _ = stderr.WriteString(text)
	}
}

// mayEnd has signals end us, if all that is left is to wait for a reader of stderr.
func (v *voice) mayEnd() {
	v.mu.Lock()
	over := v.over
	v.mu.Unlock()
	if over && !writable() {
		letGo()
	}
}

// takes reports whether a text has been dealt with: said as far as stderr takes it
// at once, and the rest kept. What follows a text that was kept is kept as well.
func (v *voice) takes(text string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.guarded {
		return false
	}
	// What was kept goes first, as soon as there is room for it.
	for v.kept = append(v.kept, text); len(v.kept) > 0 && writable(); v.kept = v.kept[1:] {
		n, ok := writeAtOnce(v.kept[0])
		if !ok {
			first := v.kept[0] == text && len(v.kept) == 1
			if first {
				v.kept = nil
			}
			return !first
		}
		if n < len(v.kept[0]) {
			v.kept[0] = v.kept[0][n:]
			break
		}
	}
	return true
}

// stuck reports whether a write now would wait for the reader and must not.
func (v *voice) stuck() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.guarded && (len(v.kept) > 0 || !writable())
}

// say tells whoever runs us one line, on stderr.
func say(format string, args ...any) {
	screen.clear()
	if text := plain("hostlock: "+fmt.Sprintf(format, args...)) + "\n"; !speech.takes(text) {
		_, _ = stderr.WriteString(text)
	}
}

// writeAtOnce writes what a pipe or a terminal on stderr takes at once. One that
// polls writable may have room for less than a line, and then a write waits. Our
// descriptor is shared with others, for whom it must go on to wait, so this one is
// opened anew; false where that cannot be, and for a file, which would be written
// from its beginning.
func writeAtOnce(text string) (n int, ok bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(stderr), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO && st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0, false
	}
	fd, err := uninterrupted(func() (int, error) {
		return unix.Open("/proc/self/fd/2", unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	n, err = uninterrupted(func() (int, error) { return unix.Write(fd, []byte(text)) })
	return max(n, 0), err == nil || err == unix.EAGAIN
}

// uninterrupted repeats a call that a signal interrupted.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

// writable reports whether stderr takes a line without waiting for its reader,
// and without stopping us.
func writable() bool {
	fd := int(stderr)
	if stops(fd) {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := uninterrupted(func() (int, error) { return unix.Poll(fds, 0) })
	return err == nil && n > 0
}

// stops reports whether the kernel answers a write to a terminal with SIGTTOU,
// as it does to a group in the background where TOSTOP is set (termios(3)).
func stops(fd int) bool {
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil || tio.Lflag&unix.TOSTOP == 0 {
		return false
	}
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group != unix.Getpgrp() // an error: it is not our terminal, and stops nobody
}
