package proc

import "time"

// Counters are what the machine has counted since boot, at one moment. What it
// does not tell is nil.
type Counters struct {
	// Mono is CLOCK_MONOTONIC in ns. Unlike CLOCK_BOOTTIME it stands still while the
	// machine sleeps, and so do the other counters.
	Mono       time.Duration  `json:"mono_ns"`
	CPU        *CPUTimes      `json:"cpu_ticks,omitempty"`
	Online     string         `json:"online_cpus,omitempty"`      // as the kernel lists them: "0-3,8"
	PressureUS *uint64        `json:"pressure_some_us,omitempty"` // the whole machine's, our own tasks included
	Throttle   map[int]uint64 `json:"package_throttle_count,omitempty"`
}

// OnlineCores is how many CPUs were online; 0 is unknown.
func (c Counters) OnlineCores() int {
	cpus, _ := parseCPUList([]byte(c.Online + "\n"))
	return len(cpus)
}
