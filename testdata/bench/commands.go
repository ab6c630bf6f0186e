package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// commands are whole commands, ours and theirs in turns.
func (b *bench) commands() error {
	row := "floor: a Go program that only runs true"
	if b.wanted(row) {
		if err := b.turns(row, 0, func() (time.Duration, error) { return took(exec.Command(b.floor), 0) }, b.plainFlock); err != nil {
			return err
		}
	}
	row = "run -- true"
	if b.wanted(row) {
		if err := b.turns(row, 1.7, func() (time.Duration, error) { return took(b.exclusive("true"), 0) }, b.plainFlock); err != nil {
			return err
		}
	}
	row = "run --shared -- true (flock -s)"
	if b.wanted(row) {
		if err := b.turns(row, 1.7, func() (time.Duration, error) { return took(b.shared("true"), 0) },
			func() (time.Duration, error) { return took(b.flockedShared("true"), 0) }); err != nil {
			return err
		}
	}
	row = "acquire + release"
	if b.wanted(row) {
		if err := b.turns(row, 4, b.acquireAndRelease, b.plainFlock); err != nil {
			return err
		}
	}
	for _, q := range []struct {
		args  []string
		reach float64
		held  bool
	}{{[]string{"status"}, 1.2, false}, {[]string{"provenance", "--oneline"}, 0, true}, {[]string{"assert-held"}, 0, true}} {
		row := strings.Join(q.args, " ")
		if q.held {
			row += ", inside a hold"
		}
		row += " (flock -n FILE true)"
		if !b.wanted(row) {
			continue
		}
		ask := func() (time.Duration, error) { return took(b.command(q.args...), 0) }
		if q.held {
			id, end, err := b.hold()
			if err != nil {
				return err
			}
			defer end()
			ask = func() (time.Duration, error) {
				c := b.command(q.args...)
				c.Env = append(c.Env, "HOSTLOCK_HOLD_ID="+id)
				return took(c, 0)
			}
		}
		if err := b.turns(row, q.reach, ask, func() (time.Duration, error) { return took(exec.Command(b.flock, "-n", b.file, "true"), 0) }); err != nil {
			return err
		}
	}
	row = "hook job-started + job-completed"
	if b.wanted(row) {
		if err := b.turns(row, 0, b.hooks, b.plainFlock); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) plainFlock() (time.Duration, error) { return took(b.flocked("true"), 0) }

// turns samples two ways in turns, after a warm-up, and prints the row.
func (b *bench) turns(row string, reach float64, ours, theirs func() (time.Duration, error)) error {
	var samples [2]sample
	for i := range b.rounds + b.rounds/10 {
		for j, way := range []func() (time.Duration, error){ours, theirs} {
			d, err := way()
			if err != nil {
				return fmt.Errorf("%s: %w", row, err)
			}
			if i >= b.rounds/10 {
				samples[j].add(d)
			}
		}
	}
	compare(row, samples[0], samples[1], reach)
	return nil
}

// hold has the host held by a run, and says by which.
func (b *bench) hold() (id string, end func(), err error) {
	c := b.exclusive("sh", "-c", "echo $HOSTLOCK_HOLD_ID; read x")
	in, err := c.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	text := make([]byte, 64)
	n, err := out.Read(text)
	return strings.TrimSpace(string(text[:n])), func() { in.Close(); _ = c.Wait() }, err
}

// acquireAndRelease is for this process, whose life is the hold's.
func (b *bench) acquireAndRelease() (time.Duration, error) {
	began := time.Now()
	out, err := b.command("acquire", "--reason", "bench", "--pid", strconv.Itoa(os.Getpid())).Output()
	if err != nil {
		return 0, fmt.Errorf("acquire: %w", err)
	}
	_, id, _ := bytes.Cut(out, []byte("hold_id="))
	err = b.command("release", "--hold-id", string(bytes.Fields(id)[0])).Run()
	return time.Since(began), err
}

// hooks are those of a job whose process is a new one each time.
func (b *bench) hooks() (time.Duration, error) {
	worker := filepath.Join(b.dir, "Runner.Worker")
	if err := os.Symlink(b.self, worker); err != nil && !os.IsExist(err) {
		return 0, err
	}
	c := b.command()
	c.Path, c.Args = worker, []string{worker, "-worker", "1", b.hostlock}
	c.Env = append(c.Env, "GITHUB_REPOSITORY=org/repo", "GITHUB_JOB=bench", "GITHUB_RUN_ID=1", "GITHUB_RUN_ATTEMPT=1",
		"GITHUB_ENV="+filepath.Join(b.dir, "env"), "GITHUB_STEP_SUMMARY="+filepath.Join(b.dir, "summary"))
	out, err := c.Output()
	if err != nil {
		return 0, fmt.Errorf("hooks: %w", err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	return time.Duration(ns), err
}

// workerTimes is a process called Runner.Worker that runs a job's two hooks.
func workerTimes(times int, argv []string) error {
	for range times {
		began := time.Now()
		for _, event := range []string{"job-started", "job-completed"} {
			c := exec.Command(argv[0], "hook", event)
			c.Stderr = os.Stderr
			if err := c.Run(); err != nil {
				return fmt.Errorf("hook %s: %w", event, err)
			}
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
	return nil
}
