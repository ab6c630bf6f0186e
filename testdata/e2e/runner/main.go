// Command runner behaves towards job hooks and steps as the GitHub Actions
// runner's job process does (actions/runner 2.336.0): the environment they get,
// the files they write, the lines of their log that are commands, the signals of
// a cancel and the clean-up of orphans. It has no server and no listener.
//
// Build it to a file named Runner.Worker: that name is how a job process is
// recognised on a host.
//
//	Runner.Worker [-scale F] JOB.json
//
// It prints a Result as JSON on stdout, and the log as it comes on stderr, so
// that a test can wait for a line. SIGUSR1 is the cancel of the job. What a
// killed worker does not get to do is left undone, as in life.
package main

import (
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// Job is what a test asks for.
type Job struct {
	// Workspace and Temp are made in the directory of the job file when empty.
	Workspace, Temp string
	// RunnerEnv is the runner's own environment (its .env file): hooks and
	// steps see it. JobEnv is the workflow's: hooks do not.
	RunnerEnv, JobEnv map[string]string
	Steps             []Step
	// CancelOn cancels the job when a line of the log contains it.
	CancelOn string
}

// Step runs a script, or an action if Main is set.
type Step struct {
	Name, ID string
	// If is success() when empty; also known: always(), failure(), cancelled().
	If  string
	Env map[string]string
	// Run may name ${{ steps.ID.outputs.NAME }}, and so may Env.
	Run string
	// Timeout, a Go duration, cancels the step alone.
	Timeout string

	// Main and Post are JavaScript files, With their inputs.
	Main, Post string
	With       map[string]string

	hook  bool
	state map[string]string
}

// Result is what happened.
type Result struct {
	Conclusion string // success, failure, cancelled
	TrackingID string
	Steps      []StepResult
	// Orphans are the command lines that were killed after the completed hook.
	Orphans []string
}

// StepResult is what happened in one step, hook or post step.
type StepResult struct {
	Name, Result string // success, failure, cancelled, skipped
	// Exit is the status of the first process, 128+N if a signal ended it.
	Exit int
	// Signals are those sent to the first process, and to nothing else.
	Signals []string
	// HeldOpen says that something kept the step's output open after its first
	// process had ended.
	HeldOpen bool
	Millis   int64
	// Passed is the environment the first process was given.
	Passed map[string]string
	// Env, Path, Outputs and State were read from the command files.
	Env     map[string]string
	Path    []string
	Outputs map[string]string
	State   map[string]string
	Summary string
	// FileErrors are command files that the runner refuses; they fail the step.
	FileErrors []string
	Log        []string
	Commands   []Command
}

// Command is a line of the log that the runner obeys instead of printing it.
type Command struct {
	Name, Properties, Value string
}

func main() {
	scale := flag.Float64("scale", 1, "factor on every waiting time of the runner")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: Runner.Worker [-scale F] JOB.json")
		os.Exit(2)
	}
	result, err := run(flag.Arg(0), *scale)
	if err == nil {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		err = out.Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Runner.Worker:", err)
		os.Exit(1)
	}
}

func run(file string, scale float64) (*Result, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	w := &worker{
		scale:    scale,
		cancel:   make(chan struct{}),
		fromJob:  map[string]string{},
		outputs:  map[string]map[string]string{},
		tracking: "github_" + rand.Text(),
	}
	if err := json.Unmarshal(data, &w.job); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	for path, name := range map[*string]string{&w.job.Workspace: "workspace", &w.job.Temp: "temp"} {
		if *path == "" {
			*path = filepath.Join(dir, name)
		}
		if err := os.MkdirAll(*path, 0o755); err != nil {
			return nil, err
		}
	}

	cancels := make(chan os.Signal, 1)
	signal.Notify(cancels, syscall.SIGUSR1)
	go func() {
		for range cancels {
			w.cancelJob()
		}
	}()
	return w.runJob()
}

func (w *worker) runJob() (*Result, error) {
	res := &Result{TrackingID: w.tracking}

	steps := w.job.Steps
	if path := w.runnerEnv("ACTIONS_RUNNER_HOOK_JOB_STARTED"); path != "" {
		steps = append([]Step{{Name: "Set up runner", If: "always()", Run: path, hook: true}}, steps...)
	}
	var posts []Step
	do := func(step Step) error {
		r, err := w.runStep(step)
		if err != nil {
			return fmt.Errorf("step %q: %w", step.Name, err)
		}
		res.Steps = append(res.Steps, r)
		// Registered as soon as main has begun, whatever became of it.
		if step.Post != "" && r.Result != "skipped" {
			posts = append(posts, Step{
				Name: "Post " + step.Name, If: "always()", Env: step.Env,
				Main: step.Post, With: step.With, state: r.State,
			})
		}
		return nil
	}
	for _, step := range steps {
		if err := do(step); err != nil {
			return nil, err
		}
	}
	for len(posts) > 0 {
		last := posts[len(posts)-1]
		posts = posts[:len(posts)-1]
		if err := do(last); err != nil {
			return nil, err
		}
	}
	if path := w.runnerEnv("ACTIONS_RUNNER_HOOK_JOB_COMPLETED"); path != "" {
		// Nothing that a step wrote to GITHUB_ENV reaches this hook.
		clear(w.fromJob)
		if err := do(Step{Name: "Complete runner", If: "always()", Run: path, hook: true}); err != nil {
			return nil, err
		}
	}
	// The value is new with this job, so whoever carries it began in this job.
	for pid, cmdline := range tracked(w.tracking) {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			res.Orphans = append(res.Orphans, cmdline)
		}
	}
	switch {
	case w.cancelled():
		res.Conclusion = "cancelled"
	case w.failed:
		res.Conclusion = "failure"
	default:
		res.Conclusion = "success"
	}
	return res, nil
}

// scaled shortens a time of the real runner.
func (w *worker) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * w.scale)
}
