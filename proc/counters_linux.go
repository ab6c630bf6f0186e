package proc

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bytes of a file that are enough. What a sysfs file shows is at most a page; a list
// of CPUs that does not fit is refused by its parser.
const (
	maxCPULine = 512 // 10 numbers of at most 20 digits
	maxCPUList = 4096
)

// ReadCounters reads the counters: three files, and two more for each CPU
// package where throttling is counted.
func ReadCounters() Counters { return readCounters(genuineInto(make([]byte, maxCPUList))) }

func readCounters(fs kernelFiles) Counters {
	c := Counters{Mono: Monotonic()}
	var online []int
	if b, err := fs("/proc/stat", maxCPULine); err == nil {
		if cpu, err := parseCPUTimes(b); err == nil {
			c.CPU = &cpu
		}
	}
	if b, err := fs(cpuDir+"/online", maxCPUList); err == nil {
		if cpus, err := parseCPUList(b); err == nil {
			c.Online, online = strings.TrimSuffix(string(b), "\n"), cpus
		}
	}
	if b, err := fs("/proc/pressure/cpu", 512); err == nil {
		if us, err := parsePressureSome(b); err == nil {
			c.PressureUS = &us
		}
	}
	c.Throttle = throttleCounts(fs, online)
	return c
}

// Monotonic is CLOCK_MONOTONIC, which stands still while the machine sleeps.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0 // no Linux that Go runs on
	}
	return time.Duration(ts.Nano())
}
