package proc

import "bytes"

// parsePressureSome reads the total of the `some` line of a pressure file: the
// µs since boot in which at least one runnable task had no CPU
// (Documentation/accounting/psi.rst).
func parsePressureSome(b []byte) (uint64, error) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 0 || string(f[0]) != "some" {
			continue
		}
		for _, w := range f[1:] {
			if digits, ok := bytes.CutPrefix(w, []byte("total=")); ok {
				if us, ok := parseUint(digits); ok {
					return us, nil
				}
			}
		}
		return 0, errMalformed
	}
	return 0, errMalformed
}
