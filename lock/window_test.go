//go:build linux

package lock

import (
	"testing"
	"time"

	"github.com/org/hostlock-action/proc"
)

// Of a window that is too short to be measured the end is not read, which would cost more
// than the window.
func TestCloseWindow(t *testing.T) {
	if c := proc.ReadCounters(); c.CPU == nil || c.Online == "" {
		t.Skip("this machine does not tell what it counts")
	}
	opened := ReadWindow()
	if opened.CPU == nil || opened.Online == "" {
		t.Fatalf("the beginning was not read: %+v", opened)
	}
	// As if the clock were not reached again.
	opened.Mono += time.Hour
	if w := CloseWindow(opened); w.CPU != nil || w.Online != "" || w.PressureUS != nil || w.Mono <= 0 || w.At.IsZero() || w.BootID != opened.BootID || w.TimeNS != opened.TimeNS {
		t.Errorf("too short, and read: %+v", w)
	}
	// Again, if we were kept from running meanwhile: that was not the shortest.
	for late := true; late; {
		opened.Mono = proc.Monotonic() - MinWindow
		w := CloseWindow(opened)
		if w.CPU == nil || w.Online != opened.Online || w.Mono-opened.Mono < MinWindow {
			t.Fatalf("long enough, and not read: %+v", w)
		}
		late = w.Mono-opened.Mono > MinWindow*3/2
	}
}
