package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tracked returns the processes that carry id in their environment, by pid with
// their command line. It is one snapshot, as in Runner.Worker/JobExtension.cs.
func tracked(id string) map[int]string {
	found := map[int]string{}
	want := []byte("RUNNER_TRACKING_ID=" + id)
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // gone, or another user's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		for variable := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.Equal(variable, want) {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				found[pid] = strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
			}
		}
	}
	return found
}
