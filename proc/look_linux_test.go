package proc

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSelf(t *testing.T) {
	id := Self()
	if id.PID != os.Getpid() || id.PIDNS == 0 || id.Start == 0 || id.BootID == "" {
		t.Errorf("Self() = %+v: something is missing", id)
	}
	if l := Look(id); l != Alive {
		t.Errorf("Look(Self()) = %v, want alive", l)
	}
	fd, l := Open(id)
	if fd < 0 || l != Alive {
		t.Fatalf("Open(Self()) = %d, %v, want a pidfd, alive", fd, l)
	}
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("the pidfd is not close-on-exec (flags %#x, %v)", fl, err)
	}
	unix.Close(fd)
}

