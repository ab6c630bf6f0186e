package proc

import (
	"bytes"
	"strconv"
)

// parseStatusUID reads the real uid, the first of four in the Uid line of
// /proc/PID/status. The name in that file has its line feeds escaped, unlike in stat
// (proc_task_name in fs/proc/array.c), so a process cannot forge the line.
func parseStatusUID(b []byte) (int, error) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		if v, ok := bytes.CutPrefix(line, []byte("Uid:\t")); ok {
			real, _, _ := bytes.Cut(v, []byte("\t"))
			uid, ok := parseUint(real)
			if !ok || uid > 1<<32-1 {
				return -1, errMalformed
			}
			return int(uid), nil
		}
	}
	return -1, errMalformed
}

// parseStatusIgnores reads from the SigIgn line of /proc/PID/status whether the
// process ignores a signal.
func parseStatusIgnores(b []byte, signal int) (bool, error) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		if v, ok := bytes.CutPrefix(line, []byte("SigIgn:\t")); ok {
			mask, err := strconv.ParseUint(string(v), 16, 64)
			if err != nil || signal < 1 || signal > 64 {
				return false, errMalformed
			}
			return mask>>(signal-1)&1 == 1, nil
		}
	}
	return false, errMalformed
}
