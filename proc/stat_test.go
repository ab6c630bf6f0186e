package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseStat(t *testing.T) {
	tests := []struct {
		file                 string
		want                 Process
		corpse, kernelThread bool
	}{
		{"init.stat", Process{PID: 1, Comm: "systemd", State: 'S', Start: 24, UID: -1, TPGID: -1, UTime: 55, STime: 301, CUTime: 6454, CSTime: 2200}, false, false},
		{"kthread.stat", Process{PID: 2, Comm: "kthreadd", State: 'S', Start: 24, UID: -1, TPGID: -1}, false, true},
		{"hostile.stat", Process{PID: 25939, PPID: 25894, Comm: "a) R 1 (\nb c) ", State: 'S', Start: 113202, UID: -1, Session: 9359, PGRP: 25891, TPGID: -1}, false, false},
		{"uidline.stat", Process{PID: 25948, PPID: 25894, Comm: "x\nUid:\t7\t7", State: 'R', Start: 113212, UID: -1, Session: 9359, PGRP: 25891, TPGID: -1}, false, false},
		{"zombie.stat", Process{PID: 25939, PPID: 25894, Comm: "a) R 1 (\nb c) ", State: 'Z', Start: 113202, UID: -1, Session: 9359, PGRP: 25891, TPGID: -1}, true, false},
	}
	for _, tt := range tests {
		s, err := parseStat(fixture(t, tt.file))
		if err != nil || s.Process != tt.want {
			t.Errorf("%s: %+v, %v\nwant %+v", tt.file, s.Process, err, tt.want)
		}
		if s.corpse() != tt.corpse || s.kernelThread() != tt.kernelThread {
			t.Errorf("%s: corpse %v, kernel thread %v", tt.file, s.corpse(), s.kernelThread())
		}
	}

	b := fixture(t, "zombie.stat")
	leaderless := bytes.Replace(b, []byte(" 20 0 1 0 113202 "), []byte(" 20 0 2 0 113202 "), 1)
	if s, err := parseStat(leaderless); err != nil || s.corpse() {
		t.Errorf("zombie leader of another thread: corpse %v, %v", s.corpse(), err)
	}
	tty, err := parseStat([]byte(strings.Replace(string(b), " 9359 0 -1 ", " 9359 34816 25891 ", 1)))
	if err != nil || tty.TTYNR != 34816 || tty.TPGID != 25891 {
		t.Errorf("with a terminal: %+v, %v", tty, err)
	}
}

func TestParseStatMalformed(t *testing.T) {
	good := string(fixture(t, "init.stat"))
	upTo := func(n int) string { return strings.Join(strings.Split(good, " ")[:n], " ") }
	if _, err := parseStat([]byte(upTo(22))); err != nil {
		t.Errorf("all that is needed: %v", err) // the control
	}
	for name, s := range map[string]string{
		"empty":                  "",
		"no parentheses":         "1 systemd S 0",
		"reversed parentheses":   "1 )systemd( S 0",
		"no pid":                 strings.TrimPrefix(good, "1"),
		"pid not a number":       "x" + good,
		"nothing after the name": "1 (systemd)",
		"cut before the start":   upTo(21),
		"long state":             strings.Replace(good, " S ", " SS ", 1),
		"state not a letter":     strings.Replace(good, " S ", " 5 ", 1),
		"negative start":         strings.Replace(good, " 24 ", " -24 ", 1),
		"start beyond 64 bits":   strings.Replace(good, " 24 ", " 18446744073709551616 ", 1),
		"ppid beyond an int":     strings.Replace(good, " S 0 ", " S 4294967297 ", 1),
		"two spaces":             strings.Replace(good, " S ", "  S ", 1),
	} {
		if s, err := parseStat([]byte(s)); err == nil {
			t.Errorf("%s: parsed as %+v", name, s)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	for _, name := range []string{"init.stat", "kthread.stat", "hostile.stat", "uidline.stat", "zombie.stat"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseStat(b)
		if err != nil {
			if s != (stat{}) {
				t.Errorf("%+v beside an error", s)
			}
			return
		}
		if !bytes.Contains(b, []byte("("+s.Comm+") "+string(s.State)+" ")) {
			t.Errorf("name %q, state %q of %q", s.Comm, s.State, b)
		}
		// Whatever a process calls itself, its numbers stay its own.
		open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
		renamed := append(append(bytes.Clone(b[:open]), "(z) Z 1 1 ("...), b[end:]...)
		r, err := parseStat(renamed)
		r.Comm = s.Comm
		if err != nil || r != s {
			t.Errorf("renamed: %+v, %v, want %+v", r, err, s)
		}
	})
}
