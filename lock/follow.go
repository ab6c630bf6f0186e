//go:build linux

package lock

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// A follower waits for the kernel lock of one ticket. Whoever embodies a ticket has
// its .lock flock'd and gives that up with it; then it has more to say, and a process
// takes its time to die: to wait for that was a third of each hand-over. flock(2) waits
// without a time-out and poll(2) knows nothing of it, so it waits in a thread of its
// own. Nothing can call that back; it ends with the lock.
type follower struct {
	entry entry
	fd    int // of a pipe; at its end, and so readable, once the lock was free
}

// sleep waits until something that is watched happens, who is in the way ends, or
// our patience does.
func (a *attempt) sleep(v *vigil, blocker *Ticket) {
	if left := a.deadline - a.d.host.now().Boot; left > 0 {
		v.within(left)
		a.follow(v, blocker.entry)
		v.wait(a.waker, a.own)
	}
	// Not waited for: to close an inotify instance takes the kernel up to 20 ms
	// (fsnotify_destroy_group in fs/notify/group.c waits for readers of its marks).
	go v.close()
}

// follow has the vigil end when the kernel lock of a ticket is given up. Where nobody
// has it the ticket has ended since it was judged, which is worth one look more, or it
// lives without, which is no news. A peer that takes the lock itself can keep the end
// from us, and no more: what else is watched is watched all the same.
func (a *attempt) follow(v *vigil, e entry) {
	if a.follower != nil && (a.follower.entry != e || ready(a.follower.fd)) {
		a.unfollow()
	}
	if a.follower == nil {
		f, l := a.d.newFollower(e)
		if l == lockFree && a.loose != e {
			a.loose = e
			v.within(time.Millisecond)
		}
		a.follower = f
	}
	if a.follower != nil {
		v.add(a.follower.fd)
		v.lent = a.follower.fd
	}
}

func (a *attempt) unfollow() {
	if a.follower != nil {
		unix.Close(a.follower.fd)
		a.follower = nil
	}
}

// newFollower follows a ticket whose kernel lock is held; nil if it is not, or that
// cannot be done.
func (d *Dir) newFollower(e entry) (*follower, kernelLock) {
	file, _, err := d.openFile(e.name()+lockSuffix, unix.O_RDONLY)
	if errors.Is(err, unix.ENOENT) {
		return nil, lockFree
	} else if err != nil {
		return nil, lockUnasked
	}
	l := probeLock(file)
	var pipe [2]int
	if l != lockHeld || unix.Pipe2(pipe[:], unix.O_CLOEXEC) != nil {
		unix.Close(file)
		return nil, l
	}
	go func() {
		// Shared, as a probe: it is in nobody's way.
		_, _ = retry(func() (int, error) { return 0, unix.Flock(file, unix.LOCK_SH) })
		unix.Close(file)
		unix.Close(pipe[1])
	}()
	return &follower{e, pipe[0]}, l
}
