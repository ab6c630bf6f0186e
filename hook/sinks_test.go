//go:build linux

package hook

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/org/hostlock-action/lock"
)

// payloads are what a peer may type as a reason, a command, or write into a
// record by hand.
var payloads = readPayloads("../testdata/payloads.txt")

func readPayloads(path string) (all []string) {
	b, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(b)) {
		if line[0] == '#' {
			continue
		}
		p, err := strconv.Unquote(strings.TrimSpace(line))
		if err != nil {
			panic(line)
		}
		all = append(all, p)
	}
	return all
}

func TestNoSinkObeysAPayload(t *testing.T) {
	for _, p := range payloads {
		for _, s := range []struct {
			sink, got string
			never     string   // bytes
			nor       []string // strings
		}{
			{"message", message(p), "\n\r\x1b\x00\x07", []string{"::", "##[", "\u2028", "\u202e"}},
			{"value", value(p), "\n\r\x1b\x00\x07", []string{fileDelimiter, "\u2028", "\u202e"}},
			{"cell", strings.TrimSuffix(strings.TrimPrefix(cell(p), "<code>"), "</code>"), "\n\r\x1b\x00\x07<>|`@*_[]\\~!$:", []string{"www.", "WWW.", "\u2028", "\u202e"}},
			{"JSON", jsonOf(p)[1 : len(jsonOf(p))-1], "\n\r\x1b\x00\x07<>|`'@*[]~!$\";(){}", []string{"::", "##[", fileDelimiter}},
		} {
			if i := strings.IndexAny(s.got, s.never); i >= 0 {
				t.Errorf("%s of %q has %q: %q", s.sink, p, s.got[i], s.got)
			}
			for _, n := range s.nor {
				if strings.Contains(s.got, n) {
					t.Errorf("%s of %q has %q: %q", s.sink, p, n, s.got)
				}
			}
		}
		// An entity is what a cell makes, never what a peer wrote.
		if c := cell(p); strings.Count(c, "&") != strings.Count(c, "&#") {
			t.Errorf("cell of %q: %q", p, c)
		}
		// The same to a reader of JSON, but for what is no text.
		if want := strings.ToValidUTF8(p, "\ufffd"); !strings.ContainsRune(p, 0xff) {
			var got string
			if err := json.Unmarshal([]byte(jsonOf(p)), &got); err != nil || got != want && p != "\xff\xfe" {
				t.Errorf("JSON of %q reads %q, %v", p, got, err)
			}
		}
	}
	if got := message("a: b %"); got != "a: b %" {
		t.Errorf("plain text: %q", got)
	}
}

// TestNoFileObeysAPayload writes them where the runner reads, whole.
func TestNoFileObeysAPayload(t *testing.T) {
	for _, p := range payloads {
		dir := t.TempDir()
		env := environment("GITHUB_OUTPUT", filepath.Join(dir, "o"), "GITHUB_ENV", filepath.Join(dir, "e"), "GITHUB_STEP_SUMMARY", filepath.Join(dir, "s"),
			"GITHUB_STATE", filepath.Join(dir, "st"), "GITHUB_PATH", filepath.Join(dir, "p"))
		var log bytes.Buffer
		f := newFiles(env, &log)
		for _, err := range []error{f.output("x", p), f.env("x", p), f.state("x", p), f.path(p)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f.annotate(p)
		for name, lines := range map[string]int{"o": 3, "e": 3, "st": 3, "p": 1} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || strings.Count(string(b), "\n") != lines {
				t.Errorf("%q: file %s: %q, %v", p, name, b, err)
			}
			if lines == 3 && (strings.Count(string(b), fileDelimiter) != 2 || !strings.HasSuffix(string(b), "\n"+fileDelimiter+"\n")) {
				t.Errorf("%q: file %s: %q", p, name, b)
			}
		}
		if s := log.String(); strings.Count(s, "\n") != 1 || !strings.HasPrefix(s, "::error::") || strings.Count(s, "::") != 2 || strings.Contains(s, "##[") {
			t.Errorf("%q: log %q", p, s)
		}
	}
}

// TestNoPageObeysAPayload renders summaries of a record that a peer filled.
func TestNoPageObeysAPayload(t *testing.T) {
	c := &Call{Getenv: environment(), Host: "h", Outcome: func(error) string { return "timed_out" }}
	rows := func(page string) (n int) {
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "|") {
				n++
				if strings.Count(line, "|") != 3 {
					t.Errorf("row %q", line)
				}
			}
		}
		return n
	}
	at := lock.Instant{UTC: time.Now(), Boot: time.Hour}
	make := func(p string) []string {
		kind := lock.StalePID
		one := 1.0
		r := &lock.Record{Owner: "o", Window: &lock.Window{At: at}, Evidence: &lock.Evidence{Verdict: lock.Suspect, Reasons: []lock.Finding{{Reason: lock.ForeignCores, Text: p}},
			Measures: lock.Measures{WindowSeconds: &one, OwnCores: &one, ForeignCores: &one, OnlineCores: new(int)}}, Reason: p, Cmd: p, Worktree: p, Gate: p, Survivors: p, Takeover: &kind, Previous: &lock.Previous{Owner: p},
			HeldAt: &at, Job: map[string]string{"run_url": p, "actor": p}, LockScope: "box"}
		tk := &lock.Ticket{Record: r, UID: 7}
		err := &lock.TimeoutError{Blocker: tk, Survivors: []string{p}}
		return []string{c.account(tk, nil, 1, ""), c.refusal("no", err, explain(err, "x"))}
	}
	plain := make("plain")
	for _, p := range payloads {
		for i, page := range make(p) {
			prose, _, _ := strings.Cut(page, "<details>") // below it is a fence
			if rows(page) != rows(plain[i]) || strings.Count(page, "<") != strings.Count(plain[i], "<") || strings.Count(page, "\n") != strings.Count(plain[i], "\n") ||
				strings.Count(page, "```") != strings.Count(plain[i], "```") || strings.ContainsAny(page, "@\x1b\r") || strings.Contains(strings.ToLower(prose), "www.") {
				t.Errorf("%q makes\n%s", p, page)
			}
		}
	}
	// Only what looks like a run is a link.
	for url, want := range map[string]bool{
		"https://github.com/acme/db/actions/runs/1/attempts/2": true, "https://example.com/": false, "javascript:x/actions/runs/": false,
		"https://x/actions/runs/1)](y": false, "https://x/actions/runs/1\" onclick=": false, "https://a@b/actions/runs/1": false,
	} {
		if got := strings.HasPrefix(link(url), "<https"); got != want {
			t.Errorf("%q: %q", url, link(url))
		}
	}
}

// What cannot be written is an error that names the variable.
func TestUnwritableFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	f := newFiles(environment("GITHUB_ENV", dir), os.Stdout)
	if err := f.env("x", "y"); err == nil || !strings.Contains(err.Error(), "$GITHUB_ENV") {
		t.Errorf("error %v", err)
	}
	// To open a FIFO would wait for whoever reads it.
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newFiles(environment("GITHUB_OUTPUT", fifo), os.Stdout).output("x", "y"); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a FIFO: error %v", err)
	}
	if err := newFiles(environment("GITHUB_OUTPUT", os.DevNull), os.Stdout).output("x", "y"); err != nil {
		t.Errorf("%s: %v", os.DevNull, err)
	}
	if err := f.output("x", "y"); err != nil {
		t.Errorf("a file that the runner did not name: %v", err)
	}
}
