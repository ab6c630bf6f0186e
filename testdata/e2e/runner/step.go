package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

type worker struct {
	job      Job
	scale    float64
	tracking string

	once   sync.Once
	cancel chan struct{}

	failed bool
	// fromJob and path are what hooks and steps wrote to GITHUB_ENV and
	// GITHUB_PATH so far.
	fromJob map[string]string
	path    []string
	outputs map[string]map[string]string
	files   int
}

func (w *worker) cancelJob() { w.once.Do(func() { close(w.cancel) }) }

func (w *worker) cancelled() bool {
	select {
	case <-w.cancel:
		return true
	default:
		return false
	}
}

// wanted evaluates a step's condition, before the step and again on a cancel.
func (w *worker) wanted(step Step) (bool, error) {
	switch step.If {
	case "", "success()":
		return !w.failed && !w.cancelled(), nil
	case "failure()":
		return w.failed && !w.cancelled(), nil
	case "cancelled()":
		return w.cancelled(), nil
	case "always()":
		return true, nil
	}
	return false, fmt.Errorf("unknown condition %q", step.If)
}

func (w *worker) runStep(step Step) (StepResult, error) {
	res := StepResult{Name: step.Name, Result: "skipped"}
	ok, err := w.wanted(step)
	if err != nil || !ok {
		return res, err
	}

	files := map[string]string{}
	for _, name := range []string{"ENV", "PATH", "OUTPUT", "STATE", "STEP_SUMMARY"} {
		w.files++
		files[name] = filepath.Join(w.job.Temp, fmt.Sprintf("command_file_%d_%s", w.files, name))
		if err := os.WriteFile(files[name], nil, 0o644); err != nil {
			return res, err
		}
	}
	args, err := w.command(step)
	if err != nil {
		return res, err
	}
	res.Passed = w.environ(step, files)

	cmd := exec.Command(args[0], args[1:]...)
	for name, value := range res.Passed {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Dir = w.job.Workspace
	cmd.Stdin = strings.NewReader("")
	log := &logger{seen: func(line string) {
		fmt.Fprintln(os.Stderr, line)
		if w.job.CancelOn != "" && strings.Contains(line, w.job.CancelOn) {
			w.cancelJob()
		}
	}}
	start := time.Now()
	finish, err := startLogged(cmd, log)
	if err != nil {
		return res, err
	}
	ended := make(chan struct{})
	go func() {
		res.HeldOpen = finish(w.scaled(5 * time.Second))
		close(ended)
	}()
	stopped := w.supervise(step, cmd.Process, ended, &res)

	res.Millis = time.Since(start).Milliseconds()
	res.Log, res.Commands = log.lines, log.commands
	res.Exit = exitStatus(cmd.ProcessState)
	w.readFiles(step, files, &res)
	switch {
	case stopped && w.cancelled():
		res.Result = "cancelled"
	case res.Exit != 0 || len(res.FileErrors) > 0 || stopped:
		res.Result = "failure"
		w.failed = true
	default:
		res.Result = "success"
	}
	return res, nil
}

// supervise returns when the step's first process has ended and its output is
// closed or given up, and reports whether the step was cancelled. As in
// Runner.Sdk/ProcessInvoker.cs the signals go to that one process.
func (w *worker) supervise(step Step, p *os.Process, ended <-chan struct{}, res *StepResult) (stopped bool) {
	var timeout <-chan time.Time
	if d, err := time.ParseDuration(step.Timeout); err == nil {
		timeout = time.After(d)
	}
	ladder := []struct {
		signal syscall.Signal
		name   string
		after  time.Duration
	}{
		{syscall.SIGINT, "SIGINT", 7500 * time.Millisecond},
		{syscall.SIGTERM, "SIGTERM", 2500 * time.Millisecond},
		{syscall.SIGKILL, "SIGKILL", time.Hour},
	}
	cancel := w.cancel
	var next <-chan time.Time
	climb := func() {
		rung := ladder[0]
		ladder = ladder[1:]
		if p.Signal(rung.signal) == nil {
			res.Signals = append(res.Signals, rung.name)
		}
		next = time.After(w.scaled(rung.after))
	}
	for {
		select {
		case <-ended:
			return stopped
		case <-cancel:
			cancel = nil
			// A condition that still holds keeps the step, and every hook,
			// running: a cancel does not reach them.
			if keep, _ := w.wanted(step); !keep && !stopped {
				stopped = true
				climb()
			}
		case <-timeout:
			if !stopped {
				stopped = true
				climb()
			}
		case <-next:
			if len(ladder) > 0 {
				climb()
			}
		}
	}
}

// startLogged starts cmd with its output going to log. The returned function
// waits for its end and then, no longer than patience, for the end of its
// output; it reports whether something kept that open.
func startLogged(cmd *exec.Cmd, log *logger) (finish func(patience time.Duration) (heldOpen bool), err error) {
	var readers []*os.File
	var copies sync.WaitGroup
	for _, to := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer w.Close()
		*to = w
		readers = append(readers, r)
		copies.Go(func() {
			s := &lines{log: log}
			io.Copy(s, r)
			s.flush()
		})
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func(patience time.Duration) bool {
		cmd.Wait()
		timer := time.AfterFunc(patience, func() {
			for _, r := range readers {
				r.Close()
			}
		})
		copies.Wait()
		heldOpen := !timer.Stop()
		for _, r := range readers {
			r.Close()
		}
		return heldOpen
	}, nil
}

func exitStatus(s *os.ProcessState) int {
	if ws := s.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// command writes the script of a step and returns what runs it.
func (w *worker) command(step Step) ([]string, error) {
	switch {
	case step.Main != "":
		return []string{"node", step.Main}, nil
	case step.hook:
		return []string{"bash", "-e", step.Run}, nil
	}
	w.files++
	script := filepath.Join(w.job.Temp, fmt.Sprintf("step_%d.sh", w.files))
	return []string{"bash", "-e", script}, os.WriteFile(script, []byte(w.expand(step.Run)), 0o755)
}

var expression = regexp.MustCompile(`\$\{\{ *steps\.([\w-]+)\.outputs\.([\w-]+) *\}\}`)

func (w *worker) expand(text string) string {
	return expression.ReplaceAllStringFunc(text, func(e string) string {
		m := expression.FindStringSubmatch(e)
		return w.outputs[m[1]][m[2]]
	})
}

// runnerEnv reads a variable as the runner's own process has it.
func (w *worker) runnerEnv(name string) string {
	if value, ok := w.job.RunnerEnv[name]; ok {
		return value
	}
	return os.Getenv(name)
}

func (w *worker) environ(step Step, files map[string]string) map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	merge := func(from map[string]string) {
		for name, value := range from {
			env[name] = value
		}
	}
	merge(map[string]string{
		"CI": "true", "GITHUB_ACTIONS": "true",
		"GITHUB_ACTION": step.ID, "GITHUB_ACTOR": "octocat", "GITHUB_EVENT_NAME": "push",
		"GITHUB_JOB": "bench", "GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main",
		"GITHUB_REPOSITORY": "acme/db", "GITHUB_REPOSITORY_OWNER": "acme",
		"GITHUB_RUN_ATTEMPT": "1", "GITHUB_RUN_ID": "4711", "GITHUB_RUN_NUMBER": "42",
		"GITHUB_SERVER_URL": "https://github.com", "GITHUB_SHA": strings.Repeat("0", 40),
		"GITHUB_WORKFLOW": "bench", "GITHUB_WORKFLOW_REF": "acme/db/.github/workflows/bench.yml@refs/heads/main",
		"GITHUB_WORKSPACE": w.job.Workspace,
		"RUNNER_ARCH":      "X64", "RUNNER_NAME": "bench-1", "RUNNER_OS": "Linux",
		"RUNNER_TEMP": w.job.Temp, "RUNNER_TOOL_CACHE": filepath.Join(w.job.Temp, "tools"),
		"RUNNER_WORKSPACE": filepath.Dir(w.job.Workspace),
	})
	merge(w.job.RunnerEnv)
	if !step.hook {
		merge(w.job.JobEnv)
	}
	merge(w.fromJob)
	for name, value := range step.Env {
		env[name] = w.expand(value)
	}
	for name, value := range step.With {
		env["INPUT_"+strings.ToUpper(strings.ReplaceAll(name, " ", "_"))] = w.expand(value)
	}
	for name, value := range step.state {
		env["STATE_"+name] = value
	}
	for name, file := range files {
		env["GITHUB_"+name] = file
	}
	if step.hook {
		// Outputs and state do not work in hooks.
		delete(env, "GITHUB_OUTPUT")
		delete(env, "GITHUB_STATE")
	}
	env["RUNNER_TRACKING_ID"] = w.tracking
	for _, dir := range w.path {
		env["PATH"] = dir + string(os.PathListSeparator) + env["PATH"]
	}
	return env
}
