package proc

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
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
