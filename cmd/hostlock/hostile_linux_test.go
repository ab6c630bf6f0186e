package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
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

var hostile struct {
	sync.Mutex
	dir string
}

type sweeping struct{ *testing.M }

func (m sweeping) Run() int {
	defer func() {
		if hostile.dir != "" {
			os.RemoveAll(hostile.dir)
		}
	}()
	return m.M.Run()
}

// built is the path of a program of this module, as it is shipped: with a race
// detector in it, it would make other system calls.
func built(t *testing.T, pkg string) string {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs go, to build the program")
	}
	hostile.Lock()
	defer hostile.Unlock()
	if hostile.dir == "" {
		if hostile.dir, err = os.MkdirTemp("", "hostlock-hostile-"); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(hostile.dir, 0o755); err != nil { // other users run it
			t.Fatal(err)
		}
	}
	path := filepath.Join(hostile.dir, filepath.Base(pkg))
	if exists(path) {
		return path
	}
	c := exec.Command(goTool, "build", "-race=false", "-o", path, pkg)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

const module = "github.com/org/hostlock-action"

// shipped is hostlock as it is shipped.
func shipped(t *testing.T) string { return built(t, module+"/cmd/hostlock") }

// rehearse runs a hostile program, which judges for itself.
func rehearse(t *testing.T, program string, args ...string) {
	t.Helper()
	c := exec.Command(built(t, module+"/testdata/hostile/"+program), append([]string{"-hostlock", shipped(t)}, args...)...)
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("%s: %v", program, err)
	}
}

func TestHostileKill(t *testing.T) {
	for _, whom := range []string{"all", "one"} {
		t.Run(whom, func(t *testing.T) {
			t.Parallel()
			rehearse(t, "killat", append([]string{"-whom", whom}, pick([]string{"-changing", "-every", "3"}, nil)...)...)
		})
	}
}
