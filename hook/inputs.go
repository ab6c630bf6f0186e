package hook

import (
	"fmt"
	"strings"
)

// Inputs are what the author of a workflow asked of the action.
type Inputs struct {
	Run, Shell, Dir string
	// Flags are the rest, as flags of `hostlock run` and `acquire`: both check
	// them, so that an input is refused for the same reasons as a flag.
	Flags   []string
	Summary bool
}

// valueInputs are inputs that are flags of the same name.
var valueInputs = []string{"owner", "reason", "timeout", "gate", "gate-cpu", "gate-timeout", "on-gate-timeout", "lock-dir"}

// runInputs are those that do nothing without run.
var runInputs = []string{"expect-cores", "min-efficiency", "max-foreign-cores"}

// ReadInputs reads the inputs of action.yml. get returns an input, empty if it
// was not given.
func ReadInputs(get func(name string) string) (in Inputs, err error) {
	in = Inputs{Run: get("run"), Shell: get("shell"), Dir: get("working-directory"), Summary: true}
	for _, name := range valueInputs {
		if v := get(name); v != "" {
			in.Flags = append(in.Flags, "--"+name+"="+v)
		}
	}
	switch mode := get("mode"); mode {
	case "", "exclusive":
	case "shared":
		in.Flags = append(in.Flags, "--shared")
	default:
		return in, fmt.Errorf("mode is exclusive or shared, not %q", mode)
	}
	strict := false
	for name, to := range map[string]*bool{"strict-reap": &strict, "summary": &in.Summary} {
		switch v := get(name); v {
		case "":
		case "true", "false":
			*to = v == "true"
		default:
			return in, fmt.Errorf("%s is true or false, not %q", name, v)
		}
	}
	if strict {
		in.Flags = append(in.Flags, "--strict-reap")
	}
	for _, name := range runInputs {
		if v := get(name); v != "" && in.Run != "" {
			in.Flags = append(in.Flags, "--"+name+"="+v)
		} else if v != "" {
			return in, fmt.Errorf("%s does nothing without run", name)
		}
	}
	if in.Run == "" && in.Dir != "" {
		return in, fmt.Errorf("working-directory does nothing without run")
	}
	return in, nil
}

// A Script is a step's script made into a command.
type Script struct {
	Extension, Text string
	// Command is what runs it; the word {0} is the file.
	Command []string
}

// NewScript is a script for a shell as `shell:` of a workflow step names it, or
// for a template with {0} (docs.github.com, "workflow syntax", defaults.run.shell).
func NewScript(shell, text string) (Script, error) {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r\n", "\n"), "\n") + "\n"
	s := Script{Text: text}
	switch shell {
	case "", "bash":
		s.Extension, s.Command = ".sh", []string{"bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"}
	case "sh":
		s.Extension, s.Command = ".sh", []string{"sh", "-e", "{0}"}
	case "python":
		s.Extension, s.Command = ".py", []string{"python", "{0}"}
	case "pwsh":
		s.Extension, s.Command = ".ps1", []string{"pwsh", "-command", ". '{0}'"}
		s.Text = "$ErrorActionPreference = 'stop'\n" + text + "if ((Test-Path -LiteralPath variable:\\LASTEXITCODE)) { exit $LASTEXITCODE }\n"
	default:
		var err error
		if s.Command, err = words(shell); err != nil {
			return s, err
		}
		if !strings.Contains(shell, "{0}") || len(s.Command) < 2 {
			return s, fmt.Errorf("shell is bash, sh, python, pwsh or a command with {0} for the script, not %q", shell)
		}
	}
	return s, nil
}

// Argv is the command with the script's file in its place.
func (s Script) Argv(file string) []string {
	argv := make([]string, len(s.Command))
	for i, w := range s.Command {
		argv[i] = strings.ReplaceAll(w, "{0}", file)
	}
	return argv
}

// Title is the first line that says anything, for those who wait.
func (s Script) Title() string {
	for line := range strings.Lines(s.Text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return line
		}
	}
	return ""
}

// words splits a command at its spaces, outside of quotes.
func words(s string) ([]string, error) {
	var out []string
	var word strings.Builder
	var quote byte
	inside := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inside = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			if inside {
				out = append(out, word.String())
				word.Reset()
			}
			inside = false
		default:
			word.WriteByte(c)
			inside = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("shell has an unfinished quote: %q", s)
	}
	if inside {
		out = append(out, word.String())
	}
	return out, nil
}
