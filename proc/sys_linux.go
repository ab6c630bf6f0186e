package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootTime is CLOCK_BOOTTIME: the time since the machine booted, sleep included,
// as our time namespace counts it. Steps of the wall clock do not move it.
func BootTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // no Linux that Go runs on
	}
	return time.Duration(ts.Nano())
}

// SetSubreaper makes descendants whose parent dies our children, so that wait4
// accounts for them (PR_SET_CHILD_SUBREAPER, prctl(2)). It is not inherited.
func SetSubreaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// SignalFD sends a signal through a pidfd, which cannot come to mean another
// process. Nothing else in this project sends one. The error is ErrGone when the
// process has been reaped; a zombie takes the signal and nothing happens.
func SignalFD(pidfd int, sig unix.Signal) error {
	if pidfd < 0 {
		return unix.EBADF // the kernel reads some of these as ourselves (PIDFD_SELF)
	}
	err := unix.PidfdSendSignal(pidfd, sig, nil, 0)
	if err == unix.ESRCH {
		return ErrGone
	}
	return err
}
