//go:build linux

package hook_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// These tests pin the test program itself: what it claims about the runner is
// what the tests of the hooks and of the action lean on.

// hooks writes two hook scripts and returns the runner's variables that name them.
func hooks(t *testing.T, started, completed string) map[string]string {
	t.Helper()
	dir, env := t.TempDir(), map[string]string{}
	for name, script := range map[string]string{"STARTED": started, "COMPLETED": completed} {
		if script != "" {
			path := filepath.Join(dir, strings.ToLower(name)+".sh")
			writeFile(t, path, script, 0o755)
			env["ACTIONS_RUNNER_HOOK_JOB_"+name] = path
		}
	}
	return env
}

func TestWorkerHandsEnvironmentOn(t *testing.T) {
	r := runJob(t, "", job{
		RunnerEnv: hooks(t,
			`echo FROM_HOOK=1 >>"$GITHUB_ENV"; echo "comm $(cat /proc/$PPID/comm) job ${FROM_JOB-none} out ${GITHUB_OUTPUT-none}"; pwd; cat`,
			`echo "hook ${FROM_HOOK-none} step ${FROM_STEP-none}"`),
		JobEnv: map[string]string{"FROM_JOB": "1"},
		Steps: []step{
			{Name: "write", ID: "write", Run: `
				echo "hook $FROM_HOOK job $FROM_JOB"
				echo FROM_STEP=2 >>"$GITHUB_ENV"
				echo /somewhere >>"$GITHUB_PATH"
				echo '# summary' >>"$GITHUB_STEP_SUMMARY"
				printf 'many<<END\na\nb\nEND\none=1\n' >>"$GITHUB_OUTPUT"`},
			{Name: "read", Run: `echo "step $FROM_STEP one $ONE ${PATH%%:*}"`, Env: map[string]string{"ONE": "${{ steps.write.outputs.one }}"}},
			{Name: "broken", Run: `echo nonsense >>"$GITHUB_ENV"`},
			{Name: "skipped", Run: `true`},
			{Name: "always", If: "always()", Run: `true`},
			{Name: "after failure", If: "failure()", Run: `true`},
		},
	})
	workspace := r.step(t, "write").Passed["GITHUB_WORKSPACE"]
	for name, want := range map[string]string{
		"Set up runner":   "comm Runner.Worker job none out none\n" + workspace,
		"write":           "hook 1 job 1",
		"read":            "step 2 one 1 /somewhere",
		"Complete runner": "hook none step none",
	} {
		if got := r.step(t, name).log(); got != want {
			t.Errorf("%s: log %q, want %q", name, got, want)
		}
	}
	write := r.step(t, "write")
	if write.Outputs["many"] != "a\nb" || write.Outputs["one"] != "1" || write.Summary != "# summary\n" {
		t.Errorf("command files: %+v", write)
	}
	for name, want := range map[string]string{
		"write": "success", "broken": "failure", "skipped": "skipped", "always": "success", "after failure": "success",
	} {
		if got := r.step(t, name).Result; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if r.Conclusion != "failure" || !strings.HasPrefix(r.TrackingID, "github_") {
		t.Errorf("conclusion %q, tracking id %q", r.Conclusion, r.TrackingID)
	}
}

func TestWorkerReadsCommandsInLog(t *testing.T) {
	r := runJob(t, "", job{Steps: []step{{Name: "s", Run: `
		echo '  ::warning file=a::text'
		echo 'not ::at the start::'
		echo 'text ##[error]here'
		printf 'return\r::notice::late\n'
		printf '::group::unfinished' >&2`}}})
	var names []string
	for _, c := range r.step(t, "s").Commands {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	if want := []string{"error", "group", "notice", "warning"}; !slices.Equal(names, want) {
		t.Errorf("commands %q, want %q", names, want)
	}
}

func TestWorkerCancelClimbsLadder(t *testing.T) {
	// bash sits out its child on SIGINT and dies of SIGTERM, with the child left
	// behind. It needs a moment after the fork until it waits; before that SIGINT
	// ends it like any program.
	r := runJob(t, "", job{
		CancelOn: "ready",
		Steps: []step{
			{Name: "s", Run: "sh -c 'sleep 0.5; echo ready; exec sleep 60'\ntrue"},
			{Name: "next", Run: "true"},
			{Name: "always", If: "always()", Run: "true"},
		},
	})
	s := r.step(t, "s")
	if !slices.Equal(s.Signals, []string{"SIGINT", "SIGTERM"}) || s.Exit != 128+15 || s.Result != "cancelled" || !s.HeldOpen {
		t.Errorf("cancelled step: %s, exit %d after %s, held open: %t", s.Result, s.Exit, s.Signals, s.HeldOpen)
	}
	if got := r.step(t, "next").Result; got != "skipped" {
		t.Errorf("next step: %s", got)
	}
	if got := r.step(t, "always").Result; got != "success" {
		t.Errorf("always step: %s", got)
	}
	if r.Conclusion != "cancelled" || !slices.Equal(r.Orphans, []string{"sleep 60"}) {
		t.Errorf("conclusion %s, orphans %q", r.Conclusion, r.Orphans)
	}
}

func TestWorkerCancelReachesNoHook(t *testing.T) {
	r := runJob(t, "", job{
		CancelOn:  "ready",
		RunnerEnv: hooks(t, "echo ready\nsleep 1\necho survived", "echo completed"),
		Steps:     []step{{Name: "s", Run: "true"}},
	})
	if h := r.step(t, "Set up runner"); h.Result != "success" || h.log() != "ready\nsurvived" {
		t.Errorf("hook: %+v", h)
	}
	if got := r.step(t, "s").Result; got != "skipped" {
		t.Errorf("step: %s", got)
	}
	if got := r.step(t, "Complete runner").log(); got != "completed" {
		t.Errorf("completed hook: %q", got)
	}
}

func TestWorkerKillsOrphansAfterCompletedHook(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	r := runJob(t, "", job{
		RunnerEnv: hooks(t, "", `kill -0 "$(cat `+pid+`)" && echo "still there"`),
		Steps:     []step{{Name: "s", Run: "setsid sleep 61 >/dev/null 2>&1 & echo $! >" + pid + `; until [[ $(</proc/$!/comm) == sleep ]]; do :; done`}},
	})
	if got := r.step(t, "Complete runner").log(); got != "still there" {
		t.Errorf("completed hook: %q", got)
	}
	if !slices.Equal(r.Orphans, []string{"sleep 61"}) {
		t.Errorf("orphans %q", r.Orphans)
	}
	if _, err := os.Stat(pid); err != nil {
		t.Error(err)
	}
}
