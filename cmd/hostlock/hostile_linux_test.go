package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The programs in testdata/hostile do to hostlock what a bad day does. Each
// has a short form, which runs here, and a long one, for
//
//	HOSTLOCK_HOSTILE=long go test -timeout 3h -run Hostile ./cmd/hostlock
//
// Both print what they did.
func isLong() bool { return os.Getenv("HOSTLOCK_HOSTILE") == "long" }

// pick is the short form's value, or the long form's.
func pick[T any](short, long T) T {
	if isLong() {
		return long
	}
	return short
}

// A stage is the programs, built as they are shipped: with a race detector in
// it, hostlock would make other system calls.
type stage struct {
	dir      string
	hostlock string
}

const module = "github.com/org/hostlock-action"

func newStage(t *testing.T) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostlock-hostile-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // other users run it too
		t.Fatal(err)
	}
	s := &stage{dir: dir}
	s.hostlock = s.build(t, "cmd/hostlock")
	return s
}

// build builds a program of this module.
func (s *stage) build(t *testing.T, pkg string) string {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs go, to build the program")
	}
	path := filepath.Join(s.dir, filepath.Base(pkg))
	c := exec.Command(goTool, "build", "-race=false", "-o", path, module+"/"+pkg)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever our umask
		t.Fatal(err)
	}
	return path
}

// rehearse runs a hostile program, which judges for itself.
func (s *stage) rehearse(t *testing.T, path string, args ...string) {
	t.Helper()
	out, err := exec.Command(path, append([]string{"-hostlock", s.hostlock}, args...)...).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("%s: %v", filepath.Base(path), err)
	}
}

func TestHostileKill(t *testing.T) {
	s := newStage(t)
	program := s.build(t, "testdata/hostile/killat")
	t.Run("", func(t *testing.T) {
		for _, whom := range []string{"all", "one"} {
			t.Run(whom, func(t *testing.T) {
				t.Parallel()
				s.rehearse(t, program, append([]string{"-whom", whom}, pick([]string{"-changing", "-every", "6"}, nil)...)...)
			})
		}
	})
}

func TestHostileFault(t *testing.T) {
	s := newStage(t)
	program := s.build(t, "testdata/hostile/faults")
	t.Run("", func(t *testing.T) {
		for _, part := range []string{"0", "1"} {
			t.Run("part "+part, func(t *testing.T) {
				t.Parallel()
				s.rehearse(t, program, append([]string{"-part", part, "-parts", "2"}, pick([]string{"-few", "-every", "40"}, nil)...)...)
			})
		}
		// What cannot be read of the process to hold for is no sign that it ended.
		t.Run("anchor", func(t *testing.T) {
			t.Parallel()
			s.rehearse(t, program, "-only", "acquire beside a holder", "-call", "openat", "-few")
		})
	})
}

func TestHostileLoad(t *testing.T) {
	s := newStage(t)
	s.rehearse(t, s.build(t, "testdata/hostile/load"), pick([]string{"-waiters", "100", "-handovers", "500"}, []string{"-waiters", "1000", "-watch", "20s", "-handovers", "10000"})...)
}

// Each fuzz target, for a while. Its seeds and its corpus are run by every
// "go test".
func TestHostileFuzz(t *testing.T) {
	if !isLong() {
		t.Skip("in the long form only")
	}
	target := regexp.MustCompile(`(?m)^Fuzz\w+$`)
	for _, pkg := range []string{"lock", "proc", "hook"} {
		list, err := exec.Command("go", "test", "-list", "^Fuzz", module+"/"+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range target.FindAllString(string(list), -1) {
			t.Run(name, func(t *testing.T) {
				out, err := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", "20s", module+"/"+pkg).CombinedOutput()
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
	}
}
