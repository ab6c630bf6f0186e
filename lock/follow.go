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
	// (fsnotify_destroy_group in fs/notify/group.c waits for readers of its marks). But
	// for the one before, or who wakes us again and again uses up what our uid may have.
	a.closing.Wait()
	a.closing.Go(v.close)
}

// follow has the vigil end when the kernel lock of a ticket is given up. Where nobody
// has it the ticket has ended since it was judged, which is worth one look more, or it
// lives without, which is no news. A peer that takes the lock itself can keep the end
// from us, and no more: what else is watched is watched all the same.
//
// One thread follows each: who is in the way can change back and forth while both live.
func (a *attempt) follow(v *vigil, e entry) {
	for e, f := range a.followed {
		if ready(f.fd) {
			unix.Close(f.fd)
			delete(a.followed, e)
		}
	}
	f := a.followed[e]
	if f == nil {
		var l kernelLock
		f, l = a.d.newFollower(e)
		if l == lockFree && a.loose != e {
			a.loose = e
			v.within(time.Millisecond)
		}
		if f == nil {
			return
		}
		if a.followed == nil {
			a.followed = make(map[entry]*follower)
		}
		a.followed[e] = f
	}
	v.add(f.fd)
	v.lent = f.fd
}

func (a *attempt) unfollow() {
	for _, f := range a.followed {
		unix.Close(f.fd)
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
