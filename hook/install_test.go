//go:build linux

package hook_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// runnerDir makes a directory as a runner has one. env is its .env; none if it
// begins with "-".
func runnerDir(t *testing.T, name, env string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	writeFile(t, filepath.Join(dir, "bin", "Runner.Listener"), "", 0o755)
	if !strings.HasPrefix(env, "-") {
		writeFile(t, filepath.Join(dir, ".env"), env, 0o640)
	}
	return dir
}

func (h *host) install(args ...string) string {
	h.t.Helper()
	out, err := h.command(append([]string{"hook"}, args...)...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("hostlock hook %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// runnerVariables reads .env as the runner does.
func runnerVariables(t *testing.T, dir string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, ".env"))
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "="); ok {
			vars[k] = v
		}
	}
	return vars
}

func TestUninstallPutsBackWhatWasThere(t *testing.T) {
	h := newHost(t)
	for name, env := range map[string]string{
		"nothing":             "-",
		"empty":               "",
		"other lines":         "LANG=C.UTF-8\n# a comment\n\nFOO=a=b\n",
		"no line feed":        "LANG=C.UTF-8",
		"carriage returns":    "LANG=C\r\nACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/a.sh\r\nX=1\r\n",
		"a hook":              "A=1\nACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/a.sh\nB=2\n",
		"both hooks, last":    "ACTIONS_RUNNER_HOOK_JOB_COMPLETED=/opt/b.sh\nACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/a.sh",
		"set twice":           "ACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/old.sh\nACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/a.sh\n",
		"set to nothing":      "ACTIONS_RUNNER_HOOK_JOB_STARTED=\n",
		"only blank lines":    "\n\n",
		"a longer variable":   "ACTIONS_RUNNER_HOOK_JOB_STARTED_X=/x\n",
		"a commented-out one": "#ACTIONS_RUNNER_HOOK_JOB_STARTED=/x\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := runnerDir(t, "a runner's", env)
			before := tree(t, dir)
			if out := h.install("install", "--runner-dir", dir); !strings.Contains(out, "hooks installed") {
				t.Errorf("install says %q", out)
			}
			vars := runnerVariables(t, dir)
			for _, v := range []string{"STARTED", "COMPLETED"} {
				path := vars["ACTIONS_RUNNER_HOOK_JOB_"+v]
				if info, err := os.Stat(path); err != nil || !filepath.IsAbs(path) || info.Mode().Perm() != 0o755 {
					t.Errorf("%s=%q: %v", v, path, err)
				}
			}
			installed := tree(t, dir)
			if out := h.install("install", "--runner-dir", dir); !strings.Contains(out, "nothing to change") || !equal(installed, tree(t, dir)) {
				t.Errorf("again: %q, %v", out, tree(t, dir))
			}
			if out := h.install("uninstall", "--runner-dir", dir); !strings.Contains(out, "taken away") {
				t.Errorf("uninstall says %q", out)
			}
			if after := tree(t, dir); !equal(before, after) {
				t.Errorf("before %q\nafter  %q", before, after)
			}
			if out := h.install("uninstall", "--runner-dir", dir); !strings.Contains(out, "nothing to change") {
				t.Errorf("uninstall, again: %q", out)
			}
		})
	}
}

// What somebody changed after us stays.
func TestUninstallKeepsLaterChanges(t *testing.T) {
	h := newHost(t)
	dir := runnerDir(t, "r", "A=1")
	h.install("install", "--runner-dir", dir)
	file := filepath.Join(dir, ".env")
	b, _ := os.ReadFile(file)
	writeFile(t, file, string(b)+"NEW=2\nACTIONS_RUNNER_HOOK_JOB_STARTED=/theirs.sh\n", 0o640)
	h.install("uninstall", "--runner-dir", dir)
	if b, _ := os.ReadFile(file); !strings.HasPrefix(string(b), "A=1\n") || !strings.HasSuffix(string(b), "NEW=2\nACTIONS_RUNNER_HOOK_JOB_STARTED=/theirs.sh\n") ||
		strings.Contains(string(b), "COMPLETED") {
		t.Errorf(".env is %q", b)
	}
}

// tree is every file below a directory with its mode and content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var b []byte
		if !d.IsDir() {
			if b, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		rel, _ := filepath.Rel(dir, path)
		files[rel] = info.Mode().String() + " " + string(b)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if a[k] != b[k] {
			return false
		}
	}
	return true
}

func TestInstalledHooksChainWhatWasThere(t *testing.T) {
	h := newHost(t)
	note := filepath.Join(t.TempDir(), "it's here")
	theirs := t.TempDir()
	was := func(name, script string) string {
		path := filepath.Join(theirs, name)
		writeFile(t, path, script, 0o644)
		return path
	}
	state := `"$(hostlock status --porcelain | grep ^state=)"`
	dir := runnerDir(t, "runner one", "ACTIONS_RUNNER_HOOK_JOB_STARTED="+was("a b.sh", "echo started "+state+" >>'"+strings.ReplaceAll(note, "'", `'\''`)+"'\necho FROM_THEIRS=1 >>\"$GITHUB_ENV\"\n")+
		"\nACTIONS_RUNNER_HOOK_JOB_COMPLETED="+was("c.js", "require('fs').appendFileSync("+"\""+note+"\""+", 'completed\\n'); process.exitCode = 5\n")+"\n")
	need(t, "node")
	h.install("install", "--runner-dir", dir)
	env := h.env()
	for k, v := range runnerVariables(t, dir) {
		env[k] = v
	}
	r := runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{{Name: "s", Run: "hostlock status --porcelain | grep ^state=; echo theirs $FROM_THEIRS"}}})
	if got := r.step(t, "s").log(); got != "state=HELD\ntheirs 1" {
		t.Errorf("step: %q", got)
	}
	if b, _ := os.ReadFile(note); string(b) != "started state=HELD\ncompleted\n" {
		t.Errorf("their hooks: %q", b)
	}
	// Theirs failed, and the host is given back all the same.
	if s := r.step(t, "Complete runner"); s.Exit != 5 || s.Summary == "" {
		t.Errorf("completed hook: exit %d, summary %q", s.Exit, s.Summary)
	}
	h.await("state", "FREE")

	// Refused, theirs does not begin.
	h.hold("--owner", "night-shift", "--reason", "x")
	env["HOSTLOCK_HOOK_TIMEOUT"] = "1"
	os.Remove(note)
	r = runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{{Name: "s", Run: "true"}}})
	if s := r.step(t, "Set up runner"); s.Exit != 3 || r.step(t, "s").Result != "skipped" {
		t.Errorf("refused: exit %d", s.Exit)
	}
	if b, _ := os.ReadFile(note); string(b) != "completed\n" {
		t.Errorf("their hooks of a refused job: %q", b)
	}
}

func TestInstallFindsRunnersAndTheirListeners(t *testing.T) {
	h := newHost(t)
	base := t.TempDir()
	bash, err := os.ReadFile(need(t, "bash"))
	if err != nil {
		t.Fatal(err)
	}
	begin := func(name string, busy bool) {
		path := filepath.Join(base, name, "bin", "Runner.Listener")
		worker := filepath.Join(base, name, "bin", "Runner.Worker")
		writeFile(t, path, string(bash), 0o755)
		writeFile(t, worker, string(bash), 0o755)
		args := []string{"-c", "echo up; read x"}
		if busy {
			args[1] = "exec 3<&0; '" + worker + "' -c 'echo up; read x <&3' & wait"
		}
		cmd := exec.Command(path, args...)
		out := newLineWatch()
		cmd.Stdout = out
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			stdin.Close()
			cmd.Process.Kill()
			cmd.Wait()
		})
		out.await(t, "up")
	}
	begin("runner-1", false)
	begin("runner-2", true)
	writeFile(t, filepath.Join(base, "runner-3", ".runner"), "{}", 0o644)
	writeFile(t, filepath.Join(base, "runner-1", ".service"), "actions.runner.acme.bench.service\n", 0o644)
	out := h.install("install", "--runner-dir", filepath.Join(base, "runner-*"))
	var got []string
	for line := range strings.Lines(out) {
		switch {
		case strings.Contains(line, "hooks installed"):
			got = append(got, filepath.Base(strings.TrimSuffix(strings.TrimSpace(line), ": hooks installed")))
		case strings.Contains(line, "is idle and must be restarted") && strings.Contains(line, "systemctl restart actions.runner.acme.bench.service"):
			got = append(got, "idle")
		case strings.Contains(line, "runs a job"):
			got = append(got, "busy")
		case strings.Contains(line, "no listener runs"):
			got = append(got, "none")
		default:
			t.Errorf("line %q", line)
		}
	}
	if want := []string{"runner-1", "idle", "runner-2", "busy", "runner-3", "none"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q, in\n%s", got, want, out)
	}
	for _, args := range [][]string{
		{"install"}, {"install", "--runner-dir", base}, {"install", "--runner-dir", filepath.Join(base, "none-*")},
		{"install", "--group", "x", "--runner-dir", filepath.Join(base, "runner-1")}, {"uninstall", "--host"}, {"install", "--runner-dir"},
	} {
		if err := h.command(append([]string{"hook"}, args...)...).Run(); err == nil || err.(*exec.ExitError).ExitCode() != 1 {
			t.Errorf("hook %q: %v", args, err)
		}
	}
}

func TestBinaryIsReplacedWhileAJobRuns(t *testing.T) {
	h := newHost(t)
	dir := runnerDir(t, "r", "")
	copied := filepath.Join(t.TempDir(), "hostlock")
	h.install("install", "--copy-to", copied, "--runner-dir", dir)
	env := h.env()
	for k, v := range runnerVariables(t, dir) {
		env[k] = v
	}
	r := runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{
		{Name: "replace", Run: "hostlock hook install --copy-to " + copied + " --runner-dir " + dir},
		{Name: "s", Run: "hostlock assert-held && " + copied + " version"},
	}})
	if r.Conclusion != "success" {
		t.Errorf("conclusion %s", r.Conclusion)
	}
	h.await("state", "FREE")
}

// A runner's directory is writable to its jobs, and root installs there.
func TestInstallTrustsNothingInARunnersDirectory(t *testing.T) {
	h := newHost(t)
	for name, tc := range map[string]struct {
		make func(dir string) error
		want string
	}{
		"a FIFO":            {func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, ".env"), 0o666) }, "no regular file"},
		"a directory":       {func(dir string) error { return os.Mkdir(filepath.Join(dir, ".env"), 0o755) }, "no regular file"},
		"a link to itself":  {func(dir string) error { return os.Symlink(".env", filepath.Join(dir, ".env")) }, "too many levels"},
		"a link to nothing": {func(dir string) error { return os.Symlink("none", filepath.Join(dir, ".env")) }, "a link to nothing"},
		"too much": {func(dir string) error {
			f, err := os.Create(filepath.Join(dir, ".env"))
			if err == nil {
				err = errors.Join(f.Truncate(8<<30), f.Close())
			}
			return err
		}, "at most 1 MiB"},
		"the scripts' place": {func(dir string) error { return os.Symlink(t.TempDir(), filepath.Join(dir, "hostlock")) }, "is no directory"},
		"another's file": {func(dir string) error {
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			file := filepath.Join(t.TempDir(), "theirs")
			return errors.Join(os.WriteFile(file, nil, 0o644), os.Chown(file, 12345, 12345), os.Symlink(file, filepath.Join(dir, ".env")))
		}, "belongs to uid 12345"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := runnerDir(t, "r", "-")
			if err := tc.make(dir); err != nil {
				t.Fatal(err)
			}
			out, err := h.command("hook", "install", "--runner-dir", dir).CombinedOutput()
			if err == nil || !strings.Contains(string(out), tc.want) {
				t.Errorf("%v: %s", err, out)
			}
			if found(h.doctor(7, "--runner-dir", dir), "failure", "runner", "takes no lock") == nil {
				t.Error("the doctor does not say that it takes no lock")
			}
		})
	}
}
