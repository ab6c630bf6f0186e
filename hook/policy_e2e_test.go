//go:build linux

package hook_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// policy has the host decide by these lines.
func (h *host) policy(lines ...string) {
	writeFile(h.t, h.dir+".conf", strings.Join(lines, "\n")+"\n", 0o644)
}

func TestPolicyGivesEachJobItsOwn(t *testing.T) {
	h := newHost(t)
	h.policy("# first match",
		"job repository=acme/db job=docs mode=none",
		"job repository=acme/db workflow=acme/db/.github/workflows/*@refs/heads/main event=push runner=bench-* mode=shared wait=5 gate=10000",
		"default mode=exclusive wait=1")
	see := []step{{Name: "see", Run: "hostlock status --porcelain | grep -E '^(state|mode)='"}}
	for name, tt := range map[string]struct {
		env       map[string]string
		see, gate string
	}{
		"shared":  {nil, "state=HELD\nmode=shared", "satisfied:"},
		"default": {map[string]string{"RUNNER_NAME": "other"}, "state=HELD\nmode=exclusive", "none"},
		"none":    {map[string]string{"GITHUB_JOB": "docs"}, "state=FREE\nmode=", ""},
		// Neither the job's own variables nor the defaults for hosts without a
		// policy reach past it.
		"not asked": {map[string]string{"HOSTLOCK_HOOK_MODE": "none", "HOSTLOCK_GATE": "1", "HOSTLOCK_OWNER": "me"}, "state=HELD\nmode=shared", "satisfied:"},
	} {
		t.Run(name, func(t *testing.T) {
			env := h.hooked()
			for k, v := range tt.env {
				env[k] = v
			}
			r := runJob(t, h.bin, job{RunnerEnv: env, Steps: see, JobEnv: map[string]string{"HOSTLOCK_HOOK_MODE": "none"}})
			if got := r.step(t, "see").log(); got != tt.see {
				t.Errorf("the job has %q, want %q", got, tt.see)
			}
			done := r.step(t, "Complete runner")
			if (tt.gate == "") != (done.Summary == "") || !strings.Contains(done.Summary, strings.ReplaceAll(tt.gate, ":", "&#58;")) {
				t.Errorf("summary %q", done.Summary)
			}
			h.await("state", "FREE")
		})
	}
}

func TestWrongPolicyStartsNoJob(t *testing.T) {
	h := newHost(t)
	h.policy("default mode=shared", "job repositry=acme/db mode=none")
	ran := filepath.Join(t.TempDir(), "ran")
	takes := actionStep(t, nil)
	takes.If = "always()"
	r := runJob(t, h.bin, job{RunnerEnv: h.hooked(), Steps: []step{
		{Name: "first", Run: "touch " + ran},
		{Name: "always", If: "always()", Run: "exec hostlock run --reason cleanup -- touch " + ran},
		takes,
	}})
	started := r.step(t, "Set up runner")
	if started.Exit != 7 || started.Env["HOSTLOCK_REFUSED"] != "1" || started.Env["HOSTLOCK_HELD"] != "" {
		t.Errorf("exit %d, env %q", started.Exit, started.Env)
	}
	if c := started.Commands; len(c) != 1 || c[0].Name != "error" || !strings.Contains(c[0].Value, h.dir+".conf:2") || !strings.Contains(c[0].Value, "repositry") {
		t.Errorf("annotations %+v", c)
	}
	if !strings.Contains(started.Summary, "administrator") {
		t.Errorf("summary %q", started.Summary)
	}
	if s := r.step(t, "always"); s.Exit != 2 {
		t.Errorf("run in an always() step: exit %d", s.Exit)
	}
	if s := r.step(t, "action"); s.Exit != 2 || s.Outputs["outcome"] != "busy" {
		t.Errorf("action in an always() step: exit %d, outputs %q", s.Exit, s.Outputs)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a step ran")
	}
	h.await("state", "FREE")
}

// A job that shares the host measures alone, and goes on sharing.
func TestJobTradesItsShareForTheHost(t *testing.T) {
	h := newHost(t)
	h.policy("default mode=shared wait=30")
	r := runJob(t, h.bin, job{RunnerEnv: h.hooked(), Steps: []step{
		{Name: "build", Run: "hostlock status --porcelain | grep ^mode="},
		{Name: "bench", Run: "exec hostlock run --reason bench -- sh -c 'hostlock status --porcelain | grep ^mode='"},
		{Name: "after", Run: "hostlock status --porcelain | grep ^mode=; hostlock assert-held"},
		actionStep(t, map[string]string{"run": "hostlock status --porcelain | grep ^mode="}),
		{Name: "last", Run: "hostlock status --porcelain | grep ^mode="},
	}})
	for name, want := range map[string]string{"build": "mode=shared", "bench": "mode=exclusive", "after": "mode=shared", "action": "mode=exclusive", "last": "mode=shared"} {
		if got := r.step(t, name).log(); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %s", name, got, want)
		}
	}
	if s := r.step(t, "Complete runner"); s.Summary == "" || r.Conclusion != "success" {
		t.Errorf("conclusion %s, summary %q", r.Conclusion, s.Summary)
	}
	h.await("state", "FREE")
}

// A trade that a step left in the background ends after the job's last hook: the
// job's share must not come back, for nobody would give it back.
func TestTradeThatOutlivesItsJobGivesNothingBack(t *testing.T) {
	h := newHost(t)
	h.policy("default mode=shared wait=30")
	dir := t.TempDir()
	until := func(file string) string {
		return "until [ -e '" + dir + "/" + file + "' ] || [ $((n += 1)) -gt 600 ]; do sleep 0.05; done; "
	}
	env := h.hooked()
	for name, value := range hooks(t, "exec hostlock hook job-started",
		until("began")+"hostlock hook job-completed; touch '"+dir+"/over'; n=0; "+until("ended")) {
		env[name] = value
	}
	// In a session of its own it does not end with the step's shell.
	writeFile(t, filepath.Join(dir, "trade.sh"), "until [ $(ps -o ppid= $$) != $1 ]; do sleep 0.05; done\n"+
		"hostlock run --reason bench -- sh -c \"touch '"+dir+"/began'; "+strings.ReplaceAll(until("over"), "$", "\\$")+"\"\ntouch '"+dir+"/ended'\n", 0o755)
	r := runJob(t, h.bin, job{RunnerEnv: env, Steps: []step{{Name: "s", Run: "setsid -f bash '" + dir + "/trade.sh' $$ >'" + dir + "/log' 2>&1"}}})
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Logf("trade: %s", log)
	}
	if r.Conclusion != "success" {
		t.Errorf("conclusion %s", r.Conclusion)
	}
	if got := h.status()["state"]; got != "FREE" {
		t.Errorf("state %s after the job", got)
	}
}

// Whoever takes the host from a job that has it makes that job's numbers
// suspect, and the job's last hook is where it is told.
func TestJobIsToldThatItLostTheHost(t *testing.T) {
	h := newHost(t)
	r := runJob(t, h.bin, job{RunnerEnv: h.hooked(), Steps: []step{{Name: "s", Run: "env -u HOSTLOCK_HOLD_ID hostlock release --force"}}})
	s := r.step(t, "Complete runner")
	if s.Exit != 0 || !strings.Contains(s.Summary, "**suspect**") || !strings.Contains(s.log(), "by force") {
		t.Errorf("exit %d, log %q, summary %q", s.Exit, s.log(), s.Summary)
	}
}

func TestHookOutsideAJobSaysSo(t *testing.T) {
	h := newHost(t)
	out, err := h.command("hook", "job-started").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Runner.Worker") || !strings.Contains(string(out), "--pid") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := h.command("hook", "job-completed").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("job-completed: %v: %s", err, out)
	}
	h.await("state", "FREE")
}

func TestActCancelStopsBenchmarkAndFreesHost(t *testing.T) {
	h := newHost(t)
	pid := filepath.Join(t.TempDir(), "pid")
	a := h.startAct(`
on: push
jobs:
  bench:
    runs-on: self-hosted
    steps:
      - uses: actions/checkout@v4
      - uses: ./
        with:
          run: |
            echo $$ >` + pid + `
            echo ready
            sleep 66
            echo unreached
`)
	a.lines.await(t, "ready")
	h.await("state", "HELD")
	a.Process.Signal(syscall.SIGINT)
	a.status(t)
	h.await("state", "FREE")
	b, _ := os.ReadFile(pid)
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(b))); err == nil {
		t.Errorf("the benchmark, %s, still runs", b)
	}
}

func TestActionSaysEverythingAboutEveryOutcome(t *testing.T) {
	h := newHost(t)
	with := func(id string, pairs ...string) step {
		in := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			in[pairs[i]] = pairs[i+1]
		}
		s := actionStep(t, in)
		s.Name, s.ID, s.If = id, id, "always()"
		return s
	}
	broken := filepath.Join(t.TempDir(), "broken")
	writeFile(t, broken, "#!/no/such/interpreter\n", 0o755)
	// What no gate of a tenth of a core can be met beside: a quiet host is one
	// whose foreign cores are 0.
	neighbour := exec.Command("sh", "-c", "while :; do :; done")
	if err := neighbour.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = neighbour.Process.Kill(), neighbour.Wait() })
	r := runJob(t, h.bin, job{RunnerEnv: h.env(), Steps: []step{
		with("ok", "run", "exit 0"),
		with("fails", "run", "exit 3"),
		with("gate", "run", "true", "gate-cpu", "0.1", "gate-timeout", "1"),
		with("proceeds", "run", "true", "gate-cpu", "0.1", "gate-timeout", "1", "on-gate-timeout", "proceed"),
		with("unusable", "run", "true", "lock-dir", "/dev/null"),
		with("usage", "run", "true", "gate", "0"),
		with("mode", "mode", "both"),
		with("shell", "run", "true", "shell", "nonsense"),
		with("no shell", "run", "true", "shell", "/no/such/shell {0}"),
		with("no program", "run", "true", "shell", broken+" {0}"),
		with("sh", "run", "echo $0 | grep -c hostlock-; echo ${BASH-posix}", "shell", "sh"),
		with("custom", "run", "import os; print('six', os.getcwd())", "shell", "python3 -u {0}", "working-directory", "/"),
		with("quiet", "run", "true", "summary", "false"),
		with("take"),
		with("joined"),
		with("inside", "run", "true"),
	}})
	for id, want := range map[string]struct {
		exit          int
		outcome, code string
		summary       bool
	}{
		"ok": {0, "acquired", "0", true}, "fails": {3, "acquired", "3", true}, "gate": {5, "gate_failed", "", true}, "proceeds": {0, "acquired", "0", true},
		"unusable": {7, "unusable", "", true}, "usage": {1, "unknown", "", true}, "mode": {1, "unknown", "", true}, "shell": {1, "unknown", "", true},
		"no program": {126, "acquired", "126", true},
		"no shell":   {127, "unknown", "", true}, "sh": {0, "acquired", "0", true}, "custom": {0, "acquired", "0", true}, "quiet": {0, "acquired", "0", false},
		"take": {0, "acquired", "", false}, "joined": {0, "joined", "", false}, "inside": {0, "joined", "0", true},
	} {
		s := r.step(t, id)
		if s.Exit != want.exit || s.Outputs["outcome"] != want.outcome || s.Outputs["command-exit-code"] != want.code || (s.Summary != "") != want.summary {
			t.Errorf("%s: exit %d, outcome %q, code %q, summary %q", id, s.Exit, s.Outputs["outcome"], s.Outputs["command-exit-code"], s.Summary)
		}
		for _, name := range declaredOutputs(t) {
			if value, ok := s.Outputs[name]; !ok || strings.Contains(value, "\n") || value == "" && name != "hold-id" && name != "command-exit-code" {
				t.Errorf("%s: output %s is %q (written: %t)", id, name, value, ok)
			}
		}
		if !strings.HasPrefix(s.Outputs["provenance"], "{") || len(s.Outputs) != len(declaredOutputs(t)) {
			t.Errorf("%s: outputs %q", id, s.Outputs)
		}
		if want.exit != 0 && want.code == "" && (len(s.Commands) != 1 || s.Commands[0].Name != "error") {
			t.Errorf("%s: annotations %+v", id, s.Commands)
		}
	}
	// What hostlock says itself, on stderr, may be read before it.
	if got := r.step(t, "custom").Log; !slices.Contains(got, "six /") {
		t.Errorf("custom shell: %q", got)
	}
	if got := r.step(t, "sh").Log; !slices.Contains(got, "1") {
		t.Errorf("sh: %q", got)
	}
	if s := r.step(t, "proceeds"); !strings.HasPrefix(s.Outputs["gate"], "timed_out_proceeded:") || !strings.Contains(s.Summary, "**suspect**") {
		t.Errorf("gate %q, summary %q", s.Outputs["gate"], s.Summary)
	}
	if take := r.step(t, "take"); r.step(t, "joined").Outputs["hold-id"] != take.Outputs["hold-id"] || take.State["hold_id"] == "" || r.step(t, "joined").State["hold_id"] != "" {
		t.Error("joined is not the hold that was taken, or is to be released twice")
	}
	if s := r.step(t, "Post take"); s.Exit != 0 || s.Summary == "" {
		t.Errorf("post: exit %d, summary %q", s.Exit, s.Summary)
	}
	h.await("state", "FREE")
}

// declaredOutputs are those of action.yml.
func declaredOutputs(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../action.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(b), "\noutputs:\n")
	part, _, _ = strings.Cut(part, "\nruns:")
	var names []string
	for line := range strings.Lines(part) {
		if name, ok := strings.CutSuffix(strings.TrimRight(line, "\n"), ":"); ok && strings.HasPrefix(name, "  ") && name[2] != ' ' {
			names = append(names, name[2:])
		}
	}
	if len(names) < 10 {
		t.Fatalf("outputs of action.yml: %q", names)
	}
	return names
}
