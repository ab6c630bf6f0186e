//go:build linux && (amd64 || arm64) && !ossignal

package proc

import (
	"testing"

	"golang.org/x/sys/unix"
)

// What os/signal asks of a handler that is not its own (the alternate stack: a goroutine's
// has no room; calls that go on), and what ours asks for itself (that nothing comes between).
func TestHandlerIsAGuest(t *testing.T) {
	if err := Catch(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	var now action
	if err := sigaction(unix.SIGUSR1, nil, &now); err != nil {
		t.Fatal(err)
	}
	// KILL and STOP cannot be blocked (sigaction(2)).
	const never = 1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1)
	if now.handler != handlerPC || now.flags&^saRestorer != saOnStack|saRestart || now.restorer != restorerPC || now.mask|never != everySignal {
		t.Errorf("%+v", now)
	}
	if err := Uncatch(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := sigaction(unix.SIGUSR1, nil, &now); err != nil || now != *replaced[unix.SIGUSR1] || now.handler == handlerPC {
		t.Errorf("%+v, %v", now, err)
	}
	if Uncatch(unix.SIGWINCH) == nil || Uncatch(0) == nil || Uncatch(-1) == nil || Uncatch(32) == nil {
		t.Error("what was not caught is let go")
	}
}
