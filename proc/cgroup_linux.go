package proc

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuQuota is the tightest CPU limit, in cores, that our cgroup and those above it
// set; 0 if none does. ok is false if that cannot be told: the hierarchy is not
// mounted, or no limit can be seen but the top of what is mounted is not the top of
// the machine's, where a container's own limit may be. A limit that can be seen
// counts, though one further up may be tighter.
func cpuQuota(fs kernelFiles, mountinfo []byte) (cores float64, ok bool) {
	own, _ := fs("/proc/self/cgroup", 16<<10) // what cannot be read names no cgroup
	cg, err := parseCgroup(own)
	if err != nil {
		return 0, false
	}
	top, dir, found := cgroupDir(mountinfo, cg)
	if !found {
		return 0, false
	}
	return quotaAbove(fs, cg.v2, top, dir)
}

func quotaAbove(fs kernelFiles, v2 bool, top, dir string) (cores float64, ok bool) {
	for {
		limit, err := quotaOf(fs, v2, dir)
		if err != nil {
			return 0, false
		}
		if limit > 0 && (cores == 0 || limit < cores) {
			cores = limit
		}
		if len(dir) <= len(top) {
			break
		}
		dir = dir[:strings.LastIndexByte(dir, '/')]
	}
	if cores > 0 {
		return cores, true
	}
	// These two files tell the root of a hierarchy from every other cgroup
	// (CFTYPE_NOT_ON_ROOT, CFTYPE_ONLY_ON_ROOT in kernel/cgroup).
	if v2 {
		_, err := fs(top+"/cgroup.type", 64)
		return 0, errors.Is(err, unix.ENOENT)
	}
	_, err := fs(top+"/release_agent", 4096)
	return 0, err == nil
}

// quotaOf is the limit of one cgroup, 0 for none. Where version 2 has no cpu.max,
// the controller is not enabled, or it is the root, and there is no limit.
func quotaOf(fs kernelFiles, v2 bool, dir string) (float64, error) {
	if v2 {
		b, err := fs(dir+"/cpu.max", 64)
		if errors.Is(err, unix.ENOENT) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return parseCPUMax(b)
	}
	quota, err := fs(dir+"/cpu.cfs_quota_us", 32)
	if err != nil {
		return 0, err
	}
	period, err := fs(dir+"/cpu.cfs_period_us", 32)
	if err != nil {
		return 0, err
	}
	return parseCFSQuota(quota, period)
}
