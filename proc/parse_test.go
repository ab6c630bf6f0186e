package proc

import (
	"strings"
	"testing"
)

func TestParseCgroupLines(t *testing.T) {
	for in, want := range map[string]string{
		"0:/a\n":                  "", // one colon
		"0\n":                     "",
		"0::\n":                   "", // no path
		"1::/a\n":                 "", // version 2 is number 0
		"0:x:/a\n":                "", // which has no names
		"0::/a\n1:cpu:/b":         "", // cut
		"2:cpu:/b\n0::/a\n":       "/b",
		"0::/a\n2:cpu,cpuacct:/b": "",
		"0::/a\n":                 "/a",
	} {
		if got, err := parseCgroup([]byte(in)); got.path != want || (err == nil) != (want != "") {
			t.Errorf("%q: %+v, %v, want %q", in, got, err, want)
		}
	}
}

func TestCgroupDirSkipsOthers(t *testing.T) {
	const good = "1 2 0:26 / /good rw - cgroup cgroup rw,cpu\n"
	for _, line := range []string{
		"1 2 0:26 / /bad rw cgroup cgroup rw,cpu\n", // no separator
		"1 2 0:26 / /bad - cgroup cgroup rw,cpu\n",  // too few fields
		"1 2 0:26 / /bad rw - cgroup cgroup\n",      // no options
		"1 2 0:26 / /bad rw - tmpfs x rw,cpu\n",     // not a cgroup's
		"1 2 0:26 / /bad rw - cgroup x rw,cpuset\n", // another controller's
		"1 2 0:26 / /bad rw - cgroup2 x rw,cpu\n",   // another version
		" - \n",
	} {
		if top, dir, ok := cgroupDir([]byte(line+good), cgroup{false, "/a"}); !ok || top != "/good" || dir != "/good/a" {
			t.Errorf("%q: %q, %q, %v", line, top, dir, ok)
		}
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", `a\040b`: "a b", `\040`: " ", `\040\011`: " \t", `\134040`: `\040`, `x\377`: "x\xff",
		`\400`: `\400`, `\048`: `\048`, `\0/8`: `\0/8`, `\04`: `\04`, `\`: `\`, `a\`: `a\`, `\\040`: `\ `, `\08\040`: `\08 `, `\/40`: `\/40`, `\840`: `\840`, `abcde\`: `abcde\`, `\08abc\0`: `\08abc\0`,
	} {
		if got := unescape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestHasEnvNearMisses(t *testing.T) {
	for env, want := range map[string]bool{
		"PATH=/bin": true, "PATHX/bin": false, "XATH=/bin": false, "PATH=/bix": false, "PATH=/bi": false, "PATH=/binx": false, "PATH=": false, "PATH": false, "": false,
		"\x00PATH=/bin": true, "\x00\x00": false, "PATH=/bin\x00": true,
	} {
		if got := HasEnv([]byte(env), "PATH", "/bin"); got != want {
			t.Errorf("%q: %v", env, got)
		}
	}
	if HasEnv([]byte("=abc"), "", "abc") || HasEnv([]byte("A="), "A", "") {
		t.Error("an empty name or value is everybody's")
	}
}

func TestStatLine(t *testing.T) {
	const rest = " 0 1 2 3 4 5 6 7 8 9 10 20 300 4000 15 16 7 0 99"
	for state, ok := range map[string]bool{"S": true, "R": true, "a": true, "z": true, "A": true, "Z": true, "@": false, "[": false, "`": false, "{": false, "1": false, "SS": false, "": false} {
		if s, err := parseStat([]byte("42 (x) " + state + rest)); (err == nil) != ok || ok && (string(s.State) != state || s.PID != 42 || s.Start != 99 || s.threads != 7) {
			t.Errorf("state %q: %+v, %v", state, s, err)
		}
	}
	for _, line := range []string{"(x) S" + rest, "42 )x( S" + rest, "42 (x)S" + rest, "42 (x)-S" + rest, "42 (x", "42 x) S" + rest, "42 (x) ", "42 (x)", "4 2 (x) S" + rest, "-  (x) S" + rest, "42 (x) S 0 1 2"} {
		if s, err := parseStat([]byte(line)); err == nil {
			t.Errorf("%q: %+v", line, s)
		}
	}
	if s, err := parseStat([]byte("7(x) S" + rest)); err != nil || s.PID != 7 || s.Comm != "x" {
		t.Errorf("without a blank: %+v, %v", s, err)
	}
	s, err := parseStat([]byte("42 () S" + rest))
	if err != nil || s.Comm != "" || s.UTime != 10 || s.STime != 20 || s.CUTime != 300 || s.CSTime != 4000 {
		t.Errorf("%+v, %v", s, err)
	}
	for state, corpse := range map[byte]bool{'Z': true, 'X': true, 'S': false} {
		s.State, s.threads = state, 1
		if s.corpse() != corpse {
			t.Errorf("%c with one thread: corpse %v", state, s.corpse())
		}
		if s.threads = 2; s.corpse() {
			t.Errorf("%c with two threads is a corpse", state)
		}
		if s.threads = 0; s.corpse() != corpse {
			t.Errorf("%c with no thread: corpse %v", state, s.corpse())
		}
	}
}

func TestParseNumbers(t *testing.T) {
	for in, want := range map[string]int{"0": 0, "2147483647": 1<<31 - 1, "-2147483647": -(1<<31 - 1), "007": 7} {
		if got, ok := parseInt([]byte(in)); got != want || !ok {
			t.Errorf("%q: %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "-", "--1", "+1", "2147483648", "1x", " 1", "/", ":"} {
		if got, ok := parseInt([]byte(in)); ok || got != 0 {
			t.Errorf("%q: %d, %v", in, got, ok)
		}
	}
	if got, ok := parseUint([]byte("18446744073709551615")); got != 1<<64-1 || !ok {
		t.Errorf("%d, %v", got, ok)
	}
	if got, ok := parseUint([]byte("18446744073709551616")); ok || got != 0 {
		t.Errorf("%d, %v", got, ok)
	}
}

func TestParseEdges(t *testing.T) {
	if n, err := parseLoadavg([]byte("1 1 1 0/9")); n != 0 || err != nil {
		t.Errorf("four fields, none runnable: %d, %v", n, err)
	}
	if us, err := parsePressureSome([]byte("\nsome avg10=0.00 total=5\n")); us != 5 || err != nil {
		t.Errorf("a blank line first: %d, %v", us, err)
	}
	if us, err := parsePressureSome([]byte("some total=7\n")); us != 7 || err != nil {
		t.Errorf("only the total: %d, %v", us, err)
	}
	if us, err := parsePressureSome([]byte("full avg10=0.00 total=5\n")); err == nil {
		t.Errorf("full is not some: %d", us)
	}
	if id, err := parseStatusUID([]byte("Name:\tx\nUid:\t4294967295\t0\t0\t0\n")); err == nil && id != 1<<32-1 {
		t.Errorf("the largest uid: %d", id)
	}
	if cpus, err := parseCPUList([]byte("0-" + strings.Repeat("9", 30) + "\n")); err == nil {
		t.Errorf("%d CPUs", len(cpus))
	}
}

func TestIdentityWithoutABoot(t *testing.T) {
	here := Vantage{PIDNS: 1, ProcOurs: true}
	id := Identity{PID: 5, Start: 9}
	for _, tt := range []struct {
		name string
		id   Identity
		here Vantage
		e    evidence
		want Liveness
	}{
		{"no boot id on either side", id, here, evidence{pidfd: had, exited: no, start: 9}, Running},
		{"the largest pid", Identity{PID: 1<<31 - 1, Start: 9}, here, evidence{pidfd: noProcess}, Gone},
		{"beyond it", Identity{PID: 1 << 31, Start: 9}, here, evidence{pidfd: noProcess}, Unknown},
		{"no pid", Identity{}, here, evidence{pidfd: noProcess}, Unknown},
		{"without a pidfd", Identity{PID: 5, Start: 9, BootID: "b"}, Vantage{PIDNS: 1, ProcOurs: true, BootID: "b"}, evidence{pidfd: refused, exists: yes, start: 9}, Running},
		{"a pidfd that was not asked", Identity{PID: 5, Start: 9, BootID: "b"}, Vantage{PIDNS: 1, ProcOurs: true, BootID: "b"}, evidence{pidfd: had, start: 9}, Running},
	} {
		if got := judge(tt.id, tt.here, tt.e); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestCountersThatStandStill(t *testing.T) {
	c := CPUTimes{User: 5, Idle: 7, IOWait: 3}
	if idle, ok := c.IdleSince(c); idle != 0 || !ok {
		t.Errorf("idle for %d, %v", idle, ok)
	}
	if busy, steal, ok := c.Since(c); busy != 0 || steal != 0 || !ok {
		t.Errorf("busy for %d, steal %d, %v", busy, steal, ok)
	}
}

func TestHalfACPUModel(t *testing.T) {
	for in, want := range map[string]string{
		"CPU implementer\t: 0x41\n": "", "CPU part\t: 0xd0c\n": "", "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n": "implementer 0x41 part 0xd0c", "": "",
	} {
		if got := parseCPUModel([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestStatusIgnoresRealSignals(t *testing.T) {
	b := []byte("Name:\tx\nSigIgn:\tffffffffffffffff\n")
	for signal, ok := range map[int]bool{-1: false, 0: false, 1: true, 64: true, 65: false} {
		if got, err := parseStatusIgnores(b, signal); got != ok || (err == nil) != ok {
			t.Errorf("signal %d: %v, %v", signal, got, err)
		}
	}
	if got, err := parseStatusIgnores([]byte("SigIgn:\tx\n"), 1); got || err == nil {
		t.Errorf("no mask: %v, %v", got, err)
	}
	for uid, ok := range map[string]bool{"4294967295": true, "4294967296": false, "-1": false} {
		if got, err := parseStatusUID([]byte("Uid:\t" + uid + "\t0\t0\t0\n")); (err == nil) != ok {
			t.Errorf("uid %s: %d, %v", uid, got, err)
		}
	}
}
