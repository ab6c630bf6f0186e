//go:build linux

package main

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/org/hostlock-action/lock"
)

// payloads are what a peer may type as a reason, a command, or write into a
// record by hand. Read when asked for: this binary is also hostlock itself, and
// every command that the tests run, from other directories.
var payloads = sync.OnceValue(func() []string { return readPayloads("../../testdata/payloads.txt") })

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

// No text makes a line that begins or contains a runner's command.
func TestPlain(t *testing.T) {
	for _, p := range payloads() {
		for _, text := range []string{plain(p), plain("hostlock: " + p), plain(p + p)} {
			if strings.Contains(text, "::") || strings.Contains(text, "##[") {
				t.Errorf("%q became %q", p, text)
			}
			if strings.ContainsAny(text, "\n\r\x1b\x00\a\u2028\u200b") {
				t.Errorf("%q became %q, which is no plain line", p, text)
			}
		}
	}
	if got := plain("acme/db:bench#7 a:b [x] #1"); got != "acme/db:bench#7 a:b [x] #1" {
		t.Errorf("harmless text became %q", got)
	}
}

// JSON says what it said, without a runner's command in it.
func TestDefuseJSON(t *testing.T) {
	for _, p := range payloads() {
		p = strings.ToValidUTF8(p, "\ufffd")
		text, err := object([]lock.Field{{Key: "a", Value: p}, {Key: "b", Value: `\` + p + `\`}})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "::") || strings.Contains(text, "##[") || strings.Count(text, "\n") != 1 {
			t.Errorf("%q became %q", p, text)
		}
		var back map[string]string
		if err := json.Unmarshal([]byte(text), &back); err != nil || back["a"] != p || back["b"] != `\`+p+`\` {
			t.Errorf("%q came back as %q, %v", p, back, err)
		}
	}
}

// A peer's text never reaches the one-line form, and no value there can end
// its word or begin another.
func TestOneLine(t *testing.T) {
	for _, p := range payloads() {
		for _, key := range []string{"lock_dir", "gate", "held_by"} {
			got := line([]lock.Field{{Key: key, Value: "/a b=c/" + p}, {Key: "reason", Value: p, Text: true}, {Key: "end", Value: "x"}})
			fields := strings.Split(got, " ")
			if len(fields) != 2 || !strings.HasPrefix(fields[0], key+"=/a%20b") || fields[1] != "end=x" || strings.Contains(got, "::") || strings.Contains(got, "##[") || strings.Contains(got, "reason") {
				t.Errorf("%q became %q", p, got)
			}
		}
	}
}

func TestSpan(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0 s": -time.Second, "0.2 s": 200 * time.Millisecond, "3 s": 3 * time.Second, "59 s": 59*time.Second + 400*time.Millisecond, "1 min": time.Minute - time.Millisecond,
		"12 min 3 s": 12*time.Minute + 3*time.Second, "1 h": time.Hour + 59*time.Second, "47 h 59 min": 48*time.Hour - time.Second, "2 days 1 h": 49 * time.Hour,
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
	for want, n := range map[string]int{"1st": 1, "2nd": 2, "3rd": 3, "4th": 4, "11th": 11, "12th": 12, "13th": 13, "21st": 21, "111th": 111, "102nd": 102} {
		if got := ordinal(n); got != want {
			t.Errorf("ordinal(%d) = %q, want %q", n, got, want)
		}
	}
}
