package proc

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeFiles is a machine made of these files.
func fakeFiles(m map[string]string) kernelFiles {
	return func(path string, max int) ([]byte, error) {
		s, ok := m[path]
		if !ok {
			return nil, unix.ENOENT
		}
		return []byte(s[:min(len(s), max)]), nil
	}
}

func TestReadCounters(t *testing.T) {
	start0 := time.Now()
	before := ReadCounters()
	start1 := time.Now()
	if before.CPU == nil || before.OnlineCores() < 1 {
		t.Fatalf("%+v: something is missing", before)
	}
	spin := start(t, helperCmd("spin"))
	spin.line(t)
	var after Counters
	var end time.Time
	eventually(t, "the host is never busy while something spins", func() bool {
		end = time.Now()
		after = ReadCounters()
		busy, _, ok := after.CPU.Since(*before.CPU)
		if !ok {
			t.Fatal("a counter ran backwards")
		}
		return busy > 0
	})
	if d := after.Mono - before.Mono; d < end.Sub(start1) || d > time.Since(start0) {
		t.Errorf("%v passed in %v to %v", d, end.Sub(start1), time.Since(start0))
	}
	if before.PressureUS != nil && *after.PressureUS < *before.PressureUS {
		t.Error("pressure ran backwards")
	}
	if _, err := os.Stat("/proc/pressure/cpu"); err != nil && after.PressureUS != nil {
		t.Errorf("pressure %d where the kernel tells none", *after.PressureUS)
	}
}

func TestOnlineCores(t *testing.T) {
	for in, want := range map[string]int{"0-3,8": 5, "0": 1, "": 0, "x": 0, "3-1": 0} {
		if got := (Counters{Online: in}).OnlineCores(); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

// What a machine does not tell is nil, never 0.
func TestReadCountersAbsent(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing":   nil,
		"nonsense":  {"/proc/stat": "x", cpuDir + "/online": "x", "/proc/pressure/cpu": "x"},
		"psi=0":     {cpuDir + "/online": "\n"},
		"cut lists": {cpuDir + "/online": strings.Repeat("0,", 3000) + "\n"},
	} {
		c := readCounters(fakeFiles(files))
		if c.CPU != nil || c.Online != "" || c.OnlineCores() != 0 || c.PressureUS != nil || c.Throttle != nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestThrottleCounts(t *testing.T) {
	cpu := func(n, pkg, count, siblings string) map[string]string {
		d := cpuDir + "/cpu" + n
		return map[string]string{d + "/thermal_throttle/package_throttle_count": count, d + "/topology/" + pkg: siblings}
	}
	join := func(ms ...map[string]string) map[string]string {
		all := map[string]string{}
		for _, m := range ms {
			maps.Copy(all, m)
		}
		return all
	}
	tests := []struct {
		name   string
		files  map[string]string
		online []int
		want   map[int]uint64
	}{
		{"one package", cpu("0", "package_cpus_list", "7\n", "0-3\n"), []int{0, 1, 2, 3}, map[int]uint64{0: 7}},
		{"two", join(cpu("0", "package_cpus_list", "7\n", "0-1,4-5\n"), cpu("2", "package_cpus_list", "9\n", "2-3,6-7\n")),
			[]int{0, 1, 2, 3, 4, 5, 6, 7}, map[int]uint64{0: 7, 2: 9}},
		{"an older kernel", cpu("0", "core_siblings_list", "0\n", "0-3\n"), []int{0, 1, 2, 3}, map[int]uint64{0: 0}},
		{"CPU 0 offline", cpu("1", "package_cpus_list", "3\n", "1-3\n"), []int{1, 2, 3}, map[int]uint64{1: 3}},
		{"an AMD CPU, a VM", nil, []int{0, 1}, nil},
		{"one package does not count", cpu("0", "package_cpus_list", "7\n", "0\n"), []int{0, 1}, nil},
		{"no topology", map[string]string{cpuDir + "/cpu0/thermal_throttle/package_throttle_count": "1\n"}, []int{0}, nil},
		{"nonsense", cpu("0", "package_cpus_list", "x\n", "0\n"), []int{0}, nil},
		{"nobody knows what is online", cpu("0", "package_cpus_list", "7\n", "0\n"), nil, nil},
	}
	for _, tt := range tests {
		if got := throttleCounts(fakeFiles(tt.files), tt.online); !maps.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A file that something else mounted over the kernel's is not the kernel's word.
func TestGenuine(t *testing.T) {
	path := t.TempDir() + "/stat"
	if err := os.WriteFile(path, fixture(t, "proc_stat"), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := genuine(path, 512); err == nil {
		t.Errorf("%.20q from a file of ours", b)
	}
	if b, err := genuine("/proc/stat", 3); err != nil || string(b) != "cpu" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestReadMachine(t *testing.T) {
	m := ReadMachine()
	host, err := os.Hostname()
	if err != nil || m.Host != host || m.Kernel == "" {
		t.Errorf("%+v, want host %q and a kernel", m, host)
	}
	if m.OnlineCores == nil || *m.OnlineCores < 1 {
		t.Errorf("%+v: no online cores", m)
	}
	if m.UsableCores != nil && (*m.UsableCores <= 0 || *m.UsableCores > float64(*m.OnlineCores)) {
		t.Errorf("%v usable of %d cores", *m.UsableCores, *m.OnlineCores)
	}
	empty := readMachine(fakeFiles(nil), nil)
	if empty.CPUModel != "" || empty.Governor != "" || empty.Turbo != nil || empty.OnlineCores != nil || empty.UsableCores != nil {
		t.Errorf("%+v out of nothing", empty)
	}
}

func TestGovernorAndTurbo(t *testing.T) {
	gov := func(n, g string) map[string]string {
		return map[string]string{cpuDir + "/cpu" + n + "/cpufreq/scaling_governor": g}
	}
	both := func(a, b string) map[string]string {
		m := gov("0", a)
		maps.Copy(m, gov("3", b))
		return m
	}
	for _, tt := range []struct {
		files map[string]string
		want  string
	}{
		{both("performance\n", "performance\n"), "performance"},
		{both("performance\n", "powersave\n"), "mixed"},
		{gov("0", "performance\n"), ""}, // one that does not say
		{nil, ""},
	} {
		if got := governor(fakeFiles(tt.files), []int{0, 3}); got != tt.want {
			t.Errorf("%v: %q, want %q", slices.Sorted(maps.Keys(tt.files)), got, tt.want)
		}
	}
	yes, no := true, false
	for _, tt := range []struct {
		files map[string]string
		want  *bool
	}{
		{map[string]string{cpuDir + "/intel_pstate/no_turbo": "1\n"}, &no},
		{map[string]string{cpuDir + "/intel_pstate/no_turbo": "0\n"}, &yes},
		{map[string]string{cpuDir + "/cpufreq/boost": "1\n"}, &yes},
		{map[string]string{cpuDir + "/cpufreq/boost": "0\n"}, &no},
		{map[string]string{cpuDir + "/cpufreq/boost": "x\n"}, nil},
		{nil, nil},
	} {
		if got := turbo(fakeFiles(tt.files)); (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%v: %v", tt.files, got)
		}
	}
}

func TestQuotaAbove(t *testing.T) {
	const top = "/cg"
	tests := []struct {
		name  string
		v2    bool
		dir   string
		files map[string]string
		cores float64
		ok    bool
	}{
		{"v2, none", true, "/cg/a", map[string]string{"/cg/a/cpu.max": "max 100000\n"}, 0, true},
		{"v2, the tightest", true, "/cg/a/b", map[string]string{"/cg/a/b/cpu.max": "300000 100000\n", "/cg/a/cpu.max": "200000 100000\n"}, 2, true},
		{"v2, the tightest is ours", true, "/cg/a/b", map[string]string{"/cg/a/b/cpu.max": "100000 100000\n", "/cg/a/cpu.max": "200000 100000\n"}, 1, true},
		{"v2, controller off below", true, "/cg/a/b", map[string]string{"/cg/a/cpu.max": "50000 100000\n"}, 0.5, true},
		{"v2, a container without a limit", true, "/cg", map[string]string{"/cg/cpu.max": "max 100000\n", "/cg/cgroup.type": "domain\n"}, 0, false},
		{"v2, a container with one", true, "/cg", map[string]string{"/cg/cpu.max": "150000 100000\n", "/cg/cgroup.type": "domain\n"}, 1.5, true},
		{"v2, nonsense", true, "/cg/a", map[string]string{"/cg/a/cpu.max": "x\n"}, 0, false},
		{"v1, none", false, "/cg", map[string]string{"/cg/cpu.cfs_quota_us": "-1\n", "/cg/cpu.cfs_period_us": "100000\n", "/cg/release_agent": "\n"}, 0, true},
		{"v1, limited", false, "/cg/a", map[string]string{"/cg/a/cpu.cfs_quota_us": "250000\n", "/cg/a/cpu.cfs_period_us": "100000\n",
			"/cg/cpu.cfs_quota_us": "-1\n", "/cg/cpu.cfs_period_us": "100000\n", "/cg/release_agent": "\n"}, 2.5, true},
		{"v1, a container", false, "/cg", map[string]string{"/cg/cpu.cfs_quota_us": "-1\n", "/cg/cpu.cfs_period_us": "100000\n"}, 0, false},
		{"v1, unreadable", false, "/cg", nil, 0, false},
	}
	for _, tt := range tests {
		if cores, ok := quotaAbove(fakeFiles(tt.files), tt.v2, top, tt.dir); cores != tt.cores || ok != tt.ok {
			t.Errorf("%s: %v, %v, want %v, %v", tt.name, cores, ok, tt.cores, tt.ok)
		}
	}
}

// Of which cgroup the limit is asked.
func TestCPUQuota(t *testing.T) {
	const mounts = "1 2 0:26 / /cg rw - cgroup cgroup rw,cpu\n"
	files := map[string]string{"/cg/a/cpu.cfs_quota_us": "250000\n", "/cg/a/cpu.cfs_period_us": "100000\n",
		"/cg/cpu.cfs_quota_us": "50000\n", "/cg/cpu.cfs_period_us": "100000\n", cpuDir + "/online": "0,2\n"}
	for _, tt := range []struct {
		name, own, mounts string
		cores             float64
		ok                bool
	}{
		{"ours", "3:cpu:/a\n", mounts, 0.5, true},
		{"no cgroup is told", "", mounts, 0, false},
		{"not one of a cgroup's lines", "x\n", mounts, 0, false},
		{"not mounted", "3:cpu:/a\n", "", 0, false},
	} {
		delete(files, "/proc/self/cgroup")
		if tt.own != "" {
			files["/proc/self/cgroup"] = tt.own
		}
		if cores, ok := cpuQuota(fakeFiles(files), []byte(tt.mounts)); cores != tt.cores || ok != tt.ok {
			t.Errorf("%s: %v, %v, want %v, %v", tt.name, cores, ok, tt.cores, tt.ok)
		}
		if m := readMachine(fakeFiles(files), []byte(tt.mounts)); (m.UsableCores != nil) != tt.ok || tt.ok && *m.UsableCores != tt.cores {
			t.Errorf("%s: %v usable", tt.name, m.UsableCores)
		}
	}
	// Without a limit, what we may run on decides.
	files["/proc/self/cgroup"], files["/cg/release_agent"] = "3:cpu:/\n", ""
	files["/cg/cpu.cfs_quota_us"] = "-1\n"
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	for _, quota := range []string{"-1\n", "99900000\n"} {
		files["/cg/cpu.cfs_quota_us"] = quota
		if m := readMachine(fakeFiles(files), []byte(mounts)); m.UsableCores == nil || *m.UsableCores != float64(min(2, may.Count())) {
			t.Errorf("quota %q: %v usable of 2 cores, %d of them ours", quota, m.UsableCores, may.Count())
		}
	}
}

// What ignores SIGCHLD, told while it runs and of its zombie.
func TestLosesChildren(t *testing.T) {
	for _, tt := range []struct {
		mode string
		want bool
	}{{"hold", false}, {"hold-ignoring", true}} {
		h := start(t, helperCmd(tt.mode))
		h.line(t)
		for _, when := range []string{"running", "a zombie"} {
			if got, err := LosesChildren(h.Process.Pid); got != tt.want || err != nil {
				t.Errorf("%s, %s: %v, %v, want %v", tt.mode, when, got, err, tt.want)
			}
			h.in.Close()
			waitDead(t, h.Process.Pid)
		}
		h.Wait()
		if _, err := LosesChildren(h.Process.Pid); err == nil {
			t.Errorf("%s: no error once it is gone", tt.mode)
		}
	}
}

func BenchmarkReadCounters(b *testing.B) {
	for b.Loop() {
		ReadCounters()
	}
}
