package proc

import "testing"

func TestParseLoadavg(t *testing.T) {
	tests := []struct {
		in   string
		want int
		ok   bool
	}{
		{string(fixture(t, "loadavg")), 4, true},
		{"0.00 0.01 0.05 1/12345 678\n", 1, true},
		{"115.20 98.11 70.00 2000/4000 678\n", 2000, true},
		{"", 0, false},
		{"0.00 0.01 0.05\n", 0, false},
		{"0.00 0.01 0.05 1 678\n", 0, false},
		{"0.00 0.01 0.05 -1/2 678\n", 0, false},
		{"0.00 0.01 0.05 /2 678\n", 0, false},
	}
	for _, tt := range tests {
		if n, err := parseLoadavg([]byte(tt.in)); n != tt.want || (err == nil) != tt.ok {
			t.Errorf("%q: %d, %v, want %d", tt.in, n, err, tt.want)
		}
	}
}

func FuzzParseLoadavg(f *testing.F) {
	f.Add(fixture(f, "loadavg"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := parseLoadavg(b); n < 0 || err != nil && n != 0 {
			t.Errorf("%d, %v", n, err)
		}
	})
}
