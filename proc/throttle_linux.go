package proc

import "strconv"

const cpuDir = "/sys/devices/system/cpu"

// throttleCounts reads how often each CPU package has been throttled for heat
// since boot (package_throttle_count, Documentation/ABI/testing/sysfs-devices-system-cpu),
// by the lowest CPU that is online in it. Each CPU has its own count of what is
// one event of the package, so one CPU speaks for all, and a large machine costs
// two files a package and not two a CPU. nil is unknown: only some x86 CPUs count.
func throttleCounts(fs kernelFiles, online []int) map[int]uint64 {
	counts := make(map[int]uint64)
	seen := make(map[int]bool)
	for _, cpu := range online {
		if seen[cpu] {
			continue
		}
		dir := cpuDir + "/cpu" + strconv.Itoa(cpu)
		b, err := fs(dir+"/thermal_throttle/package_throttle_count", 32)
		if err != nil {
			return nil
		}
		if counts[cpu], err = parseCount(b); err != nil {
			return nil
		}
		siblings, err := packageCPUs(fs, dir)
		if err != nil {
			return nil
		}
		seen[cpu] = true
		for _, s := range siblings {
			seen[s] = true
		}
	}
	if len(counts) == 0 {
		return nil
	}
	return counts
}

func packageCPUs(fs kernelFiles, dir string) ([]int, error) {
	b, err := fs(dir+"/topology/package_cpus_list", maxCPUList)
	if err != nil { // before Linux 5.3 by its old name
		b, err = fs(dir+"/topology/core_siblings_list", maxCPUList)
	}
	if err != nil {
		return nil, err
	}
	return parseCPUList(b)
}
