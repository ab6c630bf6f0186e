//go:build linux

package hook_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

type finding struct{ Check, Level, Text, Fix string }

// doctor returns what was found, by level and check.
func (h *host) doctor(wantExit int, args ...string) []finding {
	h.t.Helper()
	out, err := h.command(append([]string{"doctor", "--json"}, args...)...).Output()
	exit := 0
	if e, ok := err.(*exec.ExitError); ok {
		exit = e.ExitCode()
	}
	var all struct{ Findings []finding }
	if err := json.Unmarshal(out, &all); err != nil || exit != wantExit {
		h.t.Fatalf("exit %d, want %d; %v: %s", exit, wantExit, err, out)
	}
	return all.Findings
}

func found(all []finding, level, check, text string) *finding {
	for _, f := range all {
		if f.Level == level && f.Check == check && strings.Contains(f.Text, text) {
			return &f
		}
	}
	return nil
}

func TestDoctorNamesWhatIsWrongAndTheFix(t *testing.T) {
	h := newHost(t)
	all := h.doctor(0)
	for _, check := range []string{"configuration", "directory", "kernel", "/proc"} {
		if found(all, "failure", check, "") != nil {
			t.Errorf("%s: %+v", check, all)
		}
	}
	if found(all, "warning", "scope", "private") == nil {
		t.Errorf("a private lock: %+v", all)
	}
	if _, err := os.Stat(h.dir); err == nil {
		t.Error("the doctor made the directory")
	}

	dir := runnerDir(t, "r", "A=1\n")
	f := found(h.doctor(7, "--runner-dir", dir), "failure", "runner", "takes no lock")
	if f == nil || !strings.Contains(f.Fix, "hostlock hook install --runner-dir '"+dir+"'") {
		t.Errorf("a runner without hooks: %+v", f)
	}
	binary := filepath.Join(t.TempDir(), "it's hostlock")
	h.install("install", "--copy-to", binary, "--runner-dir", dir)
	all = h.doctor(0, "--runner-dir", dir)
	if found(all, "ok", "runner", "is hooked") == nil || found(all, "ok", "runners", "runners_hooked=1/1") == nil {
		t.Errorf("a runner with hooks: %+v", all)
	}
	if err := os.Remove(binary); err != nil {
		t.Fatal(err)
	}
	if found(h.doctor(7, "--runner-dir", dir), "failure", "runner", "every job fails") == nil {
		t.Error("hooks whose program is gone are not a failure")
	}

	h.policy("job repositry=x mode=none")
	if found(h.doctor(7), "failure", "configuration", ".conf:1: repositry= is not known") == nil {
		t.Error("a wrong policy is not a failure")
	}
	h.policy("job repository=x mode=none")
	if found(h.doctor(0), "warning", "configuration", "no default line") == nil {
		t.Error("a policy without default is not pointed out")
	}
	if found(h.doctor(7, "--lock-dir", "/dev/null"), "failure", "directory", "not a directory") == nil {
		t.Error("an unusable directory is not a failure")
	}
}

func TestDoctorSeesAHolderThatDied(t *testing.T) {
	h := newHost(t)
	cmd := h.command("run", "--reason", "x", "--", "sh", "-c", "echo up; read x")
	out := newLineWatch()
	cmd.Stdout = out
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out.await(t, "up")
	if found(h.doctor(0), "ok", "lock", "HELD") == nil {
		t.Error("not held")
	}
	cmd.Process.Kill()
	stdin.Close()
	cmd.Wait()
	if f := found(h.doctor(0), "warning", "lock", "STALE"); f == nil || !strings.Contains(f.Fix, "hostlock reap") {
		t.Errorf("finding %+v", f)
	}
}
