package proc

import "bytes"

// CPUTimes is what all CPUs of the machine together have spent since boot, in
// ticks.
type CPUTimes struct {
	Busy   uint64 // user, nice (guests are in both), system, irq, softirq
	Idle   uint64
	IOWait uint64 // idle too; documented as unreliable (proc_stat(5))
	Steal  uint64 // taken by the hypervisor for others
}

// parseCPUTimes reads the first line of /proc/stat (fs/proc/stat.c).
func parseCPUTimes(b []byte) (CPUTimes, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 9 || string(f[0]) != "cpu" {
		return CPUTimes{}, errMalformed
	}
	var v [8]uint64 // user nice system idle iowait irq softirq steal
	for i := range v {
		var ok bool
		if v[i], ok = parseUint(f[i+1]); !ok {
			return CPUTimes{}, errMalformed
		}
	}
	return CPUTimes{Busy: v[0] + v[1] + v[2] + v[5] + v[6], Idle: v[3], IOWait: v[4], Steal: v[7]}, nil
}
