//go:build linux

package lock

import (
	"context"
	"encoding/binary"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// blindLook is how often a ticket is looked at that nothing can be waited on
// for: an anchor out of sight, no inotify instance left. Nothing else is
// looked at on a timer.
const blindLook = 5 * time.Second

// followLook is how often who stands behind a waiting ticket looks again.
const followLook = time.Minute

// A Pollable is a context whose end shows on descriptors: they are readable once it may
// have ended. Who waits in poll(2) hears of it without a goroutine, and a thread, in
// between.
type Pollable interface {
	context.Context
	Descriptors() []int
}

// A waker ends a poll(2) when a context ends.
type waker struct {
	fds  []int
	own  int // the one that is ours, for a context that has only a channel; -1: none
	stop func() bool
	done chan struct{} // closed once it has woken
}

func newWaker(ctx context.Context) (*waker, error) {
	if p, ok := ctx.(Pollable); ok {
		return &waker{fds: p.Descriptors(), own: -1}, nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &waker{fds: []int{fd}, own: fd, done: make(chan struct{})}
	w.stop = context.AfterFunc(ctx, func() {
		defer close(w.done)
		one := binary.NativeEndian.AppendUint64(nil, 1)
		_, _ = unix.Write(w.own, one)
	})
	return w, nil
}

// close is called once.
func (w *waker) close() {
	if w.own < 0 {
		return
	}
	if !w.stop() {
		<-w.done // it must not write to whatever has the descriptor next
	}
	unix.Close(w.own)
}

// poll waits until the context ends, or one of fds is readable, at most for limit
// (0: for ever).
func (w *waker) poll(limit time.Duration, fds ...unix.PollFd) {
	for _, fd := range w.fds {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	poll(fds, limit)
}

// A vigil is what is watched while something stands in the way. It is set up
// under the guard, where only a death can change the queue, and a death stays
// readable on its pidfd: nothing is lost between the look and the poll.
type vigil struct {
	fds   []unix.PollFd
	limit time.Duration // look again after this, whatever happens; 0: never
	lent  int           // the follower's, which goes on; 0: none
}

func (v *vigil) add(fd int) {
	if fd >= 0 {
		v.fds = append(v.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
}

func (v *vigil) within(d time.Duration) {
	if d > 0 && (v.limit == 0 || d < v.limit) {
		v.limit = d
	}
}

// close is called once.
func (v *vigil) close() {
	for _, f := range v.fds {
		if fd := int(f.Fd); fd != v.lent {
			unix.Close(fd)
		}
	}
}

// watch sets up the vigil over one ticket.
func (d *Dir) watch(t *Ticket) *vigil {
	v := new(vigil)
	v.within(t.in)
	if r := t.Record; r != nil {
		if !d.watchProcess(v, r.Anchor.Identity) {
			v.within(blindLook)
		}
		switch {
		case r.Embodied():
		case r.Phase == Waiting:
			if !d.watchProcess(v, r.Body.Identity) {
				v.within(blindLook)
			}
		default:
			// A keeper decides nothing for those who see the anchor, so one
			// that is gone is no news.
			fd, _ := d.host.open(r.Body.Identity)
			v.add(fd)
		}
	}
	// A hold may end while its processes live on: taken over, removed by others, or
	// released, of which the follower hears. A ticket that waits is rarely removed: a
	// look a minute bounds that, for an inotify instance for each of a long queue is
	// more than a user has.
	if t.Record != nil && t.Record.Phase == Waiting {
		v.within(followLook)
		return v
	}
	if !d.watchFile(v, t.entry) || t.Record == nil {
		v.within(blindLook)
	}
	return v
}

func (d *Dir) watchProcess(v *vigil, id proc.Identity) bool {
	fd, l := d.host.open(id)
	if fd < 0 {
		// Gone: it died since it was judged, which is worth a look at once.
		if l == proc.Gone {
			v.within(time.Millisecond)
			return true
		}
		return false
	}
	v.add(fd)
	return true
}

// watchFile has the vigil end when a ticket's .lock is changed, removed or unlinked;
// false if it cannot be watched (fs.inotify.max_user_instances is 128 a uid). The file
// is reached through its open descriptor, not by a path that somebody could turn into
// a link.
func (d *Dir) watchFile(v *vigil, e entry) bool {
	file, _, err := d.openFile(e.name()+lockSuffix, unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer unix.Close(file)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return false
	}
	_, err = unix.InotifyAddWatch(fd, "/proc/self/fd/"+strconv.Itoa(file), unix.IN_ATTRIB|unix.IN_MODIFY|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF)
	if err != nil {
		unix.Close(fd)
		return false
	}
	v.add(fd)
	return true
}

// wait sleeps until something that is watched happens, or the limit is over.
// It costs no wake-up of its own. own, unless -1, is a pidfd of the process
// that the wait is for.
func (v *vigil) wait(w *waker, own int) {
	w.poll(v.limit, append([]unix.PollFd{{Fd: int32(own), Events: unix.POLLIN}}, v.fds...)...)
}

// poll waits for one of fds, at most for limit (0: for ever), and reports
// whether one is ready. A negative descriptor is passed over (poll(2)).
func poll(fds []unix.PollFd, limit time.Duration) bool {
	end := proc.BootTime() + limit
	for {
		timeout := -1
		if limit > 0 {
			left := end - proc.BootTime()
			if left <= 0 {
				return false
			}
			timeout = pollTimeout(left)
		}
		n, err := unix.Poll(fds, timeout)
		switch {
		case err == unix.EINTR:
		case n > 0 || err != nil:
			return true
		}
	}
}

// pollTimeout is a span as poll(2) takes it, rounded up: to wake a moment early would
// be a second wake-up.
func pollTimeout(d time.Duration) int {
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
}

// ready reports whether a descriptor is readable now; -1 never is.
func ready(fd int) bool {
	n, _ := retry(func() (int, error) {
		return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return n > 0
}
