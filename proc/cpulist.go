package proc

import "bytes"

// maxCPU is beyond what any kernel is built for (CONFIG_NR_CPUS is at most 8192).
const maxCPU = 1 << 16

// parseCPUList reads a list of CPUs as the kernel writes it, "0-3,8,10-11"
// (bitmap_print_to_pagebuf in lib/bitmap-str.c), in ascending order. A set that is
// empty is an empty line, and no error. A line without its end was cut, and its
// last number with it.
func parseCPUList(b []byte) ([]int, error) {
	b, whole := bytes.CutSuffix(b, []byte("\n"))
	if !whole {
		return nil, errMalformed
	}
	var cpus []int
	for more := len(b) > 0; more; {
		var part []byte
		part, b, more = bytes.Cut(b, []byte(","))
		from, to, isRange := bytes.Cut(part, []byte("-"))
		if !isRange {
			to = from
		}
		first, ok := parseUint(from)
		last, ok2 := parseUint(to)
		if !ok || !ok2 || first > last || last >= maxCPU || len(cpus) > 0 && int(first) <= cpus[len(cpus)-1] {
			return nil, errMalformed
		}
		for n := first; n <= last; n++ {
			cpus = append(cpus, int(n))
		}
	}
	return cpus, nil
}

// parseCount reads a file that holds one number.
func parseCount(b []byte) (uint64, error) {
	b, whole := bytes.CutSuffix(b, []byte("\n"))
	n, ok := parseUint(b)
	if !whole || !ok {
		return 0, errMalformed
	}
	return n, nil
}
