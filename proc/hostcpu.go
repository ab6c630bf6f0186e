package proc

import "bytes"

// CPUTimes is what all CPUs of the machine together have spent since boot, in
// ticks. The kernel sums over every CPU that could be there, online or not
// (show_stat in fs/proc/stat.c), so taking one offline takes nothing away. Idle and
// IOWait are the exception: an online CPU's come from another clock than an offline
// one's and may step back.
type CPUTimes struct {
	User      uint64 `json:"user"` // Guest included
	Nice      uint64 `json:"nice"` // GuestNice included
	System    uint64 `json:"system"`
	Idle      uint64 `json:"idle"`
	IOWait    uint64 `json:"iowait"` // idle too; documented as unreliable (proc_stat(5))
	IRQ       uint64 `json:"irq"`
	SoftIRQ   uint64 `json:"softirq"`
	Steal     uint64 `json:"steal"` // taken by the hypervisor for others
	Guest     uint64 `json:"guest"` // Linux ≥ 2.6.24; 0 before, where nobody counted it
	GuestNice uint64 `json:"guest_nice"`
}

// Busy is what something ran: neither idle nor waiting for I/O nor stolen.
func (c CPUTimes) Busy() uint64 { return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ }

// Since is what was spent after before, in ticks. ok is false if a counter that
// never goes back did: after a migration to another host, or in an emulated /proc.
func (c CPUTimes) Since(before CPUTimes) (busy, steal uint64, ok bool) {
	now, then := c.all(), before.all()
	for i := range now {
		if *now[i] < *then[i] && now[i] != &c.Idle && now[i] != &c.IOWait {
			return 0, 0, false
		}
	}
	return c.Busy() - before.Busy(), c.Steal - before.Steal, true
}

// IdleSince is the ticks in which CPUs did nothing, or waited for I/O, after
// before. ok is false if the counters stepped back.
func (c CPUTimes) IdleSince(before CPUTimes) (idle uint64, ok bool) {
	if c.Idle < before.Idle || c.IOWait < before.IOWait {
		return 0, false
	}
	return c.Idle - before.Idle + c.IOWait - before.IOWait, true
}

// all is the counters in the order of the kernel's line.
func (c *CPUTimes) all() [10]*uint64 {
	return [10]*uint64{&c.User, &c.Nice, &c.System, &c.Idle, &c.IOWait, &c.IRQ, &c.SoftIRQ, &c.Steal, &c.Guest, &c.GuestNice}
}

// minCPUTimes is how many numbers a line has at least: up to steal, Linux 2.6.11.
const minCPUTimes = 8

// parseCPUTimes reads the first line of /proc/stat (fs/proc/stat.c).
func parseCPUTimes(b []byte) (CPUTimes, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 1+minCPUTimes || string(f[0]) != "cpu" {
		return CPUTimes{}, errMalformed
	}
	var c CPUTimes
	for i, v := range c.all() {
		if i+1 >= len(f) {
			break
		}
		var ok bool
		if *v, ok = parseUint(f[i+1]); !ok {
			return CPUTimes{}, errMalformed
		}
	}
	// A sum that wraps would be a small number that nobody doubts.
	var sum uint64
	for _, v := range []uint64{c.User, c.Nice, c.System, c.IRQ, c.SoftIRQ} {
		if sum+v < sum {
			return CPUTimes{}, errMalformed
		}
		sum += v
	}
	return c, nil
}
