package proc

import (
	"bytes"
	"slices"
	"strings"
)

// A cgroup is where a process stands in the hierarchy that limits CPU time.
type cgroup struct {
	v2   bool
	path string // from the root of our cgroup namespace
}

// parseCgroup reads /proc/PID/cgroup (cgroups(7)). The cpu controller is in one
// hierarchy only: version 1 if one names it, else version 2.
func parseCgroup(b []byte) (cgroup, error) {
	var unified *cgroup
	for line := range bytes.Lines(b) {
		line, whole := bytes.CutSuffix(line, []byte("\n"))
		id, rest, ok := bytes.Cut(line, []byte(":"))
		controllers, path, ok2 := bytes.Cut(rest, []byte(":"))
		if !whole || !ok || !ok2 || len(path) == 0 || path[0] != '/' {
			return cgroup{}, errMalformed
		}
		if slices.Contains(strings.Split(string(controllers), ","), "cpu") {
			return cgroup{false, string(path)}, nil
		}
		if string(id) == "0" && len(controllers) == 0 {
			unified = &cgroup{true, string(path)}
		}
	}
	if unified == nil {
		return cgroup{}, errMalformed
	}
	return *unified, nil
}

// cgroupDir finds in a mount table (proc_pid_mountinfo(5)) where a cgroup's files
// are, and the top of what is mounted of its hierarchy. ok is false if it is not
// mounted, or not this part of it.
func cgroupDir(mountinfo []byte, cg cgroup) (top, dir string, ok bool) {
	for line := range strings.Lines(string(mountinfo)) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 {
			continue
		}
		if cg.v2 && g[0] != "cgroup2" {
			continue
		}
		if !cg.v2 && (g[0] != "cgroup" || !slices.Contains(strings.Split(g[2], ","), "cpu")) {
			continue
		}
		root := unescape(f[3])
		rest, below := strings.CutPrefix(cg.path, strings.TrimSuffix(root, "/"))
		// "/.." is outside our cgroup namespace, in the path as in the root.
		if !below || rest != "" && rest[0] != '/' || strings.HasPrefix(rest, "/..") {
			continue
		}
		top = unescape(f[4])
		return top, top + strings.TrimSuffix(rest, "/"), true // a later mount on the same place hides nothing of ours
	}
	return "", "", false
}

// unescape undoes the octal escapes of a mount table (mangle in fs/proc_namespace.c).
func unescape(s string) string {
	for from := 0; ; {
		i := strings.IndexByte(s[from:], '\\')
		if i < 0 || len(s) < from+i+4 {
			return s
		}
		i += from
		var c int
		ok := true
		for _, d := range s[i+1 : i+4] {
			ok = ok && d >= '0' && d <= '7'
			c = c*8 + int(d-'0')
		}
		if ok && c < 256 {
			s = s[:i] + string([]byte{byte(c)}) + s[i+4:]
		}
		from = i + 1
	}
}

// parseCPUMax reads cpu.max: "max 100000" or "150000 100000", both in µs
// (Documentation/admin-guide/cgroup-v2.rst). cores is 0 where there is no limit.
func parseCPUMax(b []byte) (cores float64, err error) {
	f := bytes.Fields(b)
	if len(f) != 2 {
		return 0, errMalformed
	}
	period, ok := parseUint(f[1])
	if !ok || period == 0 {
		return 0, errMalformed
	}
	if string(f[0]) == "max" {
		return 0, nil
	}
	quota, ok := parseUint(f[0])
	if !ok || quota == 0 {
		return 0, errMalformed
	}
	return float64(quota) / float64(period), nil
}

// parseCFSQuota is parseCPUMax for version 1: cpu.cfs_quota_us, which is -1
// where there is no limit, and cpu.cfs_period_us.
func parseCFSQuota(quota, period []byte) (cores float64, err error) {
	p, err := parseCount(period)
	if err != nil || p == 0 {
		return 0, errMalformed
	}
	if string(quota) == "-1\n" {
		return 0, nil
	}
	q, err := parseCount(quota)
	if err != nil || q == 0 {
		return 0, errMalformed
	}
	return float64(q) / float64(p), nil
}
