package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/org/hostlock-action/lock"
)

// Every text that a peer can have in a record, through every output that there
// is: beside a plain text in its place none makes a line more, a key more, or a
// command to whatever reads it.
func TestHostilePayloads(t *testing.T) {
	s := newStage(t)
	a := s.arena(t)
	if r := a.run("run", "--reason", "first", "--", "true"); r.code != 0 {
		t.Fatal(r)
	}
	baseline := a.outputs("plain text")
	shown := 0
	for _, text := range baseline {
		if strings.Contains(text, "plain text") {
			shown++
		}
	}
	if shown < 10 {
		t.Errorf("only %d outputs show a peer's text", shown)
	}
	all := payloads()
	chosen := all
	if !isLong() {
		chosen = nil
		for _, i := range rand.Perm(len(all))[:8] {
			chosen = append(chosen, all[i])
		}
	}
	n := 0
	for _, p := range chosen {
		for name, got := range a.outputs(p) {
			n++
			if problem := obeys(name, got, baseline[name]); problem != "" {
				t.Errorf("%s of %q: %s:\n%q", name, p, problem, got)
			}
		}
	}
	t.Logf("%d payloads, %d outputs", len(chosen), n)
}

// outputs is everything that hostlock prints or writes about a holder and a
// waiter all of whose texts are a peer's.
func (a *arena) outputs(p string) map[string]string {
	a.Helper()
	h := a.holds(a.as(os.Getuid(), nil, holding("--owner", "peer")...))
	records, err := filepath.Glob(a.dir + "/t*.json")
	if err != nil || len(records) != 1 {
		a.Fatal(records, err)
	}
	b, err := os.ReadFile(records[0])
	if err != nil {
		a.Fatal(err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		a.Fatal(err)
	}
	text := func(s string) json.RawMessage { b, _ := json.Marshal(s); return b }
	for _, key := range []string{"reason", "cmd", "worktree", "outcome"} {
		m[key] = text(p)
	}
	// What looks like a value of ours is kept; this never does.
	for _, key := range []string{"gate", "survivors", "lock_scope", "version"} {
		m[key] = text(p + " x")
	}
	m["previous"], _ = json.Marshal(map[string]string{"id": p, "owner": p + " x"})
	m["takeover"] = text("stale_pid")
	m["job"], _ = json.Marshal(map[string]string{"run_url": p, "actor": p, "workflow": p, "repository": p, p + " x": p})
	for _, key := range []string{"anchor", "body"} {
		var party map[string]any
		d := json.NewDecoder(strings.NewReader(string(m[key])))
		d.UseNumber()
		if err := d.Decode(&party); err != nil {
			a.Fatal(err)
		}
		party["comm"] = p
		m[key], _ = json.Marshal(party)
	}
	if b, err = json.Marshal(m); err == nil {
		err = os.WriteFile(records[0], b, 0o644)
	}
	if err != nil {
		a.Fatal(err)
	}
	out := map[string]string{}
	hookTimeout := ""
	add := func(name string, args ...string) answer {
		a.Helper()
		c := a.as(os.Getuid(), nil, args...)
		for _, file := range []string{"ENV", "STEP_SUMMARY", "OUTPUT", "STATE"} {
			path := a.root + "/github_" + file
			_ = os.WriteFile(path, nil, 0o666)
			c.Env = append(c.Env, "GITHUB_"+file+"="+path)
		}
		c.Env = append(c.Env, "HOSTLOCK_HOOK_TIMEOUT="+hookTimeout, "GITHUB_ACTIONS=true", "GITHUB_JOB=mine", "RUNNER_TRACKING_ID=github_mine")
		r := a.ends(c)
		out[name+" stdout"], out[name+" stderr"] = r.out, r.stderr
		if strings.HasPrefix(name, "hook") {
			for _, file := range []string{"ENV", "STEP_SUMMARY", "OUTPUT", "STATE"} {
				b, _ := os.ReadFile(a.root + "/github_" + file)
				out[name+" "+file] = string(b)
			}
		}
		return r
	}
	// On a loaded machine a short patience may end before the first look, with nobody
	// to tell of yet: then it was too short.
	waits := func(add func(seconds string) answer) {
		a.Helper()
		for limit := 0.02; limit < 60; limit *= 4 {
			if r := add(fmt.Sprint(limit)); strings.Contains(r.stderr, "hostlock: waiting: ") {
				return
			}
		}
		a.Error("nobody waits for a holder")
	}
	me := fmt.Sprint(os.Getpid())
	add("status", "status")
	add("status --porcelain", "status", "--porcelain")
	add("status --json", "status", "--json")
	add("provenance", "provenance")
	add("provenance --oneline", "provenance", "--oneline")
	add("provenance --json", "provenance", "--json")
	add("run", "run", "--reason", "x", "--no-wait", "--", "true")
	waits(func(seconds string) answer {
		return add("run --timeout", "run", "--reason", "x", "--timeout", seconds, "--", "true")
	})
	add("acquire", "acquire", "--pid", me)
	waits(func(seconds string) answer { return add("wait", "wait", "--timeout", seconds) })
	add("assert-held", "assert-held")
	add("reap", "reap")
	add("release", "release")
	waits(func(seconds string) answer {
		hookTimeout = seconds
		return add("hook job-started", "hook", "job-started", "--pid", me)
	})
	add("hook job-completed", "hook", "job-completed", "--pid", me)
	h.killed()
	add("status of the dead", "status")
	add("strict-reap", "run", "--reason", "x", "--strict-reap", "--no-wait", "--", "true")
	add("run after the dead", "run", "--reason", "x", "--", "true")
	// The hold that was taken over is the last line but one.
	add("log", "log", "-n", "2")
	add("log --json", "log", "--json", "-n", "2")
	return out
}

// A number changes from one run to the next, and a word with it.
var oneWord = regexp.MustCompile(`^[a-z_]+=[A-Za-z0-9_.:/#@%+<>=-]*$`)

// obeys says what an output has that a plain text would not have put there.
func obeys(name, got, plain string) string {
	// What the hooks say to the runner themselves.
	rest := got
	if strings.HasPrefix(name, "hook") && strings.HasSuffix(name, "stdout") {
		rest = strings.ReplaceAll(strings.Replace(rest, "::error::", "", 1), "::warning::", "")
	}
	switch {
	case !utf8.ValidString(got):
		return "no UTF-8"
	case strings.Contains(rest, "::") || strings.Contains(got, "##["):
		return "a runner's command"
	case strings.Count(got, "\n") != strings.Count(plain, "\n"):
		return fmt.Sprintf("%d lines, and %d of a plain text", strings.Count(got, "\n"), strings.Count(plain, "\n"))
	}
	for _, r := range got {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)) {
			return fmt.Sprintf("a control character %U", r)
		}
	}
	switch {
	case strings.HasSuffix(name, "--json stdout"):
		for line := range strings.Lines(got) {
			if !json.Valid([]byte(line)) {
				return "no JSON"
			}
		}
	case name == "provenance --oneline stdout":
		for _, w := range strings.Fields(got) {
			if !oneWord.MatchString(w) {
				return fmt.Sprintf("the word %q", w)
			}
		}
		if strings.Count(got, " ") != strings.Count(plain, " ") {
			return "another number of words"
		}
	case name == "status --porcelain stdout", name == "provenance stdout", strings.HasSuffix(name, " ENV"):
		if keys(got) != keys(plain) {
			return "other keys: " + keys(got)
		}
	case strings.HasSuffix(name, "STEP_SUMMARY"):
		for _, c := range []string{"<", "|", "`", "](", "@"} {
			if strings.Count(got, c) != strings.Count(plain, c) {
				return fmt.Sprintf("%q %d times, and %d in a plain text", c, strings.Count(got, c), strings.Count(plain, c))
			}
		}
	}
	return ""
}

func keys(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		k, _, _ := strings.Cut(line, "=")
		all = append(all, lock.Flatten(k, 60))
	}
	return strings.Join(all, " ")
}
