package proc

import (
	"bytes"
	"testing"
)

func TestHasEnv(t *testing.T) {
	const env = "PATH=/bin\x00HOSTLOCK_HOLD_ID=abc\x00EMPTY=\x00XID=abc\x00TWICE=1\x00TWICE=2\x00LAST=end"
	tests := []struct {
		name, value string
		want        bool
	}{
		{"HOSTLOCK_HOLD_ID", "abc", true},
		{"PATH", "/bin", true},
		{"LAST", "end", true},
		{"TWICE", "1", true},
		{"TWICE", "2", true},
		{"HOSTLOCK_HOLD_ID", "ab", false},
		{"HOSTLOCK_HOLD_ID", "abcd", false},
		{"ID", "abc", false},
		{"HOLD_ID", "abc", false},
		{"EMPTY", "", false}, // act sets RUNNER_TRACKING_ID so
		{"ABSENT", "", false},
		{"", "abc", false},
		{"", "", false},
		{"PATH", "/bin\x00HOSTLOCK_HOLD_ID=abc", false},
	}
	for _, tt := range tests {
		if got := HasEnv([]byte(env), tt.name, tt.value); got != tt.want {
			t.Errorf("HasEnv(%q, %q) = %v", tt.name, tt.value, got)
		}
	}
	if HasEnv(nil, "A", "b") {
		t.Error("an empty environment has it")
	}
}

func FuzzHasEnv(f *testing.F) {
	f.Add([]byte("A=b\x00C=d\x00"), "A", "b")
	f.Add([]byte("XA=b\x00A=bb"), "A", "b")
	f.Add([]byte("A=\x00"), "A", "")
	f.Fuzz(func(t *testing.T, env []byte, name, value string) {
		want := false
		for _, e := range bytes.Split(env, []byte{0}) {
			want = want || name != "" && value != "" && string(e) == name+"="+value
		}
		if got := HasEnv(env, name, value); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
