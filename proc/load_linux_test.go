package proc

import (
	"math"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The figure follows load that the test starts: with three spinning threads it
// cannot be below four, for the reader is one itself.
func TestRunnable(t *testing.T) {
	n, err := Runnable()
	if err != nil || n < 1 {
		t.Fatalf("Runnable() = %d, %v, want at least ourselves", n, err)
	}
	const spinners = 3
	for range spinners {
		h := start(t, helperCmd("spin"))
		h.line(t)
	}
	// A CPU quota may take them off the queue for a moment.
	for deadline := time.Now().Add(time.Minute); n < spinners+1 && time.Now().Before(deadline); {
		if n, err = Runnable(); err != nil {
			t.Fatal(err)
		}
	}
	if n < spinners+1 {
		t.Errorf("Runnable() = %d with %d spinning", n, spinners)
	}
}

func TestBusy(t *testing.T) {
	spin := start(t, helperCmd("spin"))
	spin.line(t)
	spinID, err := Identify(spin.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_, idle := holder(t)
	stopped(t, idle.PID) // else it may have yet to come to rest
	dead, deadID := holder(t)
	dead.Process.Kill()
	dead.Wait()
	unseen := idle
	unseen.PIDNS++
	recycled := spinID
	recycled.Start++
	recycled.PIDFSIno = 0

	began := time.Now()
	cores := Busy([]Identity{spinID, idle, deadID, unseen, recycled}, 300*time.Millisecond)
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("a window of %s", took)
	}
	// A loaded test machine may give the spinner less than its core, never nothing.
	if cores[0] < 0.05 || cores[0] > 4 {
		t.Errorf("spinning: %.3f cores", cores[0])
	}
	if cores[1] > 0.05 {
		t.Errorf("idle: %.3f cores", cores[1])
	}
	if cores[2] != 0 {
		t.Errorf("dead: %v cores, want 0", cores[2])
	}
	if !math.IsInf(cores[3], 1) {
		t.Errorf("not to be seen: %v cores, want +Inf", cores[3])
	}
	if cores[4] != 0 {
		t.Errorf("another process with its pid: %v cores, want 0", cores[4])
	}

	const ticks = 10
	began = time.Now()
	host, err := hostBusyWhile(func() {
		before, err := HostCPU()
		eventually(t, "the host is never busy while something spins", func() bool {
			now, nerr := HostCPU()
			return err != nil || nerr != nil || now.Busy() >= before.Busy()+ticks
		})
	})
	if least := ticks / float64(TicksPerSecond) / time.Since(began).Seconds(); err != nil || host < least {
		t.Errorf("HostBusy = %.3f, %v, with one spinning, want %.3f", host, err, least)
	}
	began = time.Now()
	if host, err := HostBusy(20 * time.Millisecond); err != nil || host < 0 || time.Since(began) < 20*time.Millisecond {
		t.Errorf("HostBusy = %.3f, %v, after %s", host, err, time.Since(began))
	}
	if ticks, err := CPUTicks(spinID.PID); err != nil || ticks == 0 {
		t.Errorf("CPUTicks of the spinner = %d, %v", ticks, err)
	}
	if _, err := CPUTicks(deadID.PID); err == nil {
		t.Error("CPUTicks of a dead process: no error")
	}
}

func TestCoresUsed(t *testing.T) {
	tests := []struct {
		before, after uint64
		elapsed       time.Duration
		want          float64
	}{
		{100, 300, time.Second, 2},
		{0, 50, 500 * time.Millisecond, 1},
		{100, 100, time.Second, 0},
		{300, 100, time.Second, 0},
		{100, 300, 0, 0},
	}
	for _, tt := range tests {
		if got := coresUsed(tt.before, tt.after, tt.elapsed); got != tt.want {
			t.Errorf("coresUsed(%d, %d, %v) = %v, want %v", tt.before, tt.after, tt.elapsed, got, tt.want)
		}
	}
}

// A start time and the boot clock are the same clock.
func TestBootTime(t *testing.T) {
	before := BootTime()
	_, id := holder(t)
	after := BootTime()
	started := time.Duration(id.Start) * time.Second / TicksPerSecond
	if started < before-time.Second/TicksPerSecond || started > after {
		t.Errorf("started at %v, want between %v and %v", started, before, after)
	}
}

func TestSignalFD(t *testing.T) {
	h, id := holder(t)
	fd, l := Open(id)
	if l != Alive {
		t.Fatal(l)
	}
	defer unix.Close(fd)
	if err := SignalFD(fd, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitDead(t, id.PID)
	if err := SignalFD(fd, unix.SIGTERM); err != nil {
		t.Errorf("signal to a zombie: %v", err)
	}
	h.Wait()
	if err := SignalFD(fd, unix.SIGTERM); err != ErrGone {
		t.Errorf("signal to a reaped process: %v, want ErrGone", err)
	}
	for _, fd := range []int{-1, -10000, -10001} { // the latter two are PIDFD_SELF
		if err := SignalFD(fd, 0); err != unix.EBADF {
			t.Errorf("signal to pidfd %d: %v, want EBADF", fd, err)
		}
	}
}

// A process that wants a core and gets none is not idle: on a host that is
// loaded, a dead benchmark's survivor would pass for a daemon.
func TestBusyStarved(t *testing.T) {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatal(err)
	}
	var one unix.CPUSet
	for i := range 1024 {
		if cpus.IsSet(i) {
			one.Set(i)
			break
		}
	}
	pinned := func(idle bool) Identity {
		h := start(t, helperCmd("spin"))
		h.line(t)
		tids, err := numbered("/proc/" + strconv.Itoa(h.Process.Pid) + "/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, tid := range tids {
			if err := unix.SchedSetaffinity(tid, &one); err != nil {
				t.Fatal(err)
			}
			if idle {
				if err := unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
					t.Skipf("not allowed here: %v", err)
				}
			}
		}
		id, err := Identify(h.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	starved := pinned(true)
	for range 3 {
		pinned(false)
	}
	_, idle := holder(t)
	stopped(t, idle.PID)
	cores := Busy([]Identity{starved, idle}, 300*time.Millisecond)
	if cores[0] < 1 {
		t.Errorf("starved: %.3f cores, want the one that it waits for", cores[0])
	}
	if cores[1] > 0.05 {
		t.Errorf("idle: %.3f cores", cores[1])
	}
}
