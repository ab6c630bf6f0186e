//go:build linux

package hook_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// host is a lock directory of its own, and the binary that uses it.
type host struct {
	t        *testing.T
	bin, dir string
}

func newHost(t *testing.T) *host {
	t.Helper()
	return &host{t: t, bin: filepath.Dir(build(t, "hostlock", "./cmd/hostlock")), dir: filepath.Join(t.TempDir(), "lock")}
}

// env is what the runner's administrator would have set, so that a job and the
// test mean the same host.
func (h *host) env() map[string]string {
	return map[string]string{"HOSTLOCK_DIR": h.dir, "HOSTLOCK_PRIVATE_OK": "1", "HOSTLOCK_CONF": h.dir + ".conf"}
}

// hooked is env with the two job hooks of hostlock.
func (h *host) hooked() map[string]string {
	env := hooks(h.t, "exec hostlock hook job-started", "exec hostlock hook job-completed")
	for name, value := range h.env() {
		env[name] = value
	}
	return env
}

func (h *host) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.bin, "hostlock"), args...)
	cmd.Env = cleanEnv(h.bin, h.env())
	return cmd
}

// status returns the keys of `hostlock status --porcelain`.
func (h *host) status() map[string]string {
	h.t.Helper()
	out, err := h.command("status", "--porcelain").Output()
	if err != nil {
		h.t.Fatalf("hostlock status: %v", err)
	}
	keys := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		keys[key] = value
	}
	return keys
}

// await polls until a key of the status has a value.
func (h *host) await(key, want string) {
	h.t.Helper()
	var got string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got = h.status()[key]; got == want {
			return
		}
	}
	h.t.Fatalf("%s=%s for %s, want %s", key, got, patience, want)
}

// hold has the host held by a stranger until the test ends.
func (h *host) hold(flags ...string) {
	h.t.Helper()
	cmd := h.command(append(append([]string{"run"}, flags...), "--", "sh", "-c", "echo held; exec cat")...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	out := newLineWatch()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		cmd.Wait()
		close(out.ended)
	}()
	h.t.Cleanup(func() {
		stdin.Close()
		<-out.ended
	})
	out.await(h.t, "held")
}

func (h *host) startAct(workflow string) *act {
	h.t.Helper()
	return startAct(h.t, h.bin, h.env(), workflow)
}

func TestWorkflowReadsProvenanceFromOutputs(t *testing.T) {
	h := newHost(t)
	a := h.startAct(`
on: push
jobs:
  bench:
    runs-on: self-hosted
    steps:
      - uses: actions/checkout@v4
      - id: bench
        uses: ./
        with:
          reason: nightly benchmark
          run: |
            echo "during $(hostlock status --porcelain | grep ^state=)"
            echo "second line"
      - run: |
          echo "outcome=${{ steps.bench.outputs.outcome }}."
          echo "exit=${{ steps.bench.outputs.command-exit-code }}."
          echo "hold=${{ steps.bench.outputs.hold-id }}."
          echo 'line=${{ steps.bench.outputs.provenance-line }}.'
          echo 'json=${{ steps.bench.outputs.provenance }}.'
`)
	if status := a.status(t); status != 0 {
		t.Fatalf("act: exit %d", status)
	}
	log := a.lines.String()
	for _, want := range []string{
		`during state=HELD`, `second line`, `outcome=acquired\.`, `exit=0\.`, `hold=[0-9a-f]{32}\.`,
		`line=.*hostlock_state=HELD.*takeover=none.*\.`, `Summary - `,
	} {
		if !regexp.MustCompile(want).MatchString(log) {
			t.Errorf("the log has no %q", want)
		}
	}
	var record map[string]any
	if m := regexp.MustCompile(`json=(.*)\.\r?\n`).FindStringSubmatch(log); m == nil || json.Unmarshal([]byte(m[1]), &record) != nil {
		t.Error("provenance is not one line of JSON")
	}
	h.await("state", "FREE")
}

func TestActionWithoutRunHoldsHostUntilPost(t *testing.T) {
	h := newHost(t)
	a := h.startAct(`
on: push
jobs:
  bench:
    runs-on: self-hosted
    steps:
      - uses: actions/checkout@v4
      - uses: ./
        with:
          reason: two arms
      - run: hostlock status --porcelain | grep ^state=
      - run: hostlock assert-held && hostlock run --reason arm -- echo "inside $HOSTLOCK_HELD"
`)
	if status := a.status(t); status != 0 {
		t.Fatalf("act: exit %d", status)
	}
	for _, want := range []string{"| state=HELD", "| inside 1"} {
		if !strings.Contains(a.lines.String(), want) {
			t.Errorf("the log has no %q", want)
		}
	}
	h.await("state", "FREE")
}

func TestActionPassesCommandStatusOn(t *testing.T) {
	h := newHost(t)
	r := runJob(t, h.bin, job{RunnerEnv: h.env(), Steps: []step{
		actionStep(t, map[string]string{"run": "false | true\necho unreached", "reason": "test", "shell": "bash"}),
		{Name: "read", If: "always()", Run: "echo code ${{ steps.action.outputs.command-exit-code }}"},
	}})
	if s := r.step(t, "action"); s.Exit != 1 || strings.Contains(s.log(), "unreached") {
		t.Errorf("exit %d, log %q", s.Exit, s.log())
	}
	if got := r.step(t, "read").log(); got != "code 1" {
		t.Errorf("output %q", got)
	}
	h.await("state", "FREE")
}

func TestActionCancelStopsBenchmarkAndFreesHost(t *testing.T) {
	for name, script := range map[string]string{
		"obedient": "echo ready; exec sleep 63",
		"stubborn": "trap '' INT TERM; echo ready; while :; do sleep 0.1; done",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			// In the runner's own time: it is shorter than hostlock's patience if scaled.
			r := runJob(t, h.bin, job{RunnerEnv: h.env(), CancelOn: "ready", scale: "1", Steps: []step{
				actionStep(t, map[string]string{"run": script, "reason": "test"}),
			}})
			s := r.step(t, "action")
			if slices.Contains(s.Signals, "SIGKILL") || s.Exit == 0 {
				t.Errorf("exit %d after %s", s.Exit, s.Signals)
			}
			if len(r.Orphans) > 0 {
				t.Errorf("left running: %q", r.Orphans)
			}
			h.await("state", "FREE")
		})
	}
}

func TestParallelJobsOfActTakeTurns(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	a := h.startAct(`
on: push
jobs:
  bench:
    runs-on: self-hosted
    strategy:
      matrix: {leg: [1, 2, 3]}
    steps:
      - uses: actions/checkout@v4
      - uses: ./
        with:
          reason: leg ${{ matrix.leg }}
          run: |
            mkdir ` + dir + `/busy
            sleep 0.3
            mv ` + dir + `/busy ` + dir + `/done-${{ matrix.leg }}
`)
	if status := a.status(t); status != 0 {
		t.Errorf("act: exit %d: legs ran beside each other", status)
	}
	if done, _ := filepath.Glob(dir + "/done-*"); len(done) != 3 {
		t.Errorf("legs that ran: %q", done)
	}
}

func TestJobHooksHoldHostForWholeJob(t *testing.T) {
	h := newHost(t)
	r := runJob(t, h.bin, job{RunnerEnv: h.hooked(), Steps: []step{
		{Name: "arm", Run: "hostlock run --reason arm -- echo inside"},
		{Name: "gap", Run: "hostlock status --porcelain | grep ^state="},
	}})
	started := r.step(t, "Set up runner")
	for _, name := range []string{"HOSTLOCK_HELD", "HOSTLOCK_HOLD_ID", "HOSTLOCK_ANCHOR_PID", "HOSTLOCK_OWNER", "HOSTLOCK_DIR"} {
		if started.Env[name] == "" {
			t.Errorf("%s is not exported", name)
		}
	}
	if started.HeldOpen {
		t.Error("the keeper keeps the hook's output open, which costs each job 5 s")
	}
	if !slices.Contains(r.step(t, "arm").Log, "inside") {
		t.Errorf("run in the job: %q", r.step(t, "arm").Log)
	}
	if got := r.step(t, "gap").log(); got != "state=HELD" {
		t.Errorf("between two arms: %q", got)
	}
	if done := r.step(t, "Complete runner"); done.Exit != 0 || done.Summary == "" {
		t.Errorf("completed hook: exit %d, summary %q", done.Exit, done.Summary)
	}
	if r.Conclusion != "success" || len(r.Orphans) > 0 {
		t.Errorf("conclusion %s, orphans %q: the keeper must not carry the job's mark", r.Conclusion, r.Orphans)
	}
	h.await("state", "FREE")
}

func TestHostIsNotHandedOnBeforeOrphansAreKilled(t *testing.T) {
	h := newHost(t)
	env := h.hooked()
	writeFile(t, env["ACTIONS_RUNNER_HOOK_JOB_COMPLETED"],
		"hostlock hook job-completed\nsleep 1\nhostlock status --porcelain | grep ^state=", 0o755)
	r := runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{
		{Name: "leave", Run: "setsid sleep 64 >/dev/null 2>&1 &"},
	}})
	if log := r.step(t, "Complete runner").Log; !slices.Contains(log, "state=HELD") {
		t.Errorf("with an orphan left: %q", log)
	}
	if !slices.Equal(r.Orphans, []string{"sleep 64"}) {
		t.Errorf("orphans %q", r.Orphans)
	}
	h.await("state", "FREE")
}

func TestCompletedHookSaysNothingWhenNothingWasHeld(t *testing.T) {
	h := newHost(t)
	env := h.env()
	for name, value := range hooks(t, "", "exec hostlock hook job-completed") {
		env[name] = value
	}
	r := runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{{Name: "s", Run: "true"}}})
	if s := r.step(t, "Complete runner"); s.Exit != 0 || s.log() != "" || s.Summary != "" {
		t.Errorf("exit %d, log %q, summary %q", s.Exit, s.log(), s.Summary)
	}
}

func TestRefusedJobsAlwaysStepIsRefusedToo(t *testing.T) {
	h := newHost(t)
	h.hold("--owner", "night-shift", "--reason", "calibration")
	env := h.hooked()
	env["HOSTLOCK_HOOK_TIMEOUT"] = "1"
	ran := filepath.Join(t.TempDir(), "ran")
	r := runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{
		{Name: "first", Run: "touch " + ran},
		{Name: "always", If: "always()", Run: "exec hostlock run --reason cleanup -- touch " + ran},
	}})
	started := r.step(t, "Set up runner")
	if started.Exit != 3 || started.Env["HOSTLOCK_REFUSED"] != "1" || !strings.Contains(started.Summary, "night-shift") {
		t.Errorf("started hook: exit %d, env %q, summary %q", started.Exit, started.Env, started.Summary)
	}
	named := false
	for _, c := range started.Commands {
		named = named || c.Name == "error" && strings.Contains(c.Value, "night-shift")
	}
	if !named {
		t.Errorf("no annotation names the holder: %+v", started.Commands)
	}
	if s := r.step(t, "always"); s.Exit != 2 {
		t.Errorf("run in an always() step: exit %d", s.Exit)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a step ran in a refused job")
	}
	if s := r.step(t, "Complete runner"); s.Exit != 0 {
		t.Errorf("completed hook: exit %d", s.Exit)
	}
}

func TestWorkerKilledWhileHolding(t *testing.T) {
	h := newHost(t)
	w := startJob(t, h.bin, job{RunnerEnv: h.hooked(), Steps: []step{{Name: "s", Run: "echo ready; exec sleep 3"}}})
	w.lines.await(t, "ready")
	w.Process.Kill()
	w.Wait()
	h.await("state", "STALE")
	cmd := h.command("acquire", "--owner", "next", "--reason", "test", "--wait", "--timeout", "60")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "outcome=acquired_after_reap (stale_pid)") {
		t.Errorf("%v: %s%s", err, out, &stderr)
	}
	if out, err := h.command("release", "--force").CombinedOutput(); err != nil {
		t.Errorf("release: %v: %s", err, out)
	}
}

func TestWorkerKilledWhileWaiting(t *testing.T) {
	h := newHost(t)
	h.hold("--owner", "night-shift", "--reason", "calibration")
	w := startJob(t, h.bin, job{RunnerEnv: h.hooked(), Steps: []step{{Name: "s", Run: "true"}}})
	w.lines.await(t, "night-shift")
	h.await("waiting", "1")
	w.Process.Signal(syscall.SIGKILL)
	w.Wait()
	h.await("waiting", "0")
}

func TestPeersTextFormsNothing(t *testing.T) {
	h := newHost(t)
	h.hold("--owner", "a:b#c", "--reason",
		"::forged::1 ##[forged]2\n::forged::3\r::forged::4\x1b[2J | cell <b>bold</b> @everyone `code` '\"; touch forged; ' _GitHubActionsFileCommandDelimeter_\nFORGED=5")
	env := h.hooked()
	env["HOSTLOCK_HOOK_TIMEOUT"] = "1"
	action := actionStep(t, map[string]string{"timeout": "1", "reason": "x"})
	running := actionStep(t, map[string]string{"timeout": "1", "reason": "x", "run": "true"})
	running.If = "always()"
	refused := runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{running}})
	if started := refused.step(t, "Set up runner"); started.Exit != 3 || started.Summary == "" {
		t.Errorf("started hook: exit %d, summary %q", started.Exit, started.Summary)
	}
	// Without the hook both forms of the action meet the peer themselves.
	met := runJob(t, h.bin, job{RunnerEnv: h.env(), Steps: []step{action, running}})
	for _, s := range append(refused.Steps, met.Steps...) {
		for _, c := range s.Commands {
			if c.Name == "forged" || strings.Contains(c.Properties, "forged") {
				t.Errorf("%s: forged command %+v", s.Name, c)
			}
		}
		for _, line := range s.Log {
			if strings.ContainsRune(line, '\x1b') || strings.Contains(line, "##[") {
				t.Errorf("%s: line %q", s.Name, line)
			}
		}
		for _, bad := range []string{"<b>", "@everyone", "| cell", "\x1b", "`code`"} {
			if strings.Contains(s.Summary, bad) {
				t.Errorf("%s: summary has %q", s.Name, bad)
			}
		}
		for name, value := range s.Outputs {
			if strings.ContainsAny(value, "'`<|@$;\x1b") || strings.Contains(value, "::") {
				t.Errorf("%s: output %s is %q", s.Name, name, value)
			}
		}
		if len(s.FileErrors) > 0 || s.Env["FORGED"] != "" || s.Outputs["FORGED"] != "" {
			t.Errorf("%s: command files %v %v %v", s.Name, s.FileErrors, s.Env, s.Outputs)
		}
	}
	for _, s := range met.Steps {
		if !strings.HasPrefix(s.Name, "Post") && (s.Exit != 3 || s.Summary == "" || s.Outputs["outcome"] != "timed_out" || s.Outputs["held-by"] != "a:b#c") {
			t.Errorf("%s: exit %d, outputs %q, summary %q", s.Name, s.Exit, s.Outputs, s.Summary)
		}
	}
}

func TestHostIsKeptUntilJobHasNoProcessLeft(t *testing.T) {
	h := newHost(t)
	env := h.hooked()
	// A wrapper that goes on after hostlock stands for what else a host has in
	// its hook, and gives the test a moment to look.
	let := filepath.Join(t.TempDir(), "let")
	env["ACTIONS_RUNNER_HOOK_JOB_COMPLETED"] = hooks(t, "", "hostlock hook job-completed; until [[ -e "+let+" ]]; do sleep 0.05; done")["ACTIONS_RUNNER_HOOK_JOB_COMPLETED"]
	w := startJob(t, h.bin, job{RunnerEnv: env, Steps: []step{
		{Name: "s", Run: "setsid sleep 64 >/dev/null 2>&1 & echo left $!"},
	}})
	w.lines.await(t, "left ")
	id := h.status()["hold_id"]
	h.await("evidence", "anchor_alive")
	// Until the keeper stands for the hold.
	for end := time.Now().Add(patience / 4); h.record(id)["job_ended_at"] == nil && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	record := h.record(id)
	if anchor, _ := record["anchor"].(map[string]any); anchor["comm"] != "hostlock" {
		t.Errorf("the job has ended and its hold is anchored to %v", anchor)
	}
	if s := h.status(); s["state"] != "HELD" || s["hold_id"] != id {
		t.Errorf("state %s, hold %s, after the hook and before the runner's clean-up", s["state"], s["hold_id"])
	}
	writeFile(t, let, "", 0o644)
	r := w.result(t)
	if t.Failed() {
		return // a hold that nobody keeps is not given back either
	}
	if !slices.Equal(r.Orphans, []string{"sleep 64"}) {
		t.Errorf("orphans %q", r.Orphans)
	}
	h.await("state", "FREE")
	out, err := h.command("log", "--json").Output()
	if err != nil || !strings.Contains(string(out), id) || !strings.Contains(string(out), `"end":"released"`) {
		t.Errorf("history: %v: %s", err, out)
	}
}

// record reads the record of a hold that is there, or nil.
func (h *host) record(id string) map[string]any {
	h.t.Helper()
	all, _ := filepath.Glob(h.dir + "/*.json")
	for _, file := range all {
		var r map[string]any
		if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &r) == nil && r["id"] == id {
			return r
		}
	}
	return nil
}
