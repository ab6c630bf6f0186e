package proc

import (
	"slices"
	"testing"
)

func TestParseCPUList(t *testing.T) {
	tests := []struct {
		in   string
		want []int
		ok   bool
	}{
		{"0-1\n", []int{0, 1}, true},
		{"0\n", []int{0}, true},
		{"0-2,8,10-11\n", []int{0, 1, 2, 8, 10, 11}, true},
		{"\n", nil, true}, // /sys/devices/system/cpu/offline of a whole machine
		{"0-3,1", nil, false},
		{"0-1", nil, false}, // cut: it may have been 0-15
		{"", nil, false},
		{"3-1\n", nil, false},
		{"0-1,1-2\n", nil, false},
		{"5,4\n", nil, false},
		{"0-\n", nil, false},
		{"-1\n", nil, false},
		{"0,\n", nil, false},
		{"0-4294967295\n", nil, false},
		{"65535\n", []int{65535}, true}, // more than any kernel has
		{"65536\n", nil, false},
		{"0-1\n2\n", nil, false},
	}
	for _, tt := range tests {
		if got, err := parseCPUList([]byte(tt.in)); !slices.Equal(got, tt.want) || (err == nil) != tt.ok {
			t.Errorf("%q: %v, %v, want %v", tt.in, got, err, tt.want)
		}
	}
}

func FuzzParseCPUList(f *testing.F) {
	f.Add([]byte("0-2,8,10-11\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		cpus, err := parseCPUList(b)
		if err != nil && cpus != nil || len(cpus) > maxCPU || !slices.IsSorted(cpus) {
			t.Errorf("%v, %v", cpus, err)
		}
	})
}

func TestParseCount(t *testing.T) {
	for in, want := range map[string]uint64{"0\n": 0, "42\n": 42, "18446744073709551615\n": 1<<64 - 1} {
		if n, err := parseCount([]byte(in)); n != want || err != nil {
			t.Errorf("%q: %d, %v", in, n, err)
		}
	}
	for _, in := range []string{"", "\n", "42", "-1\n", "18446744073709551616\n", "4 2\n", "42\n\n"} {
		if n, err := parseCount([]byte(in)); err == nil {
			t.Errorf("%q: %d", in, n)
		}
	}
}
