package proc

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCarrying(t *testing.T) {
	// A value no other run of this test has.
	value := t.Name() + Self().BootID + string(rune('0'+os.Getpid()%10)) + BootTime().String()
	marked := markerEnv + "=" + value
	match := func(env []byte) bool { return HasEnv(env, markerEnv, value) }

	_, carrier := holder(t, marked)
	_, other := holder(t, markerEnv+"=x"+value)
	_, big := holder(t, "A="+strings.Repeat("x", 100<<10), "B="+strings.Repeat("x", 100<<10), marked)
	dead, deadID := holder(t, marked)
	leaderless := start(t, helperCmd("leaderless", marked))
	leaderless.line(t)

	want := []int{carrier.PID, big.PID, deadID.PID, leaderless.Process.Pid}
	found, _ := Carrying(match)
	if got := pidsOf(found); !sameSet(got, want) {
		t.Errorf("found %v, want %v (and not %d)", got, want, other.PID)
	}
	for _, p := range found {
		if p.UID != os.Getuid() || p.Start == 0 {
			t.Errorf("found %+v", p)
		}
	}

	if buf, ok := environ(leaderless.Process.Pid, nil); !ok || !match(buf) {
		t.Errorf("environ of a leaderless process: %d bytes, %v", len(buf), ok)
	}

	dead.Process.Kill()
	waitDead(t, deadID.PID)
	want = []int{carrier.PID, big.PID, leaderless.Process.Pid}
	if found, _ = Carrying(match); !sameSet(pidsOf(found), want) {
		t.Errorf("found %v, want %v (and not the zombie %d)", pidsOf(found), want, deadID.PID)
	}
	if buf, ok := environ(deadID.PID, nil); len(buf) != 0 || !ok {
		t.Errorf("environ of a zombie: %q, %v, want nothing and readable", buf, ok)
	}
	if found, _ := Carrying(func([]byte) bool { return true }); slices.Contains(pidsOf(found), os.Getpid()) || slices.Contains(pidsOf(found), os.Getppid()) {
		t.Errorf("ourselves or our parent among %v", pidsOf(found))
	}
}

// From another user's place: that there are processes it cannot read is said.
func TestCarryingUnreadable(t *testing.T) {
	needRoot(t)
	value := t.Name() + BootTime().String()
	_, hidden := holder(t, markerEnv+"="+value)
	ask := func(env ...string) carried {
		t.Helper()
		c := helperCmd("carrying", append(env, idEnv+"="+value)...)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		var r carried
		if err := json.Unmarshal([]byte(start(t, c).line(t)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := ask(); !slices.Equal(pidsOf(r.Found), []int{hidden.PID}) {
		t.Errorf("root: %+v, want %d found", r, hidden.PID)
	}
	for name, env := range map[string][]string{
		"plain":     {uidEnv + "=65534"},
		"hidepid=1": {uidEnv + "=65534", mountEnv + "=hidepid=1"},
		"hidepid=2": {uidEnv + "=65534", mountEnv + "=hidepid=2"},
	} {
		if r := ask(env...); r.Found != nil || r.Unreadable == 0 {
			t.Errorf("%s: %+v, want nothing found, some unreadable", name, r)
		}
	}
}

// Kernel threads have no environment, whoever asks.
func TestEnvironOfKernelThread(t *testing.T) {
	s, err := readStat(2)
	if err != nil || !s.kernelThread() {
		t.Skip("pid 2 is no kernel thread here")
	}
	if buf, ok := environ(2, nil); len(buf) != 0 || !ok {
		t.Errorf("%q, %v, want nothing and readable", buf, ok)
	}
}

// A process that really has an empty environment costs no retries and counts as read.
func TestEnvironEmpty(t *testing.T) {
	c := helperCmd("hold")
	c.Path, c.Args, c.Env = "/bin/cat", []string{"cat"}, []string{}
	h := start(t, c)
	h.in.Write([]byte("x\n")) // it echoes, so it is past its exec
	h.line(t)
	if buf, ok := environ(h.Process.Pid, nil); len(buf) != 0 || !ok {
		t.Errorf("%q, %v, want nothing and readable", buf, ok)
	}
}

// Every way in which an environment is not there at the first look.
func TestEnvironOf(t *testing.T) {
	const kernel, zombie = 0x00200000, 'Z'
	runs := stat{Process: Process{PID: 7, State: 'S'}, threads: 1, envStart: 100, envEnd: 200}
	with := func(change func(*stat)) stat {
		s := runs
		change(&s)
		return s
	}
	for _, tt := range []struct {
		name  string
		reads []string // one a look, the last for ever
		err   error
		is    stat
		isErr error
		want  string
		ok    bool
	}{
		{"there", []string{"A=b"}, nil, runs, nil, "A=b", true},
		{"within execve", []string{"", "", "A=b"}, nil, runs, nil, "A=b", true},
		{"gone at first, its next program is there", []string{"", "A=b"}, unix.ESRCH, runs, nil, "A=b", true},
		{"never there", []string{""}, nil, runs, nil, "", false},
		{"never there, and nobody says why", []string{""}, nil, stat{}, unix.EACCES, "", false},
		{"not for us", []string{"", "A=b"}, unix.EACCES, runs, nil, "", false},
		{"gone", []string{""}, nil, stat{}, ErrGone, "", true},
		{"a kernel thread", []string{""}, unix.EACCES, with(func(s *stat) { s.flags = kernel }), nil, "", true},
		{"a zombie", []string{""}, unix.EACCES, with(func(s *stat) { s.State = zombie }), nil, "", true},
		{"a leader that left its threads", []string{""}, unix.EACCES, with(func(s *stat) { s.State, s.threads = zombie, 2 }), nil, "of a thread", true},
		{"it has none", []string{"", "A=b"}, nil, with(func(s *stat) { s.envStart = 200 }), nil, "", true},
		{"where it would be is not for us", []string{"", "A=b"}, nil, with(func(s *stat) { s.envStart, s.envEnd = 0, 0 }), nil, "A=b", true},
	} {
		looks := 0
		buf, ok := environOf(nil,
			func(buf []byte) ([]byte, error) {
				s := tt.reads[min(looks, len(tt.reads)-1)]
				if looks++; s != "" {
					return append(buf[:0], s...), nil
				}
				return buf[:0], tt.err
			},
			func() (stat, error) { return tt.is, tt.isErr },
			func(buf []byte) ([]byte, bool) { return append(buf, "of a thread"...), true })
		if string(buf) != tt.want || ok != tt.ok || looks > 21 {
			t.Errorf("%s: %q, %v after %d looks, want %q, %v", tt.name, buf, ok, looks, tt.want, tt.ok)
		}
	}

	// Of a leader that has left, through any of its threads.
	const refused = "\x00" // a read of it fails
	for name, tt := range map[string]struct {
		threads map[string]string
		want    string
		ok      bool
	}{
		"one has it":                  {map[string]string{"5": "", "6": "A=b", "7": ""}, "A=b", true},
		"one has it, one is not ours": {map[string]string{"5": refused, "6": "A=b"}, "A=b", true},
		"all have gone":               {nil, "", true},
		"none has it":                 {map[string]string{"5": "", "6": ""}, "", true},
		"one may have it":             {map[string]string{"5": refused, "6": ""}, "", false},
		"the last may have it":        {map[string]string{"5": "", "6": refused}, "", false},
		"one is gone":                 {map[string]string{"5": "gone", "6": ""}, "", true},
	} {
		dir := t.TempDir()
		for tid, content := range tt.threads {
			path := dir + "/" + tid + "/environ"
			if content == refused {
				path += "/"
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if content == refused || content == "gone" {
				continue
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if buf, ok := threadEnviron(dir, []byte("an older one's")); string(buf) != tt.want || ok != tt.ok {
			t.Errorf("%s: %q, %v, want %q, %v", name, buf, ok, tt.want, tt.ok)
		}
	}
	if buf, ok := threadEnviron(t.TempDir()+"/none", nil); len(buf) != 0 || !ok {
		t.Errorf("of none: %q, %v", buf, ok)
	}

	// More than there can be is nothing, and not the beginning of it.
	path := t.TempDir() + "/environ"
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxEnviron+1); err != nil {
		t.Fatal(err)
	}
	if buf, err := readEnviron(path, nil); len(buf) != 0 || err != unix.EFBIG {
		t.Errorf("%d bytes of one without end, %v", len(buf), err)
	}
}

func sameSet(a, b []int) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func BenchmarkCarrying(b *testing.B) {
	for b.Loop() {
		Carrying(func([]byte) bool { return false })
	}
}
