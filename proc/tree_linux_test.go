package proc

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func pidsOf(ps []Process) (pids []int) {
	for _, p := range ps {
		pids = append(pids, p.PID)
	}
	return pids
}

func TestStat(t *testing.T) {
	_, id := holder(t)
	p, err := Stat(id.PID)
	if err != nil {
		t.Fatal(err)
	}
	if p.PID != id.PID || p.PPID != os.Getpid() || p.UID != os.Getuid() || p.Start != id.Start || p.Comm == "" {
		t.Errorf("Stat = %+v of %+v", p, id)
	}
	if sid, _ := unix.Getsid(id.PID); p.Session != sid {
		t.Errorf("session %d, want %d", p.Session, sid)
	}
	if _, err := Stat(1 << 22); !errors.Is(err, ErrGone) {
		t.Errorf("Stat of no process: %v, want ErrGone", err)
	}
	for _, pid := range []int{0, -1} {
		if _, err := Stat(pid); err == nil || errors.Is(err, ErrGone) {
			t.Errorf("Stat(%d): %v", pid, err)
		}
	}
}

func TestStatRealUID(t *testing.T) {
	needRoot(t)
	// By setuid it is not dumpable, so that /proc/PID belongs to root.
	_, id := holder(t, uidEnv+"=65534")
	if p, err := Stat(id.PID); err != nil || p.UID != 65534 {
		t.Errorf("Stat = %+v, %v, want uid 65534", p, err)
	}
}

func TestAncestors(t *testing.T) {
	h := start(t, helperCmd("family"))
	grandchild, err := strconv.Atoi(h.line(t))
	if err != nil {
		t.Fatal(err)
	}
	as := pidsOf(Ancestors(grandchild))
	if len(as) < 3 || as[0] != h.Process.Pid || as[1] != os.Getpid() || as[2] != os.Getppid() {
		t.Errorf("ancestors of %d: %v, want %d %d %d …", grandchild, as, h.Process.Pid, os.Getpid(), os.Getppid())
	}
	if slices.Contains(as, grandchild) || slices.Contains(as, 0) {
		t.Errorf("ancestors of %d: %v", grandchild, as)
	}
	if as := Ancestors(1); as != nil {
		t.Errorf("ancestors of 1: %v", as)
	}
	if as := Ancestors(1 << 22); as != nil {
		t.Errorf("ancestors of no process: %v", as)
	}

	_, sibling := holder(t)
	ds := pidsOf(Descendants(h.Process.Pid))
	if !slices.Equal(ds, []int{grandchild}) {
		t.Errorf("descendants of %d: %v, want %d", h.Process.Pid, ds, grandchild)
	}
	ds = pidsOf(Descendants(os.Getpid()))
	for _, pid := range []int{h.Process.Pid, grandchild, sibling.PID} {
		if !slices.Contains(ds, pid) {
			t.Errorf("descendants of the test: %v, without %d", ds, pid)
		}
	}
	if slices.Contains(ds, os.Getpid()) || slices.Contains(ds, os.Getppid()) {
		t.Errorf("descendants of the test: %v, ourselves among them", ds)
	}
	if ds := Descendants(sibling.PID); ds != nil {
		t.Errorf("descendants of a childless process: %v", ds)
	}
}

// What /proc shows while processes die and their pids are given away.
func TestAncestorsWhileTheyDie(t *testing.T) {
	type ps = map[int]Process
	tests := []struct {
		name   string
		ps     ps
		change func(ps) // after the first look at pid 30's parent
		want   []int
	}{
		{"plain", ps{30: {PPID: 20, Start: 9}, 20: {PPID: 10, Start: 8}, 10: {PPID: 0, Start: 8}}, nil, []int{20, 10}},
		{"loop", ps{30: {PPID: 20}, 20: {PPID: 30}}, nil, []int{20}},
		{"loop above", ps{30: {PPID: 20}, 20: {PPID: 10}, 10: {PPID: 20}}, nil, []int{20, 10}},
		{"own parent", ps{30: {PPID: 30}}, nil, nil},
		{"hidden", ps{30: {PPID: 20}, 20: {PPID: 10}}, nil, []int{20}},
		{"parent recycled, child adopted", ps{30: {PPID: 20, Start: 5}, 20: {PPID: 1, Start: 7}, 1: {Start: 1}},
			func(p ps) { p[30] = Process{PPID: 1, Start: 5} }, []int{1}},
		{"parent gone, child adopted", ps{30: {PPID: 20, Start: 5}, 1: {Start: 1}},
			func(p ps) { p[30] = Process{PPID: 1, Start: 5} }, []int{1}},
		{"parent recycled, child too", ps{30: {PPID: 20, Start: 5}, 20: {PPID: 1, Start: 7}, 1: {Start: 1}},
			func(p ps) { p[30] = Process{PPID: 1, Start: 8} }, nil},
		{"younger parent", ps{30: {PPID: 20, Start: 5}, 20: {PPID: 1, Start: 7}, 1: {Start: 1}}, nil, nil},
		{"gone", ps{20: {PPID: 1}}, nil, nil},
		{"parent recycled, child gone", ps{30: {PPID: 20, Start: 5}, 20: {PPID: 1, Start: 7}, 1: {Start: 1}},
			func(p ps) { delete(p, 30) }, nil},
	}
	for _, tt := range tests {
		looks := 0
		got := pidsOf(ancestors(30, func(pid int) (Process, error) {
			p, ok := tt.ps[pid]
			if looks++; looks == 2 && tt.change != nil {
				tt.change(tt.ps)
			}
			if !ok {
				return Process{}, ErrGone
			}
			p.PID = pid
			return p, nil
		}))
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		if tt.name == "younger parent" && looks != 3 {
			t.Errorf("%s: %d looks, want the child, the parent and the child again", tt.name, looks)
		}
	}
}

func TestBelow(t *testing.T) {
	all := []Process{{PID: 1}, {PID: 2, PPID: 1}, {PID: 3, PPID: 2}, {PID: 4, PPID: 3}, {PID: 5, PPID: 2}, {PID: 6, PPID: 1},
		{PID: 8, PPID: 9}, {PID: 9, PPID: 8}} // and two that are each other's parents
	for pid, want := range map[int][]int{1: {2, 6, 3, 5, 4}, 2: {3, 5, 4}, 4: nil, 7: nil, 8: {9}} {
		if got := pidsOf(below(pid, all)); !slices.Equal(got, want) {
			t.Errorf("below %d: %v, want %v", pid, got, want)
		}
	}
}

func TestSubreaper(t *testing.T) {
	if err := SetSubreaper(); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	h := start(t, helperCmd("family"))
	grandchild, err := strconv.Atoi(h.line(t))
	if err != nil {
		t.Fatal(err)
	}
	h.Process.Kill()
	h.Wait()
	p, err := Stat(grandchild)
	if err != nil || p.PPID != os.Getpid() {
		t.Errorf("orphan: %+v, %v, want us as parent", p, err)
	}
	unix.Kill(grandchild, unix.SIGKILL)
	unix.Wait4(grandchild, nil, 0, nil)
}
