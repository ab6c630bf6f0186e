//go:build linux

package hook_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// need returns the path of a program. A reader without it skips the test and is
// told so; the gate installs it, so there its absence is a failure.
func need(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
		return path
	case os.Getenv("CI") == "true":
		t.Fatalf("needs %s, which .ci/run installs", program)
	default:
		t.Skipf("needs %s, which is not installed", program)
	}
	return ""
}

var built struct {
	sync.Mutex
	dir string
}

// build returns the path of a package of this module, built as a file called name.
func build(t *testing.T, name, pkg string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "hostlock-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
	}
	path := filepath.Join(built.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cmd := exec.Command("go", "build", "-race=false", "-o", path, pkg)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return path
}

func TestMain(m *testing.M) {
	// What a shell without job control puts in the background ignores INT, and
	// so would the runner, the action and hostlock below it. A handler of ours is
	// reset by exec.
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// patience bounds a wait for an event that has to come.
const patience = 2 * time.Minute

// patient is the scale of a runner that follows its SIGINT by a SIGTERM in 75 s
// only, for steps that must end by the first: on a loaded machine 0.75 s are too
// few for that. Nobody waits for it.
const patient = "10"

// The job and its result, as testdata/e2e/runner documents them.
type (
	job struct {
		RunnerEnv, JobEnv map[string]string
		Steps             []step
		CancelOn          string
		scale             string // 0.1 of the runner's times when empty
	}
	step struct {
		Name, ID, If, Run, Timeout string
		Main, Post                 string
		With, Env                  map[string]string
	}
	result struct {
		Conclusion, TrackingID string
		Steps                  []stepResult
		Orphans                []string
	}
	stepResult struct {
		Name, Result   string
		Exit           int
		Signals        []string
		HeldOpen       bool
		Millis         int64
		Passed         map[string]string
		Env            map[string]string
		Path           []string
		Outputs, State map[string]string
		Summary        string
		FileErrors     []string
		Log            []string
		Commands       []struct{ Name, Properties, Value string }
	}
)

// step returns what became of the step, hook or post step called name.
func (r *result) step(t *testing.T, name string) stepResult {
	t.Helper()
	for _, s := range r.Steps {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no step %q ran: %+v", name, r.Steps)
	return stepResult{}
}

func (s stepResult) log() string { return strings.Join(s.Log, "\n") }

// worker is a job that runs.
type worker struct {
	*exec.Cmd
	stdout bytes.Buffer
	lines  *lineWatch
}

// startJob runs j under a Runner.Worker, with bin first on its PATH.
func startJob(t *testing.T, bin string, j job) *worker {
	t.Helper()
	need(t, "bash")
	file := filepath.Join(t.TempDir(), "job.json")
	data, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	w := &worker{lines: newLineWatch()}
	w.Cmd = exec.Command(build(t, "Runner.Worker", "./testdata/e2e/runner"), "-scale", cmp.Or(j.scale, "0.1"), file)
	w.Env = cleanEnv(bin, nil)
	w.Stdout, w.Stderr = &w.stdout, w.lines
	// Something that outlives a killed worker must not hang the test.
	w.WaitDelay = time.Second
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.ProcessState == nil {
			w.Process.Kill()
			w.Wait()
		}
	})
	return w
}

func (w *worker) result(t *testing.T) *result {
	t.Helper()
	if err := w.Wait(); err != nil {
		t.Fatalf("Runner.Worker: %v\n%s", err, w.lines)
	}
	var r result
	if err := json.Unmarshal(w.stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("job log:\n%s", w.lines)
		}
	})
	return &r
}

func runJob(t *testing.T, bin string, j job) *result {
	t.Helper()
	return startJob(t, bin, j).result(t)
}

// cleanEnv is our environment without what an outer job or an outer hostlock
// left in it, with bin first on the PATH, and with extra.
func cleanEnv(bin string, extra map[string]string) []string {
	env := []string{"PATH=" + strings.TrimPrefix(bin+":"+os.Getenv("PATH"), ":")}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "HOSTLOCK_"), strings.HasPrefix(name, "GITHUB_"),
			strings.HasPrefix(name, "RUNNER_"), strings.HasPrefix(name, "ACTIONS_"),
			strings.HasPrefix(name, "INPUT_"), strings.HasPrefix(name, "STATE_"), name == "PATH":
		default:
			env = append(env, kv)
		}
	}
	for name, value := range extra {
		env = append(env, name+"="+value)
	}
	return env
}

// lineWatch keeps a program's output and lets a test wait for a part of it.
type lineWatch struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	more  chan struct{}
	ended chan struct{} // closed by whoever knows that nothing more will come
}

func newLineWatch() *lineWatch {
	return &lineWatch{more: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (l *lineWatch) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.buf.Write(p)
}

func (l *lineWatch) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// await returns when text has appeared.
func (l *lineWatch) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(patience)
	for over := false; !strings.Contains(l.String(), text); {
		if over {
			t.Fatalf("%q did not appear in:\n%s", text, l)
		}
		select {
		case <-l.more:
		case <-l.ended:
			over = true
		case <-late:
			over = true
		}
	}
}

// act is a run of nektos/act on this machine, without containers.
type act struct {
	*exec.Cmd
	lines *lineWatch
}

// startAct runs a workflow in a new repository that holds this action. Steps
// see env, for act hands its own environment on.
func startAct(t *testing.T, bin string, env map[string]string, workflow string) *act {
	t.Helper()
	program := need(t, "act")
	need(t, "node")
	need(t, "git")
	repo, home := t.TempDir(), t.TempDir()
	for _, file := range []string{"action.yml", "hook/shim/main.js", "hook/shim/post.js", "hook/shim/binary.js"} {
		copyFile(t, filepath.Join("..", file), filepath.Join(repo, file))
	}
	writeFile(t, filepath.Join(repo, ".github/workflows/bench.yml"), workflow, 0o644)
	// Without a commit act has no GITHUB_SHA and refuses.
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "-A"},
		{"-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-q", "-m", "workflow"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = repo
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	a := &act{lines: newLineWatch()}
	a.Cmd = exec.Command(program, "push", "-P", "self-hosted=-self-hosted", "--no-cache-server")
	a.Dir = repo
	// Its workspaces and its configuration live below these two.
	a.Env = append(cleanEnv(bin, env), "HOME="+home, "XDG_CACHE_HOME="+home, "XDG_CONFIG_HOME="+home)
	a.Stdout, a.Stderr = a.lines, a.lines
	a.WaitDelay = time.Second
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.ProcessState == nil {
			a.Process.Kill()
			a.Wait()
		}
		if t.Failed() {
			t.Logf("act log:\n%s", a.lines)
		}
	})
	return a
}

func (a *act) status(t *testing.T) int {
	t.Helper()
	err := a.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return a.ProcessState.ExitCode()
}

func writeFile(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, to, string(data), 0o644)
}
