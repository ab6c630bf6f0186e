//go:build linux

package hook

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/sethvargo/go-githubactions"
)

// What we tell the runner is what the library would, byte for byte.
func TestFilesAreTheLibrarys(t *testing.T) {
	values := append([]string{"", "plain", "100 %", "%0A", "a,b:c"}, payloads...)
	for _, p := range values {
		said := func(tell func(getenv func(string) string, log *bytes.Buffer)) map[string]string {
			dir := t.TempDir()
			env := map[string]string{"INPUT_A_NAME": " " + p + "\t"}
			for _, name := range []string{"ENV", "OUTPUT", "STATE", "PATH", "STEP_SUMMARY"} {
				env["GITHUB_"+name] = filepath.Join(dir, name)
			}
			var log bytes.Buffer
			tell(func(name string) string { return env[name] }, &log)
			got := map[string]string{"log": log.String()}
			for name, path := range env {
				if name == "INPUT_A_NAME" {
					continue
				}
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				got[name] = string(b)
			}
			return got
		}
		ours := said(func(getenv func(string) string, log *bytes.Buffer) {
			f := newFiles(getenv, log)
			for range 2 { // the second is appended
				for _, err := range []error{f.env("A", p), f.output("a-b", p), f.state("s", p), f.path(p), f.summary("| " + p + " |\n")} {
					if err != nil {
						t.Fatal(err)
					}
				}
				f.annotate(p)
			}
			log.WriteString(f.input("a name"))
		})
		theirs := said(func(getenv func(string) string, log *bytes.Buffer) {
			gh := githubactions.New(githubactions.WithGetenv(getenv), githubactions.WithWriter(log))
			for range 2 {
				gh.SetEnv("A", value(p))
				gh.SetOutput("a-b", value(p))
				gh.SaveState("s", value(p))
				gh.AddPath(value(p))
				gh.AddStepSummary("| " + p + " |\n")
				gh.Errorf("%s", message(p))
			}
			log.WriteString(gh.GetInput("a name"))
		})
		if !maps.Equal(ours, theirs) {
			t.Errorf("%q: we say\n%q\nthe library\n%q", p, ours, theirs)
		}
	}
}

// Where the log is closed there is nobody to tell, and nothing else fails.
func TestAnnotateIntoAClosedLog(t *testing.T) {
	newFiles(environment(), closed{}).annotate("nobody reads this")
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, os.ErrClosed }
