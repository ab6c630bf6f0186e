package proc

import "testing"

func TestParseCPUTimes(t *testing.T) {
	tests := []struct {
		in   string
		want CPUTimes
		ok   bool
	}{
		{string(fixture(t, "proc_stat")), CPUTimes{Busy: 27950 + 11760 + 264, Idle: 184801, IOWait: 685, Steal: 21}, true},
		// Each column has its own digit; guest and guest_nice are in user and nice.
		{"cpu  1 20 300 4000 50000 600000 7000000 80000000 900000000 1\ncpu0 9 9 9 9 9 9 9 9 9 9\n", CPUTimes{7600321, 4000, 50000, 80000000}, true},
		{"cpu  1 20 300 4000 50000 600000 7000000 80000000", CPUTimes{7600321, 4000, 50000, 80000000}, true},
		{"", CPUTimes{}, false},
		{"cpu  1 2 3 4 5 6 7\n", CPUTimes{}, false},
		{"cpu0 1 2 3 4 5 6 7 8 9 10\n", CPUTimes{}, false},
		{"cpu  1 2 3 4 5 6 7 -8\n", CPUTimes{}, false},
	}
	for _, tt := range tests {
		if c, err := parseCPUTimes([]byte(tt.in)); c != tt.want || (err == nil) != tt.ok {
			t.Errorf("%.40q: %+v, %v, want %+v", tt.in, c, err, tt.want)
		}
	}
}

func FuzzParseCPUTimes(f *testing.F) {
	f.Add(fixture(f, "proc_stat"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parseCPUTimes(b); err != nil && c != (CPUTimes{}) {
			t.Errorf("%+v beside %v", c, err)
		}
	})
}
