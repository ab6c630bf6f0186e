package proc

import (
	"io/fs"
	"time"
)

// HostCPU reads the machine's CPU counters.
func HostCPU() (CPUTimes, error) {
	const path = "/proc/stat"
	b, err := genuine(path, maxCPULine)
	if err != nil {
		return CPUTimes{}, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	c, err := parseCPUTimes(b)
	if err != nil {
		return CPUTimes{}, &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	return c, nil
}

// HostBusy is how many cores the whole machine used on average over the window
// that starts now and that it sleeps through: neither idle nor waiting for I/O,
// without stolen time. A tick is 10 ms, so a window under 100 ms says little.
func HostBusy(window time.Duration) (cores float64, err error) {
	return hostBusyWhile(func() { time.Sleep(window) })
}

// hostBusyWhile is HostBusy in the time that something takes.
func hostBusyWhile(do func()) (cores float64, err error) {
	before, err := HostCPU()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	do()
	after, err := HostCPU()
	if err != nil {
		return 0, err
	}
	return coresUsed(before.Busy(), after.Busy(), time.Since(start)), nil
}

// coresUsed turns a difference of ticks into cores. A counter that ran
// backwards (a CPU taken away) is no use at all, not a large number.
func coresUsed(before, after uint64, elapsed time.Duration) float64 {
	if after < before || elapsed <= 0 {
		return 0
	}
	return float64(after-before) / TicksPerSecond / elapsed.Seconds()
}
