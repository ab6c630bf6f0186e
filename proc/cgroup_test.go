package proc

import (
	"strings"
	"testing"
)

func TestParseCgroup(t *testing.T) {
	tests := []struct {
		name, in string
		want     cgroup
		ok       bool
	}{
		{"this hybrid machine", string(fixture(t, "cgroup_v1")), cgroup{false, "/"}, true},
		{"v2 with systemd", "0::/user.slice/user-1000.slice/session-3.scope\n", cgroup{true, "/user.slice/user-1000.slice/session-3.scope"}, true},
		{"v2 in a container", "0::/\n", cgroup{true, "/"}, true},
		{"v1, two controllers", "4:cpuset:/a\n3:cpu,cpuacct:/docker/0123:x\n0::/b\n", cgroup{false, "/docker/0123:x"}, true},
		{"cpuset and cpuacct are not cpu", "4:cpuset:/a\n3:cpuacct:/c\n0::/b\n", cgroup{true, "/b"}, true},
		{"v1 without cpu", "4:cpuset:/a\n1:name=systemd:/\n", cgroup{}, false},
		{"outside the namespace", "0::/../other\n", cgroup{true, "/../other"}, true},
		{"cut", "0::/user.slice/us", cgroup{}, false},
		{"relative", "0::x\n", cgroup{}, false},
		{"empty", "", cgroup{}, false},
	}
	for _, tt := range tests {
		if got, err := parseCgroup([]byte(tt.in)); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add(fixture(f, "cgroup_v1"))
	f.Add([]byte("0::/\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := parseCgroup(b); err != nil && got != (cgroup{}) || err == nil && !strings.HasPrefix(got.path, "/") {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestCgroupDir(t *testing.T) {
	const (
		v2     = "24 30 0:22 / /sys rw shared:2 - sysfs sysfs rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
		docker = "1204 1203 0:26 /docker/0123 /sys/fs/cgroup/cpu,cpuacct ro master:17 - cgroup cgroup rw,cpu,cpuacct\n"
	)
	here := string(fixture(t, "mountinfo_v1"))
	tests := []struct {
		name, mounts string
		cg           cgroup
		top, dir     string
		ok           bool
	}{
		{"v2", v2, cgroup{true, "/a.slice/b"}, "/sys/fs/cgroup", "/sys/fs/cgroup/a.slice/b", true},
		{"v2, root", v2, cgroup{true, "/"}, "/sys/fs/cgroup", "/sys/fs/cgroup", true},
		{"v1 here", here, cgroup{false, "/a"}, "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu/a", true},
		{"v2 of a hybrid", here, cgroup{true, "/"}, "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified", true},
		{"v1 in a container", docker, cgroup{false, "/docker/0123"}, "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", true},
		{"below it", docker, cgroup{false, "/docker/0123/x"}, "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/x", true},
		{"another of the same beginning", docker, cgroup{false, "/docker/01234"}, "", "", false},
		{"not this part", docker, cgroup{false, "/"}, "", "", false},
		{"outside our namespace", v2, cgroup{true, "/../x"}, "", "", false},
		{"v1 wanted, v2 mounted", v2, cgroup{false, "/"}, "", "", false},
		{"escaped", "1 2 0:26 /a\\040b /mnt/c\\134d rw - cgroup2 cgroup2 rw\n", cgroup{true, "/a b/e"}, "/mnt/c\\d", "/mnt/c\\d/e", true},
		{"optional fields", "1 2 0:26 / /m rw shared:1 master:2 propagate_from:3 - cgroup2 none rw\n", cgroup{true, "/"}, "/m", "/m", true},
		{"nothing", "", cgroup{true, "/"}, "", "", false},
	}
	for _, tt := range tests {
		if top, dir, ok := cgroupDir([]byte(tt.mounts), tt.cg); top != tt.top || dir != tt.dir || ok != tt.ok {
			t.Errorf("%s: %q, %q, %v, want %q, %q", tt.name, top, dir, ok, tt.top, tt.dir)
		}
	}
}

func FuzzCgroupDir(f *testing.F) {
	f.Add(fixture(f, "mountinfo_v1"), "/a/b", false)
	f.Add([]byte("1 2 0:26 /a\\040b /mnt/c\\134d rw - cgroup2 cgroup2 rw\n"), "/a b/e", true)
	f.Fuzz(func(t *testing.T, b []byte, path string, v2 bool) {
		top, dir, ok := cgroupDir(b, cgroup{v2, path})
		if !strings.HasPrefix(dir, top) || !ok && dir != "" {
			t.Errorf("%q below %q, %v", dir, top, ok)
		}
	})
}

func TestParseCPUMax(t *testing.T) {
	for in, want := range map[string]float64{"max 100000\n": 0, "150000 100000\n": 1.5, "1000 1000000\n": 0.001} {
		if got, err := parseCPUMax([]byte(in)); got != want || err != nil {
			t.Errorf("%q: %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "max\n", "max 0\n", "0 100000\n", "-1 100000\n", "1 2 3\n", "max max\n"} {
		if got, err := parseCPUMax([]byte(in)); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
}

func TestParseCFSQuota(t *testing.T) {
	for _, tt := range []struct {
		quota, period string
		want          float64
		ok            bool
	}{
		{"-1\n", "100000\n", 0, true},
		{"50000\n", "100000\n", 0.5, true},
		{"0\n", "100000\n", 0, false},
		{"-2\n", "100000\n", 0, false},
		{"50000\n", "0\n", 0, false},
		{"50000", "100000\n", 0, false},
		{"-1\n", "", 0, false},
	} {
		if got, err := parseCFSQuota([]byte(tt.quota), []byte(tt.period)); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%q of %q: %v, %v, want %v", tt.quota, tt.period, got, err, tt.want)
		}
	}
}
