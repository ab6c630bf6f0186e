//go:build linux

package lock

import "github.com/org/hostlock-action/proc"

// ReadWindow reads the counters at one end of a window.
func ReadWindow() Window {
	w := readClocks()
	w.Counters = proc.ReadCounters()
	return w
}

// CloseWindow is ReadWindow at the other end. Of a window that is too short to be
// measured it reads only how short.
func CloseWindow(opened Window) Window {
	if w := readClocks(); w.Mono-opened.Mono < MinWindow {
		return w
	}
	return ReadWindow()
}

func readClocks() Window {
	here := proc.Here()
	return Window{At: now(), BootID: here.BootID, TimeNS: here.TimeNS, Counters: proc.Counters{Mono: proc.Monotonic()}}
}

// FactsOf is what a record says of a hold beside its counters.
func FactsOf(r *Record) Facts {
	f := Facts{Mode: r.Mode, Scope: Container, Takeover: r.Takeover, Survivors: r.Survivors, Gate: r.Gate}
	// What does not say that it covers the host does not.
	for _, s := range []Scope{Box, Private} {
		if r.LockScope == s.String() {
			f.Scope = s
		}
	}
	return f
}
