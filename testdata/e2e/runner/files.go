package main

import (
	"fmt"
	"os"
	"strings"
)

// maxSummary is the most that the runner uploads for one step, in bytes; it
// drops a longer summary and fails the step.
const maxSummary = 1 << 20

// readFiles takes in what a step wrote for later steps.
func (w *worker) readFiles(step Step, files map[string]string, res *StepResult) {
	read := func(name string) string {
		data, err := os.ReadFile(files[name])
		if err != nil && !os.IsNotExist(err) {
			res.FileErrors = append(res.FileErrors, err.Error())
		}
		return string(data)
	}
	pairs := func(name string) map[string]string {
		kv, err := parsePairs(read(name))
		if err != nil {
			res.FileErrors = append(res.FileErrors, fmt.Sprintf("GITHUB_%s: %v", name, err))
		}
		return kv
	}
	res.Env = pairs("ENV")
	for name, value := range res.Env {
		w.fromJob[name] = value
	}
	for line := range strings.Lines(read("PATH")) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			res.Path = append(res.Path, line)
		}
	}
	w.path = append(w.path, res.Path...)
	if !step.hook {
		res.Outputs, res.State = pairs("OUTPUT"), pairs("STATE")
		w.outputs[step.ID] = res.Outputs
	}
	if res.Summary = read("STEP_SUMMARY"); len(res.Summary) > maxSummary {
		res.FileErrors = append(res.FileErrors, fmt.Sprintf("GITHUB_STEP_SUMMARY: %d bytes", len(res.Summary)))
		res.Summary = ""
	}
}

// parsePairs reads NAME=VALUE lines and NAME<<DELIMITER blocks as
// Runner.Worker/FileCommandManager.cs does: whichever of = and << comes first
// decides.
func parsePairs(text string) (map[string]string, error) {
	pairs := map[string]string{}
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if line == "" {
			continue
		}
		equals, heredoc := strings.Index(line, "="), strings.Index(line, "<<")
		if equals >= 0 && (heredoc < 0 || equals < heredoc) {
			if equals == 0 {
				return pairs, fmt.Errorf("invalid format %q: no name", line)
			}
			pairs[line[:equals]] = line[equals+1:]
			continue
		}
		if heredoc < 0 {
			return pairs, fmt.Errorf("invalid format %q", line)
		}
		name, delimiter := line[:heredoc], line[heredoc+len("<<"):]
		if name == "" || delimiter == "" {
			return pairs, fmt.Errorf("invalid format %q: no name or no delimiter", line)
		}
		var value []string
		for i++; ; i++ {
			if i == len(lines) {
				return pairs, fmt.Errorf("%s: delimiter %q not found", name, delimiter)
			}
			if lines[i] == delimiter {
				break
			}
			value = append(value, lines[i])
		}
		pairs[name] = strings.Join(value, "\n")
	}
	return pairs, nil
}
