package proc

import "testing"

func TestParseStatusUID(t *testing.T) {
	tests := []struct {
		name, in string
		want     int
		ok       bool
	}{
		{"a name that tries to be the line", string(fixture(t, "uidline.status")), 0, true},
		{"setuid: real, effective, saved, fs", "Name:\tsudo\nUid:\t1000\t0\t0\t0\n", 1000, true},
		{"unmapped", "Uid:\t65534\t65534\t65534\t65534\n", 65534, true},
		{"the largest", "Uid:\t4294967294\t0\t0\t0\n", 4294967294, true},
		{"beyond", "Uid:\t4294967296\t0\t0\t0\n", -1, false},
		{"negative", "Uid:\t-1\t0\t0\t0\n", -1, false},
		{"absent", "Name:\tx\nGid:\t1\t1\t1\t1\n", -1, false},
		{"cut", "Name:\tx\nUid:\t", -1, false},
		{"empty", "", -1, false},
	}
	for _, tt := range tests {
		if uid, err := parseStatusUID([]byte(tt.in)); uid != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: %d, %v, want %d", tt.name, uid, err, tt.want)
		}
	}
}

func FuzzParseStatusUID(f *testing.F) {
	f.Add(fixture(f, "uidline.status"))
	f.Add([]byte("Uid:\t1000\t0\t0\t0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		uid, err := parseStatusUID(b)
		if (uid < 0) != (err != nil) || uid > 1<<32-1 {
			t.Errorf("%d, %v", uid, err)
		}
	})
}

func TestParseStatusIgnores(t *testing.T) {
	status := fixture(t, "uidline.status") // Python: ignores SIGPIPE and SIGXFSZ
	for signal, want := range map[int]bool{13: true, 25: true, 12: false, 14: false, 17: false, 64: false, 1: false} {
		if got, err := parseStatusIgnores(status, signal); got != want || err != nil {
			t.Errorf("signal %d: %v, %v, want %v", signal, got, err, want)
		}
	}
	if got, err := parseStatusIgnores([]byte("SigIgn:\t8000000000010001\n"), 64); !got || err != nil {
		t.Errorf("signal 64: %v, %v", got, err)
	}
	for _, in := range []string{"", "SigIgn:\t\n", "SigIgn:\tx\n", "SigCgt:\t0000000000010000\n", "SigIgn:\t00000000000000000001\n\n"} {
		if got, err := parseStatusIgnores([]byte(in), 17); got || err == nil && in != "SigIgn:\t00000000000000000001\n\n" {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}

func FuzzParseStatusIgnores(f *testing.F) {
	f.Add(fixture(f, "uidline.status"), 17)
	f.Fuzz(func(t *testing.T, b []byte, signal int) {
		if got, err := parseStatusIgnores(b, signal); got && err != nil {
			t.Errorf("%v beside %v", got, err)
		}
	})
}
