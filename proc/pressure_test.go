package proc

import "testing"

func TestParsePressureSome(t *testing.T) {
	tests := []struct {
		in   string
		want uint64
		ok   bool
	}{
		{string(fixture(t, "pressure_cpu")), 251157356, true},
		{"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0, true}, // Linux 4.20 has no full line
		{"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\nsome avg10=1.00 avg60=0.00 avg300=0.00 total=8\n", 8, true},
		{"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", 0, false},
		{"some avg10=0.00 avg60=0.00 avg300=0.00\n", 0, false},
		{"some total=-1\n", 0, false},
		{"some total=\n", 0, false},
		{"", 0, false},
	}
	for _, tt := range tests {
		if us, err := parsePressureSome([]byte(tt.in)); us != tt.want || (err == nil) != tt.ok {
			t.Errorf("%.40q: %d, %v, want %d", tt.in, us, err, tt.want)
		}
	}
}

func FuzzParsePressureSome(f *testing.F) {
	f.Add(fixture(f, "pressure_cpu"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if us, err := parsePressureSome(b); err != nil && us != 0 {
			t.Errorf("%d beside %v", us, err)
		}
	})
}
