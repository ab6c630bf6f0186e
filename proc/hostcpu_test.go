package proc

import "testing"

func TestParseCPUTimes(t *testing.T) {
	tests := []struct {
		in   string
		want CPUTimes
		ok   bool
	}{
		{string(fixture(t, "proc_stat")), CPUTimes{User: 27950, System: 11760, Idle: 184801, IOWait: 685, SoftIRQ: 264, Steal: 21}, true},
		// Each column has its own digit.
		{"cpu  1 20 300 4000 50000 600000 7000000 80000000 900000000 1\ncpu0 9 9 9 9 9 9 9 9 9 9\n", CPUTimes{1, 20, 300, 4000, 50000, 600000, 7000000, 80000000, 900000000, 1}, true},
		{"cpu  1 20 300 4000 50000 600000 7000000 80000000", CPUTimes{1, 20, 300, 4000, 50000, 600000, 7000000, 80000000, 0, 0}, true},
		{"cpu  1 2 3 4 5 6 7 8 9 10 11 12\n", CPUTimes{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, true}, // a later kernel's
		{"cpu  18446744073709551615 1 0 0 0 0 0 0\n", CPUTimes{}, false},                     // Busy would wrap
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

func TestCPUTimesBusy(t *testing.T) {
	c := CPUTimes{1, 20, 300, 4000, 50000, 600000, 7000000, 80000000, 900000000, 1}
	if got := c.Busy(); got != 7600321 { // guests are in user and nice
		t.Errorf("%d", got)
	}
}

func TestCPUTimesSince(t *testing.T) {
	before := CPUTimes{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}
	after := CPUTimes{11, 22, 33, 44, 55, 66, 77, 88, 99, 110}
	if busy, steal, ok := after.Since(before); !ok || busy != 1+2+3+6+7 || steal != 8 {
		t.Errorf("%d, %d, %v", busy, steal, ok)
	}
	if idle, ok := after.IdleSince(before); !ok || idle != 4+5 {
		t.Errorf("idle %d, %v", idle, ok)
	}
	if busy, steal, ok := before.Since(before); !ok || busy != 0 || steal != 0 {
		t.Errorf("no time: %d, %d, %v", busy, steal, ok)
	}
	for i := range after.all() {
		back := after
		*back.all()[i] = *before.all()[i] - 1
		busy, _, ok := back.Since(before)
		_, idleOK := back.IdleSince(before)
		stepsBack := i == 3 || i == 4 // when a CPU goes offline
		if ok != stepsBack || idleOK == stepsBack || ok && busy != 19 {
			t.Errorf("counter %d ran backwards: %d, %v, idle %v", i, busy, ok, idleOK)
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
