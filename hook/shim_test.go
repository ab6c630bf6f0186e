//go:build linux

package hook_test

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The shims are driven here with a stand-in for the binary, so that what they
// pass on can be seen.

// standIn returns a directory with a hostlock that runs script.
func standIn(t *testing.T, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	writeFile(t, filepath.Join(dir, "hostlock"), "#!/bin/bash\n"+script, 0o755)
	return dir
}

// actionStep is a step that uses this action.
func actionStep(t *testing.T, with map[string]string) step {
	t.Helper()
	need(t, "node")
	dir, err := filepath.Abs("shim")
	if err != nil {
		t.Fatal(err)
	}
	return step{Name: "action", ID: "action", Main: filepath.Join(dir, "main.js"), Post: filepath.Join(dir, "post.js"), With: with}
}

func TestShimPassesInputsStateAndStatusOn(t *testing.T) {
	// A shell does not keep a name with a dash: the test reads what it was started with.
	bin := standIn(t, `
		echo "args $*"
		[[ $2 == post ]] && { echo "state $STATE_took"; exit 0; }
		tr '\0' '\n' </proc/$$/environ | grep -A1 ^INPUT_
		echo took=it >>"$GITHUB_STATE"
		echo outcome=joined >>"$GITHUB_OUTPUT"
		exit 3`)
	r := runJob(t, bin, job{Steps: []step{actionStep(t, map[string]string{
		"on-gate-timeout": "fail", "run": "first\nsecond",
	})}})
	main, post := r.step(t, "action"), r.step(t, "Post action")
	for _, want := range []string{"args action main", "INPUT_ON-GATE-TIMEOUT=fail", "INPUT_RUN=first\nsecond"} {
		if !strings.Contains(main.log(), want) {
			t.Errorf("main does not see %q", want)
		}
	}
	if main.Exit != 3 || main.Outputs["outcome"] != "joined" {
		t.Errorf("main: exit %d, outputs %q", main.Exit, main.Outputs)
	}
	if post.log() != "args action post\nstate it" || post.Exit != 0 {
		t.Errorf("post: exit %d, log %q", post.Exit, post.log())
	}
}

func TestShimPassesSignalsOn(t *testing.T) {
	bin := standIn(t, `
		[[ $2 == post ]] && exit
		trap 'echo stopped; exit 7' INT
		echo ready
		while :; do sleep 0.05; done`)
	r := runJob(t, bin, job{CancelOn: "ready", scale: patient, Steps: []step{actionStep(t, nil)}})
	s := r.step(t, "action")
	if !slices.Equal(s.Signals, []string{"SIGINT"}) || s.Exit != 7 || s.log() != "ready\nstopped" {
		t.Errorf("exit %d after %s, log %q", s.Exit, s.Signals, s.log())
	}
	if len(r.Orphans) > 0 {
		t.Errorf("orphans %q", r.Orphans)
	}
}

func TestShimEndsAsSignalled(t *testing.T) {
	r := runJob(t, standIn(t, `kill -TERM $$`), job{Steps: []step{actionStep(t, nil)}})
	if s := r.step(t, "action"); s.Exit != 128+int(syscall.SIGTERM) {
		t.Errorf("exit %d", s.Exit)
	}
}

func TestShimDoesNotWaitForWhatIsLeftRunning(t *testing.T) {
	r := runJob(t, standIn(t, `[[ $2 == post ]] || setsid sleep 62 & exit 0`), job{Steps: []step{actionStep(t, nil)}})
	// The runner gives up on the open output by itself, in the tenth of 5 s, long
	// before what has it open ends.
	if s := r.step(t, "action"); !s.HeldOpen || s.Millis > 30_000 {
		t.Errorf("held open: %t, %d ms", s.HeldOpen, s.Millis)
	}
}

func TestShimWithoutBinarySaysWhatToDo(t *testing.T) {
	// The input is the job author's text, and no part of it may be a command.
	r := runJob(t, "", job{Steps: []step{actionStep(t, map[string]string{"binary": "/no/where\n::set-output::%"})}})
	main, post := r.step(t, "action"), r.step(t, "Post action")
	if main.Exit != 127 || len(main.Commands) != 1 || main.Commands[0].Name != "error" {
		t.Fatalf("main: exit %d, commands %+v", main.Exit, main.Commands)
	}
	if text := main.Commands[0].Value; !strings.Contains(text, "/no/where%0A::set-output::%25") || !strings.Contains(text, "PATH") {
		t.Errorf("error %q", text)
	}
	if post.Exit != 0 || len(post.Commands) != 1 || post.Commands[0].Name != "debug" {
		t.Errorf("post: exit %d, commands %+v", post.Exit, post.Commands)
	}
}

func TestActionUnderAct(t *testing.T) {
	bin := standIn(t, `
		[[ $2 == post ]] && { echo "post $STATE_took"; exit 0; }
		echo took=it >>"$GITHUB_STATE"
		echo outcome=acquired >>"$GITHUB_OUTPUT"
		echo HOSTLOCK_HELD=1 >>"$GITHUB_ENV"
		echo '# locked' >>"$GITHUB_STEP_SUMMARY"
		tr '\0' '\n' </proc/$$/environ | grep ^INPUT_`)
	a := startAct(t, bin, nil, `
on: push
jobs:
  bench:
    runs-on: self-hosted
    steps:
      - uses: actions/checkout@v4
      - id: lock
        uses: ./
        with:
          gate-cpu: 0.5
      - run: echo "then ${{ steps.lock.outputs.outcome }} held $HOSTLOCK_HELD"
`)
	if status := a.status(t); status != 0 {
		t.Errorf("act: exit %d", status)
	}
	for _, want := range []string{
		"INPUT_GATE-CPU=0.5", "INPUT_MODE=exclusive", // a value given, and a default of action.yml
		"then acquired held 1", "post it", "# locked",
	} {
		if !strings.Contains(a.lines.String(), want) {
			t.Errorf("%q is not in the log", want)
		}
	}
}

func TestActionKilledByActHearsHangup(t *testing.T) {
	// act cancels with SIGKILL for the shim. What is left to warn the binary is
	// the hangup of the step's terminal.
	file := filepath.Join(t.TempDir(), "signal")
	bin := standIn(t, `
		if [[ $2 == post ]]; then
			until [[ -s `+file+` ]] || ((SECONDS > 5)); do sleep 0.05; done
			exec cat `+file+`
		fi
		trap 'echo hangup >`+file+`; exit' HUP
		echo ready
		while :; do sleep 0.05; done`)
	a := startAct(t, bin, nil, `
on: push
jobs:
  bench:
    runs-on: self-hosted
    steps:
      - uses: actions/checkout@v4
      - uses: ./
`)
	a.lines.await(t, "ready")
	if err := a.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if status := a.status(t); status != 1 {
		t.Errorf("act: exit %d", status)
	}
	if !strings.Contains(a.lines.String(), "| hangup") {
		t.Error("the binary was not told")
	}
}
