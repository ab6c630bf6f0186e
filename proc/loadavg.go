package proc

import "bytes"

// parseLoadavg reads the numerator of the fourth field of /proc/loadavg, the
// number of runnable threads (fs/proc/loadavg.c: nr_running()).
func parseLoadavg(b []byte) (int, error) {
	f := bytes.Fields(b)
	if len(f) < 4 {
		return 0, errMalformed
	}
	running, _, ok := bytes.Cut(f[3], []byte("/"))
	if !ok {
		return 0, errMalformed
	}
	n, ok := parseInt(running)
	if !ok || n < 0 {
		return 0, errMalformed
	}
	return n, nil
}
