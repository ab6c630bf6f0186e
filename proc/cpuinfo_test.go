package proc

import "testing"

func TestParseCPUModel(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"x86", string(fixture(t, "cpuinfo")), "AMD EPYC"},
		{"spaces", "model name\t:  Intel(R)  Xeon(R) CPU @ 2.20GHz \n", "Intel(R) Xeon(R) CPU @ 2.20GHz"},
		{"arm64", "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n", "implementer 0x41 part 0xd0c"},
		{"power", "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 2166.000000MHz\n", "POWER9, altivec supported"},
		{"only the second says it", "processor\t: 0\n\nmodel name\t: X\n", ""},
		{"empty name", "model name\t: \n\n", ""},
		{"empty", "", ""},
	}
	for _, tt := range tests {
		if got := parseCPUModel([]byte(tt.in)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzParseCPUModel(f *testing.F) {
	f.Add(fixture(f, "cpuinfo"))
	f.Add([]byte("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := parseCPUModel(b); len(got) > 3*len(b)+20 {
			t.Errorf("%q", got)
		}
	})
}
