//go:build linux

package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A Gate is how quiet the host must look before the hold is used.
type Gate struct {
	Runnable int     // at most this many runnable tasks, the reader included; 0: not asked
	CPU      float64 // at most this many cores busy over a second; 0: not asked
	Timeout  time.Duration
	Proceed  bool // on a time-out go on and record that, instead of releasing
}

// gateLook is how often a gate that is not met is looked at.
const gateLook = time.Second

// Check refuses what could never be met.
func (g Gate) Check() error {
	switch {
	case g.Runnable < 0 || g.CPU < 0:
		return errors.New("a gate cannot be negative")
	case g.set() && g.Timeout <= 0:
		return errors.New("a gate needs a time-out above 0")
	}
	return nil
}

func (g Gate) set() bool { return g.Runnable > 0 || g.CPU > 0 }

// requested is the gate's record while it runs: what was asked for, which says
// nothing yet of what was found.
func (g Gate) requested() string {
	return "requested:" + g.limit()
}

func (g Gate) limit() string {
	if g.Runnable > 0 {
		return strconv.Itoa(g.Runnable)
	}
	return cores(g.CPU)
}

func cores(c float64) string { return strconv.FormatFloat(c, 'f', 2, 64) + "cores" }

// A reading is one look through a gate.
type reading struct {
	value string
	met   bool
}

func (g Gate) record(r reading, word, relation string) string {
	return word + ":" + r.value + relation + g.limit()
}

// look reads the host once, and says how long to sleep before the next look. A
// look at busy cores takes its second itself.
func (g Gate) look(host *seam) (r reading, pause time.Duration, err error) {
	if g.Runnable > 0 {
		n, err := host.runnable()
		return reading{strconv.Itoa(n), n <= g.Runnable}, gateLook, err
	}
	busy, err := host.busy(gateLook)
	return reading{cores(busy), busy <= g.CPU}, 0, err
}

// await looks until the gate is met or its time is over.
func (g Gate) await(ctx context.Context, w *waker, own int, host *seam, tell func(string)) (reading, error) {
	end := host.now().Boot + g.Timeout
	for first := true; ; first = false {
		r, pause, err := g.look(host)
		switch {
		case err != nil:
			return r, fmt.Errorf("the gate cannot be read: %w", err)
		case r.met:
			return r, nil
		case ctx.Err() != nil:
			return r, &InterruptedError{context.Cause(ctx)}
		case ready(own):
			return r, &InterruptedError{ErrAnchorGone}
		}
		left := end - host.now().Boot
		if left <= 0 {
			return r, nil
		}
		if first {
			tell(fmt.Sprintf("gate: %s > %s; looking once a second for up to %s", r.value, g.limit(), g.Timeout))
		}
		if pause > 0 {
			w.poll(min(left, pause), unix.PollFd{Fd: int32(own), Events: unix.POLLIN})
		}
	}
}
