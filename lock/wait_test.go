//go:build linux

package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// seeing gives a process of this world descriptors to wait on, as pidfds are: whom it
// sees alive it can watch.
func (w *world) seeing(d *Dir) *Dir {
	w.t.Helper()
	d.host.open = func(id proc.Identity) (int, proc.Liveness) {
		l := w.look(id)
		if l != proc.Alive {
			return -1, l
		}
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			w.t.Fatal(err)
		}
		return fd, l
	}
	return d
}

// What is watched while a ticket is in the way, and when it is looked at again although
// nothing happened: never, if all that can end it can be watched. (R9)
func TestWatch(t *testing.T) {
	holds := func(w *world) *actor {
		a := w.actor()
		a.gets()
		return a
	}
	for _, tt := range []struct {
		name  string
		set   func(w *world) *actor // whose ticket is watched
		then  func(w *world, a *actor)
		fds   int
		limit time.Duration
	}{
		{"a run", holds, nil, 2, 0}, // its process, its ticket
		{"a run within its ttl", func(w *world) *actor {
			a := w.actor(ttl(time.Minute))
			a.gets()
			w.pass(20 * time.Second)
			return a
		}, nil, 2, 40 * time.Second},
		{"a run that is out of sight", holds, func(w *world, a *actor) { w.lives(a.pid, proc.Unknown) }, 1, 5 * time.Second},
		{"a run that has died since it was judged", holds, func(w *world, a *actor) { delete(w.life, a.pid) }, 1, time.Millisecond},
		{"a run whose ticket has gone since it was judged", holds, func(w *world, a *actor) { a.drop() }, 1, 5 * time.Second},
		{"a job's hold", (*world).job, nil, 3, 0}, // and its keeper
		{"a job's hold, its keeper killed", (*world).job, func(w *world, a *actor) { delete(w.life, a.hold.Record.Body.PID) }, 2, 0},
		{"a job's hold, its keeper out of sight", (*world).job, func(w *world, a *actor) { w.lives(a.hold.Record.Body.PID, proc.Unknown) }, 2, 0},
		{"a record that cannot be read", func(w *world) *actor {
			a := holds(w)
			w.write(a.hold.entry.name()+recordSuffix, "{")
			return a
		}, nil, 1, 5 * time.Second},
		{"a run that waits", func(w *world) *actor { holds(w); return w.actor().waits() }, nil, 1, time.Minute},
		{"a run that waits no longer than this", func(w *world) *actor {
			holds(w)
			return w.actor(timeout(20 * time.Second)).waits()
		}, nil, 1, 25*time.Second + time.Millisecond},
		{"who waits for another process", func(w *world) *actor {
			holds(w)
			w.lives(7, proc.Alive)
			return w.actor(func(r *Request) { r.Anchor = Party{Identity: w.identity(7)} }).waits()
		}, nil, 2, time.Minute},
		{"who waits for another process, and is out of sight", func(w *world) *actor {
			holds(w)
			w.lives(7, proc.Alive)
			return w.actor(func(r *Request) { r.Anchor = Party{Identity: w.identity(7)} }).waits()
		}, func(w *world, a *actor) { w.lives(a.pid, proc.Unknown) }, 1, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a := tt.set(w)
			d, _ := w.process()
			tk := w.seeing(d).load(a.hold.entry)
			if tt.then != nil {
				e := a.hold.entry
				tt.then(w, a)
				if tk.entry != e {
					t.Fatal("another ticket")
				}
			}
			v := d.watch(tk)
			defer v.close()
			if len(v.fds) != tt.fds || v.limit != tt.limit {
				t.Errorf("%d descriptors, looked at again after %s; want %d, %s", len(v.fds), v.limit, tt.fds, tt.limit)
			}
			if poll(v.fds, time.Millisecond) {
				t.Error("something is ready, though nothing has happened")
			}
		})
	}
}

// Who waits behind a waiter watches that process, and by its follower the kernel lock of
// its ticket (see TestWaiterHearsThatAHoldHasEnded). When it has had the host and lives on,
// nothing of the watch tells: should the follower be kept from it, a look a minute does.
func TestWaiterBehindOneThatLivesOn(t *testing.T) {
	w := newWorld(t)
	first := w.actor()
	fh := first.gets()
	second := w.actor().waits()
	third := w.actor()
	w.seeing(third.d)
	_, v, e, err := third.turn()
	if err != nil || e.Blocker.Seq != second.hold.entry.seq {
		t.Fatalf("%v, behind %+v", err, e.Blocker)
	}
	defer v.close()
	if err := fh.Release(); err != nil {
		t.Fatal(err)
	}
	if err := second.gets().Release(); err != nil {
		t.Fatal(err)
	}
	if poll(v.fds, time.Millisecond) {
		t.Error("something tells: then there is no need of a look")
	}
	if v.limit != time.Minute {
		t.Errorf("looks again after %s, want a minute", v.limit)
	}
	third.gets()
}

func TestVigilWithin(t *testing.T) {
	for _, tt := range []struct {
		within []time.Duration
		want   time.Duration
	}{
		{nil, 0},
		{[]time.Duration{5}, 5},
		{[]time.Duration{5, 3}, 3},
		{[]time.Duration{3, 5}, 3},
		{[]time.Duration{0, 5, 0}, 5}, // 0 is never
		{[]time.Duration{5, -1}, 5},
	} {
		var v vigil
		for _, d := range tt.within {
			v.within(d)
		}
		if v.limit != tt.want {
			t.Errorf("within %v: %d, want %d", tt.within, v.limit, tt.want)
		}
	}
}

func TestPollTimeout(t *testing.T) {
	for d, want := range map[time.Duration]int{
		1:                     1, // rounded up
		time.Millisecond:      1,
		time.Millisecond + 1:  2,
		time.Second - 1:       1000,
		time.Minute:           60000,
		10000 * time.Hour:     1 << 30,
		1<<63 - 1 - time.Hour: 1 << 30,
	} {
		if got := pollTimeout(d); got != want {
			t.Errorf("%s: %d ms, want %d", d, got, want)
		}
	}
}

func TestPoll(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	in := func(fds ...int) (p []unix.PollFd) {
		for _, fd := range fds {
			p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		return p
	}
	began := proc.BootTime()
	if poll(in(-1, fd), 3*time.Millisecond) {
		t.Error("nothing is ready, and it says so")
	}
	if took := proc.BootTime() - began; took < 3*time.Millisecond {
		t.Errorf("it slept for %s", took)
	}
	if ready(fd) || ready(-1) {
		t.Error("ready")
	}
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []time.Duration{0, time.Hour} {
		if !poll(in(-1, fd), limit) {
			t.Error("ready, and not said")
		}
	}
	if !ready(fd) {
		t.Error("not ready")
	}
	// What cannot be waited for is looked at, not slept through: more descriptors than
	// there may be are EINVAL (poll(2)).
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &most); err != nil || most.Cur > 1<<21 {
		t.Skipf("%d descriptors may be open: %v", most.Cur, err)
	}
	if !poll(make([]unix.PollFd, most.Cur+1), 0) {
		t.Error("slept through an error")
	}
}

// A vigil ends when its time is over, and with what ends the wait.
func TestVigilEnds(t *testing.T) {
	w, err := newWaker(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	v := vigil{limit: 3 * time.Millisecond}
	began := proc.BootTime()
	v.wait(w, -1)
	if took := proc.BootTime() - began; took < v.limit {
		t.Errorf("it slept for %s", took)
	}
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC) // readable, as a pidfd of a process that has ended
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	new(vigil).wait(w, fd)
	v = vigil{}
	v.add(fd)
	v.wait(w, -1)

	ctx, cancel := context.WithCancelCause(t.Context())
	woken, err := newWaker(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel(errors.New("a signal"))
	new(vigil).wait(woken, -1)
	woken.close()
}

// Once closed, a waker has nothing more to do with its descriptor, which may be somebody
// else's by then.
func TestWakerOnceClosed(t *testing.T) {
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := newWaker(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		w.close()
		select {
		case <-w.done:
		default:
			t.Fatal("closed, and it has yet to write")
		}
	}
}

// A shown is a context that ends, and shows it, on a descriptor alone.
type shown struct {
	context.Context
	fd    int
	cause atomic.Pointer[error]
	asked chan struct{}
}

func (s *shown) Descriptors() []int { return []int{s.fd} }

func (s *shown) Err() error {
	_, _ = unix.Read(s.fd, make([]byte, 8))
	select {
	case s.asked <- struct{}{}:
	default:
	}
	if cause := s.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

// Who has descriptors to show needs no descriptor of ours, and no goroutine. That they
// are readable asks the context once more, and says no more than that.
func TestPollable(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	wake := func() { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 1}) }
	ctx := &shown{Context: t.Context(), fd: fd, asked: make(chan struct{}, 1)}
	w, err := newWaker(ctx)
	if err != nil || w.own != -1 || len(w.fds) != 1 {
		t.Fatalf("%+v, %v", w, err)
	}
	w.close()

	h := newHost(t)
	holder := send(t, errand{Dir: h.path})
	holder.hears(t, "held")
	began := make(chan struct{}, 1)
	done := make(chan error)
	go func() {
		_, err := h.dir().Acquire(ctx, Request{Owner: "x", Wait: true, Timeout: time.Hour, Notify: func(Event) {
			select {
			case began <- struct{}{}:
			default:
			}
		}})
		done <- err
	}()
	<-began
	for range 3 {
		for len(ctx.asked) > 0 {
			<-ctx.asked
		}
		wake()
		<-ctx.asked // and it waits on
	}
	select {
	case err := <-done:
		t.Fatalf("ended by %v", err)
	default:
	}
	ended := errors.New("a signal")
	ctx.cause.Store(&ended)
	wake()
	if err := <-done; !errors.Is(err, ended) || !errors.As(err, new(*InterruptedError)) {
		t.Errorf("%v", err)
	}
}
