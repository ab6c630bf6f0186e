package proc

import (
	"bytes"
	"strings"
)

// parseCPUModel reads what /proc/cpuinfo calls its first CPU. x86 and s390 name a
// model, POWER and MIPS a "cpu"; ARM only numbers an implementer and its part
// (show_cpuinfo in arch/*/kernel). Empty: it does not say.
func parseCPUModel(b []byte) string {
	var implementer, part string
	for line := range bytes.Lines(b) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			break // the end of the first CPU
		}
		k, v, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		value := strings.Join(strings.Fields(string(v)), " ")
		switch string(bytes.TrimSpace(k)) {
		case "model name", "cpu model", "cpu":
			if value != "" {
				return value
			}
		case "CPU implementer":
			implementer = value
		case "CPU part":
			part = value
		}
	}
	if implementer == "" || part == "" {
		return ""
	}
	return "implementer " + implementer + " part " + part
}
