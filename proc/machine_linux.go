package proc

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// ReadMachine reads the facts of the machine. It opens a file for each CPU.
func ReadMachine() Machine {
	mountinfo, _ := readFile("/proc/self/mountinfo", 1<<20) // what cannot be read has no mount
	return readMachine(genuine, mountinfo)
}

func readMachine(fs kernelFiles, mountinfo []byte) Machine {
	var m Machine
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Host, m.Kernel = unix.ByteSliceToString(uts.Nodename[:]), unix.ByteSliceToString(uts.Release[:])
	}
	// The first CPU is in the first page. To read them all asks each CPU for its
	// frequency, and wakes it for that.
	if b, err := fs("/proc/cpuinfo", 4096); err == nil {
		m.CPUModel = parseCPUModel(b)
	}
	m.Turbo = turbo(fs)
	b, err := fs(cpuDir+"/online", maxCPUList)
	if err != nil {
		return m
	}
	online, _ := parseCPUList(b)
	if len(online) == 0 {
		return m
	}
	m.Governor = governor(fs, online)
	n := len(online)
	m.OnlineCores = &n
	var may unix.CPUSet
	if unix.SchedGetaffinity(0, &may) != nil {
		return m
	}
	if quota, ok := cpuQuota(fs, mountinfo); ok {
		usable := float64(min(n, may.Count()))
		if quota > 0 && quota < usable {
			usable = quota
		}
		m.UsableCores = &usable
	}
	return m
}

// governor is the frequency governor (Documentation/admin-guide/pm/cpufreq.rst).
func governor(fs kernelFiles, online []int) string {
	all := ""
	for _, cpu := range online {
		b, _ := fs(cpuDir+"/cpu"+strconv.Itoa(cpu)+"/cpufreq/scaling_governor", 64)
		g := string(bytes.TrimSpace(b))
		switch {
		case g == "":
			return ""
		case all == "":
			all = g
		case all != g:
			return "mixed"
		}
	}
	return all
}

// turbo is whether the CPUs may run above their nominal frequency: intel_pstate
// says when they may not, other drivers when they may (both in
// Documentation/admin-guide/pm).
func turbo(fs kernelFiles) *bool {
	for _, f := range []struct {
		path string
		on   string
	}{{cpuDir + "/intel_pstate/no_turbo", "0\n"}, {cpuDir + "/cpufreq/boost", "1\n"}} {
		b, _ := fs(f.path, 16)
		if word := string(b); word == "0\n" || word == "1\n" {
			on := word == f.on
			return &on
		}
	}
	return nil
}
