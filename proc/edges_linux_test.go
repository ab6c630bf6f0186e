package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReadFileIsWholeOrAnError(t *testing.T) {
	path := t.TempDir() + "/f"
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 3000)), 0o644); err != nil {
		t.Fatal(err)
	}
	for max, ok := range map[int]bool{2999: false, 3000: true, 3001: true, 10: false, 5000: true} {
		if b, err := readFile(path, max); (err == nil) != ok || ok && len(b) != 3000 || !ok && !errors.Is(err, unix.EFBIG) {
			t.Errorf("at most %d: %d bytes, %v", max, len(b), err)
		}
	}
	if _, err := readFile(path+"2", 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestNumberedTakesNumbersOnly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"12", "0", "-3", "x", "4x", "2147483648", "9"} {
		if err := os.WriteFile(dir+"/"+name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := numbered(dir)
	if slices.Sort(ns); err != nil || !slices.Equal(ns, []int{9, 12}) {
		t.Errorf("%v, %v", ns, err)
	}
	if _, err := numbered(dir + "/none"); err == nil {
		t.Error("no error for a directory that is not there")
	}
}

func TestNoSuchPID(t *testing.T) {
	for pid, want := range map[int]error{0: unix.EINVAL, -1: unix.EINVAL, math.MaxInt32 + 1: unix.EINVAL, math.MaxInt32: ErrGone} {
		if _, err := Stat(pid); !errors.Is(err, want) {
			t.Errorf("Stat(%d): %v, want %v", pid, err, want)
		}
		if _, err := CPUTicks(pid); !errors.Is(err, want) {
			t.Errorf("CPUTicks(%d): %v, want %v", pid, err, want)
		}
		if lost, err := LosesChildren(pid); lost || !errors.Is(err, want) {
			t.Errorf("LosesChildren(%d): %v, %v, want %v", pid, lost, err, want)
		}
	}
	for err, want := range map[error]bool{
		unix.ENOENT: true, unix.ESRCH: true, ErrGone: true, unix.EACCES: false, unix.EIO: false,
		&fs.PathError{Op: "open", Path: "/p", Err: unix.ENOENT}: true, &fs.PathError{Op: "read", Path: "/p", Err: unix.ESRCH}: true,
	} {
		if gone(err) != want || gone(vanished(err)) != want || errors.Is(vanished(err), ErrGone) != want {
			t.Errorf("%v: gone %v, vanished %v", err, gone(err), vanished(err))
		}
	}
	if err := vanished(&fs.PathError{Op: "open", Path: "/p", Err: unix.ENOENT}); err.Error() != "open /p: "+ErrGone.Error() {
		t.Error(err)
	}
}

func TestRealUID(t *testing.T) {
	p, err := Stat(os.Getpid())
	if err != nil || p.RealUID() != os.Getuid() {
		t.Errorf("%+v, %v: real uid %d", p, err, p.RealUID())
	}
	p.Start++
	if uid := p.RealUID(); uid != -1 {
		t.Errorf("of another process with its pid: %d", uid)
	}
	if uid := (Process{PID: math.MaxInt32}).RealUID(); uid != -1 {
		t.Errorf("of none: %d", uid)
	}
	for _, a := range Ancestors(os.Getpid()) {
		if a.UID != -1 {
			t.Errorf("an ancestor's uid %d was asked for", a.UID)
		}
	}
	_, child := holder(t)
	if ds := Descendants(os.Getpid()); !slices.ContainsFunc(ds, func(p Process) bool { return p.PID == child.PID && p.UID == os.Getuid() }) {
		t.Errorf("no child %d of our uid among %+v", child.PID, ds)
	}
}

// What was used in the window counts, though the process rests at both of its ends.
func TestBusyBetweenTheEnds(t *testing.T) {
	_, rests := holder(t)
	stopped(t, rests.PID)
	spin := start(t, helperCmd("spin"))
	spin.line(t)
	id, err := Identify(spin.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ticks := func() uint64 {
		n, err := CPUTicks(id.PID)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	stopped(t, id.PID)
	before, began := ticks(), time.Now()
	var used, rested time.Duration
	cores := busyWhile([]Identity{id, rests}, func() {
		if err := unix.Kill(id.PID, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		// However little of a core a loaded machine leaves to it.
		eventually(t, "it gets no core", func() bool { return ticks() >= before+5 })
		stopped(t, id.PID)
		used = time.Duration(ticks()-before) * time.Second / TicksPerSecond
		rested = 2 * used
		time.Sleep(rested)
	})
	least, most := used.Seconds()/time.Since(began).Seconds(), used.Seconds()/rested.Seconds()
	if cores[0] < least || cores[0] > most || cores[1] != 0 {
		t.Errorf("%v cores, want %.3f to %.3f for the first and none for the second", cores, least, most)
	}
	if runnable(math.MaxInt32) {
		t.Error("what is not there is runnable")
	}
	if s := sampleOf(Identity{PID: math.MaxInt32}, readStat); s != (sample{life: Gone}) {
		t.Errorf("what is not there: %+v", s)
	}
	if s := sampleOf(rests, func(int) (stat, error) { return stat{}, unix.EIO }); s != (sample{life: Alive}) {
		t.Errorf("what cannot be read: %+v", s)
	}
	for _, tt := range []struct {
		name          string
		before, after sample
		want          float64
	}{
		{"half a core", sample{ok: true, ticks: 100}, sample{ok: true, ticks: 150}, 0.5},
		{"it waits for a core at the end", sample{ok: true}, sample{ok: true, ticks: 50, runnable: true}, 0.5},
		{"it waited for a core at the beginning", sample{ok: true, runnable: true}, sample{ok: true, ticks: 50}, 0.5},
		{"it waits at both", sample{ok: true, runnable: true}, sample{ok: true, ticks: 50, runnable: true}, 1},
		{"unreadable at the beginning", sample{life: Alive}, sample{ok: true, life: Alive, ticks: 50}, math.Inf(1)},
		{"unreadable at the end", sample{ok: true, life: Alive, ticks: 50}, sample{life: Alive}, math.Inf(1)},
		{"out of sight", sample{}, sample{}, math.Inf(1)},
		{"gone meanwhile", sample{ok: true, life: Alive, ticks: 50}, sample{life: Gone}, 0},
	} {
		if got := coresBetween(tt.before, tt.after, time.Second); got != tt.want {
			t.Errorf("%s: %v cores, want %v", tt.name, got, tt.want)
		}
	}
}

func TestReadCountersWhole(t *testing.T) {
	files := map[string]string{
		"/proc/stat":         string(fixture(t, "proc_stat")),
		cpuDir + "/online":   "0-3\n",
		"/proc/pressure/cpu": string(fixture(t, "pressure_cpu")),
		cpuDir + "/cpu0/thermal_throttle/package_throttle_count": "7\n",
		cpuDir + "/cpu0/topology/package_cpus_list":              "0-3\n",
	}
	c := readCounters(fakeFiles(files))
	if c.CPU == nil || c.Online != "0-3" || c.OnlineCores() != 4 || c.PressureUS == nil || *c.PressureUS == 0 || !maps.Equal(c.Throttle, map[int]uint64{0: 7}) || c.Mono == 0 {
		t.Errorf("%+v", c)
	}
}

func TestReadMachineWhole(t *testing.T) {
	files := map[string]string{
		"/proc/cpuinfo":                           "processor\t: 0\nmodel name\t: A CPU\n",
		cpuDir + "/online":                        "0,2\n",
		cpuDir + "/cpufreq/boost":                 "1\n",
		cpuDir + "/cpu0/cpufreq/scaling_governor": "performance\n",
		cpuDir + "/cpu2/cpufreq/scaling_governor": "performance\n",
		"/proc/self/cgroup":                       "0::/\n",
	}
	m := readMachine(fakeFiles(files), nil)
	if m.CPUModel != "A CPU" || m.OnlineCores == nil || *m.OnlineCores != 2 || m.Governor != "performance" || m.Turbo == nil || !*m.Turbo || m.Host == "" || m.Kernel == "" {
		t.Errorf("%+v", m)
	}
	for _, online := range []string{"\n", "x\n"} {
		files[cpuDir+"/online"] = online
		if m := readMachine(fakeFiles(files), nil); m.OnlineCores != nil || m.Governor != "" || m.UsableCores != nil {
			t.Errorf("online %q: %+v", online, m)
		}
	}
	files[cpuDir+"/cpu0/cpufreq/scaling_governor"] = "\n"
	if g := governor(fakeFiles(files), []int{0, 2}); g != "" {
		t.Errorf("a CPU without a governor: %q", g)
	}
	for _, cg := range []string{"", "nonsense"} {
		if cores, ok := cpuQuota(fakeFiles(map[string]string{"/proc/self/cgroup": cg}), nil); ok || cores != 0 {
			t.Errorf("cgroup %q: %v, %v", cg, cores, ok)
		}
	}
	if cores, ok := cpuQuota(fakeFiles(nil), nil); ok || cores != 0 {
		t.Errorf("no cgroup: %v, %v", cores, ok)
	}
}

// ancestors ends where the tree does, and at what cannot be.
func TestAncestorsEnd(t *testing.T) {
	table := map[int]Process{
		1: {PID: 1, PPID: 0, Start: 1}, 5: {PID: 5, PPID: 1, Start: 5}, 9: {PID: 9, PPID: 5, Start: 9},
		20: {PID: 20, PPID: 21, Start: 3}, 21: {PID: 21, PPID: 20, Start: 3}, // a ring
		30: {PID: 30, PPID: 31, Start: 3},                                   // whose parent is gone
		40: {PID: 40, PPID: 41, Start: 3}, 41: {PID: 41, PPID: 1, Start: 9}, // whose parent is younger
	}
	stat := func(pid int) (Process, error) {
		p, ok := table[pid]
		if !ok {
			return Process{}, ErrGone
		}
		return p, nil
	}
	for pid, want := range map[int][]int{9: {5, 1}, 5: {1}, 1: nil, 20: {21}, 30: nil, 40: nil, 99: nil} {
		var got []int
		for _, p := range ancestors(pid, stat) {
			got = append(got, p.PID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %d: %v, want %v", pid, got, want)
		}
	}
	// A child whose parent dies while it is asked gets a new one; it is asked again, and
	// not for ever.
	asked := 0
	restless := func(pid int) (Process, error) {
		switch {
		case pid == 1:
			return table[1], nil
		case pid == 7:
			asked++
			return Process{PID: 7, PPID: 100 + asked, Start: 7}, nil
		}
		return Process{}, ErrGone
	}
	if got := ancestors(7, restless); len(got) != 0 || asked != 5 {
		t.Errorf("%v after %d looks", got, asked)
	}
	if ds := below(1, []Process{{PID: 1, PPID: 2}, {PID: 2, PPID: 1}, {PID: 3, PPID: 2}, {PID: 3, PPID: 1}}); fmt.Sprint(len(ds)) != "2" {
		t.Errorf("of what is no tree: %+v", ds)
	}
}

func TestSignalFDRefusesWhatIsNone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := SignalFD(int(r.Fd()), unix.SIGTERM); err != unix.EBADF {
		t.Errorf("a pipe: %v", err)
	}
}

func TestHereIsTheKernelsWord(t *testing.T) {
	for path, got := range map[string]uint64{"/proc/self/ns/pid": Here().PIDNS, "/proc/self/ns/time": Here().TimeNS} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Logf("%s: %v", path, err)
			st.Ino = 0
		}
		if got != st.Ino && st.Ino != 0 {
			t.Errorf("%s: %d, want %d", path, got, st.Ino)
		}
	}
}

// Where /proc shows nothing of us, the kernel is asked by another way.
func TestPIDNamespaceWithoutProc(t *testing.T) {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(pidfd)
	ns, err := unix.IoctlRetInt(pidfd, unix.PIDFD_GET_PID_NAMESPACE)
	if err != nil {
		t.Skipf("Linux before 6.11: %v", err)
	}
	unix.Close(ns)
	before := countFDs(t)
	for range 10 {
		if got := pidNamespace(); got != Here().PIDNS {
			t.Fatalf("%d, want %d", got, Here().PIDNS)
		}
	}
	if after := countFDs(t); after > before+5 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestCountersLeakNothing(t *testing.T) {
	ReadCounters()
	ReadMachine()
	before := countFDs(t)
	for range 30 {
		ReadCounters()
		ReadMachine()
	}
	if after := countFDs(t); after > before+5 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestCPUIsOfAllKinds(t *testing.T) {
	if n := (Process{UTime: 10, STime: 20, CUTime: 300, CSTime: 4000}).cpu(); n != 4330 {
		t.Errorf("%d ticks", n)
	}
}

// Half a record is none.
func TestReadRecordThatDoesNotFit(t *testing.T) {
	whole, err := readRecord("/proc/self/comm", make([]byte, 64))
	if err != nil || len(whole) == 0 {
		t.Fatalf("%q, %v", whole, err)
	}
	for spare, want := range []error{unix.EFBIG, nil} {
		if b, err := readRecord("/proc/self/comm", make([]byte, len(whole)+spare)); !errors.Is(err, want) || want == nil && string(b) != string(whole) {
			t.Errorf("%d bytes to spare: %q, %v", spare, b, err)
		}
	}
}
