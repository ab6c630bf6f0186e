//go:build linux

package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A World is what a scenario begins with.
type World struct {
	*Rig
	Anchor *Process // a process that holds the host, or for which it is wanted
	Other  *Process // a process that holds the host, in the way
	HoldID string   // of Anchor's hold
}

// Live starts the anchor.
func (w *World) Live() (err error) {
	w.Anchor, err = Living()
	return err
}

// Hold makes the anchor a holder.
func (w *World) Hold() error {
	if err := w.Live(); err != nil {
		return err
	}
	code, out, err := w.Run("acquire", "--pid", w.Anchor.PID(), "--reason", "held")
	if err != nil || code != 0 {
		return fmt.Errorf("acquire: exit %d, %v: %s", code, err, out)
	}
	w.HoldID = Fields(out)["hold_id"]
	return nil
}

// Stale leaves a holder that died.
func (w *World) Stale() error {
	if err := w.Hold(); err != nil {
		return err
	}
	w.Anchor.End()
	w.Anchor = nil
	return nil
}

// Busy has somebody else hold the host.
func (w *World) Busy() error {
	err := w.Hold()
	w.Other, w.Anchor = w.Anchor, nil
	return err
}

// End ends the processes, and waits until nothing is left of this world.
func (w *World) End() error {
	for _, p := range []*Process{w.Anchor, w.Other} {
		if p != nil {
			p.End()
		}
	}
	return Alone()
}

// PID is the process's number, as an argument.
func (p *Process) PID() string { return fmt.Sprint(p.Process.Pid) }

// A Traced is a hostlock command under a tracer. Its output is collected.
type Traced struct {
	*Trace
	out  *os.File
	said chan string
}

// Trace starts a hostlock command under a tracer. waiting, if set, is called
// when it says that it waits.
func (w *World) Trace(args []string, waiting func(), decide func(Call) Action) (*Traced, error) {
	out, err := os.Create(filepath.Join(w.Root, "out"))
	if err != nil {
		return nil, err
	}
	os.Remove(out.Name())
	stderr, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t := &Traced{out: out, said: make(chan string, 1), Trace: &Trace{Args: append([]string{w.Hostlock}, args...), Env: w.Env(), Stdout: out, Stderr: tell, Decide: decide}}
	go func() {
		var b strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := stderr.Read(buf)
			b.Write(buf[:n])
			if waiting != nil && strings.Contains(b.String(), "waiting") {
				waiting()
				waiting = nil
			}
			if err != nil {
				if err != io.EOF {
					b.WriteString(err.Error())
				}
				stderr.Close()
				t.said <- b.String()
				return
			}
		}
	}()
	err = t.Start()
	tell.Close()
	return t, err
}

// Stdout is what it printed so far.
func (t *Traced) Stdout() string {
	b := make([]byte, 64<<10)
	n, _ := t.out.ReadAt(b, 0)
	return string(b[:n])
}

// Finish waits until nothing is left of it, and returns its stderr.
func (t *Traced) Finish() (string, error) {
	err := t.WaitAll(Bound)
	text := <-t.said
	t.out.Close()
	if strings.Contains(text, "panic:") || strings.Contains(text, "goroutine ") || strings.Contains(text, "fatal error:") {
		err = errors.Join(err, errors.New("it crashed"))
	}
	return strings.TrimSpace(text), err
}

// ExitCode is a status as a shell has it.
func ExitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
