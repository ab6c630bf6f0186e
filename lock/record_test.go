package lock

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/org/hostlock-action/proc"
)

const anID = "0123456789abcdef0123456789abcdef"

// fullRecord has every field set.
func fullRecord() *Record {
	at := Instant{UTC: time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC), Boot: 12345}
	later := at.Add(time.Hour)
	kind, n := StalePID, 3
	p := Party{Identity: proc.Identity{PID: 1, PIDNS: 2, PIDFSIno: 3, Start: 4, BootID: "b", TimeNS: 5}, UID: 6, Comm: "bash"}
	q := p
	q.PID = 9
	return &Record{Format: Format, Seq: 7, ID: anID, Mode: Shared, Phase: Held,
		Joins: strings.Repeat("a", 32), Resumes: strings.Repeat("b", 32),
		Owner: "ci/bench:1#2", OwnerDeclared: true, Reason: "nightly ünit", Cmd: "make bench", Worktree: "/w",
		Anchor: p, Body: q, RequestedAt: at, HeldAt: &later, Deadline: &later, TTLSeconds: 60, MaxHoldSeconds: 70,
		Outcome: "acquired_after_reap (stale_pid)", Takeover: &kind, Previous: &Previous{ID: anID, Owner: "x"},
		Gate: "satisfied:1<=2", Survivors: "idle:2", RunnableAtAcquire: &n, LockScope: "box", Version: "v1", LeftRunning: &n, LeftNames: "9 (make, uid 6)", JobEndedAt: &later,
		Job:    map[string]string{"repository": "acme/db"},
		Window: fullWindow(at), Evidence: fullEvidence(), ExitStatus: &n}
}

func encoded(t testing.TB, r *Record, base []byte) []byte {
	t.Helper()
	b, err := r.encode(base)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRecordRoundTrip(t *testing.T) {
	r := fullRecord()
	v := reflect.ValueOf(*r)
	for i := range v.NumField() {
		if f := v.Type().Field(i); v.Field(i).IsZero() && f.Name != "ResumesAnchor" {
			t.Errorf("%s is not in this test", f.Name)
		}
	}
	got, err := decodeRecord(encoded(t, r, nil), r.Seq)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("decoded %+v, %v\nwant    %+v", got, err, r)
	}
}

// A newer minor version's fields survive our rewriting of the record, and its
// values for fields of ours do not.
func TestRecordKeepsUnknownFields(t *testing.T) {
	r := fullRecord()
	base := []byte(`{"format":1,"owner":"old","gate":"requested:1","new_field":{"x":[1,2]},"other":"y"}`)
	r.Gate = ""
	var m map[string]json.RawMessage
	if err := json.Unmarshal(encoded(t, r, base), &m); err != nil {
		t.Fatal(err)
	}
	if string(m["new_field"]) != `{"x":[1,2]}` || string(m["other"]) != `"y"` || string(m["owner"]) != `"ci/bench:1#2"` {
		t.Errorf("new_field %s, other %s, owner %s", m["new_field"], m["other"], m["owner"])
	}
	if g, ok := m["gate"]; ok {
		t.Errorf("a field that we took away came back: %s", g)
	}
	r.Gate = "satisfied:0<=1"
	for _, name := range []string{"Gate", "GATE", "gate"} {
		if got, err := decodeRecord(encoded(t, r, []byte(`{"`+name+`":"requested:1","zz":1}`)), r.Seq); err != nil || got.Gate != r.Gate {
			t.Errorf("over %s: gate %q, %v", name, got.Gate, err)
		}
	}
	r.Gate = ""
	for _, base := range []string{"", "{", "null", "[]", "7"} {
		if got, err := decodeRecord(encoded(t, r, []byte(base)), r.Seq); err != nil || got.ID != r.ID {
			t.Errorf("written over %q: %+v, %v", base, got, err)
		}
	}
}

// Whatever would make the claim about the lock unclear is no record, so that it
// counts as held and later as recoverable, never as free.
func TestRecordRejects(t *testing.T) {
	good := string(encoded(t, fullRecord(), nil))
	with := func(key, value string) string {
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte(good), &m); err != nil {
			t.Fatal(err)
		}
		if delete(m, key); value != "" {
			m[key] = json.RawMessage(value)
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, text := range []string{good, good + strings.Repeat(" ", maxRecord-len(good)),
		with("ttl_s", strconv.FormatInt(maxSeconds, 10)), with("max_hold_s", strconv.FormatInt(maxSeconds, 10))} {
		if _, err := decodeRecord([]byte(text), 7); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, text string }{
		{"empty", ""},
		{"blank", " \n"},
		{"zeroes", strings.Repeat("\x00", 100)},
		{"null", "null"},
		{"a number", "1"},
		{"an array", "[" + good + "]"},
		{"two", good + good},
		{"more behind it", good + "x"},
		{"another format's text", "pid=1\nowner=x\n"},
		{"no format", with("format", "")},
		{"format 0", with("format", "0")},
		{"format -1", with("format", "-1")},
		{"format 2, from the future", with("format", "2")},
		{"format as text", with("format", `"1"`)},
		{"no number", with("seq", "")},
		{"another number", with("seq", "8")},
		{"negative number", with("seq", "-7")},
		{"no id", with("id", "")},
		{"short id", with("id", `"0123"`)},
		{"upper-case id", with("id", `"`+strings.ToUpper(anID)+`"`)},
		{"id with a g", with("id", `"0123456789abcdef0123456789abcdeg"`)},
		{"id with a line", with("id", `"0123456789abcdef0123456789abcde\n"`)},
		{"joins what cannot be", with("joins", `"x"`)},
		{"resumes what cannot be", with("resumes", `"../../etc"`)},
		{"no mode", with("mode", "")},
		{"null mode", with("mode", "null")},
		{"unknown mode", with("mode", `"both"`)},
		{"mode as number", with("mode", "0")},
		{"no state", with("state", "")},
		{"null state", with("state", "null")},
		{"unknown state", with("state", `"FREE"`)},
		{"negative ttl", with("ttl_s", "-1")},
		{"ttl that overflows", with("ttl_s", "9223372036854775807")},
		{"ttl of a second too long", with("ttl_s", strconv.FormatInt(maxSeconds+1, 10))},
		{"max_hold that overflows", with("max_hold_s", "9223372036854775807")},
		{"fraction of a second", with("ttl_s", "0.5")},
		{"unknown takeover", with("takeover", `"gift"`)},
		{"time that is none", with("requested_at", `{"utc":"yesterday"}`)},
		{"anchor that is none", with("anchor", `"1234"`)},
		{"huge", with("extra", `"`+strings.Repeat("x", maxRecord)+`"`)},
		{"a byte too large", good + strings.Repeat(" ", maxRecord-len(good)+1)},
		{"deep", strings.Repeat("[", 20000)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if r, err := decodeRecord([]byte(tt.text), 7); err == nil {
				t.Errorf("taken for %+v", r)
			} else if strings.ContainsAny(err.Error(), "\n\r\x00") {
				t.Errorf("the error is not one line: %q", err)
			}
		})
	}
	for n := range len(good) { // half written
		if r, err := decodeRecord([]byte(good[:n]), 7); err == nil {
			t.Fatalf("cut at %d: taken for %+v", n, r)
		}
	}
}

// What a record does not say is unknown, which is not "none", not zero, and
// not 56 years ago.
func TestRecordAbsentFields(t *testing.T) {
	r, err := decodeRecord([]byte(`{"format":1,"seq":7,"id":"`+anID+`","mode":"exclusive","state":"held"}`), 7)
	if err != nil {
		t.Fatal(err)
	}
	if r.Takeover != nil || r.Gate != "" || r.Survivors != "" || r.RunnableAtAcquire != nil || r.HeldAt != nil || r.Deadline != nil || r.Previous != nil {
		t.Errorf("%+v: something was made up", r)
	}
	if !r.RequestedAt.IsZero() || r.Owner != "" || r.OwnerDeclared {
		t.Errorf("%+v: something was made up", r)
	}
	if r.maxHold() != DefaultMaxHold || r.TTL() != 0 {
		t.Errorf("max hold %v, ttl %v", r.maxHold(), r.TTL())
	}
}

// A peer's words may be anything; what is shown of them is one line.
func TestRecordHostileText(t *testing.T) {
	const evil = "a\nb\r\tc\x1b[31m\x00\u202e\u2028\u2029\ufeff::error::x\xff" + "`|<b>@x"
	r := fullRecord()
	r.Reason, r.Cmd, r.Worktree, r.Anchor.Comm, r.Body.Comm, r.Outcome, r.LeftNames = evil, evil, evil, evil, evil, evil, evil
	r.Gate, r.Survivors, r.LockScope, r.Version = evil, "x::y", "box\nstate=FREE", "v 1"
	r.Previous = &Previous{ID: "x\ny", Owner: "o p"}
	r.Owner, r.OwnerDeclared = "a b", true
	r.Job = map[string]string{"k\n": "v", "run": evil}
	r.Evidence.Reasons[0].Text = evil
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeRecord(b, r.Seq)
	if err != nil {
		t.Fatal(err)
	}
	if got.Owner != "" || got.OwnerDeclared || got.Gate != "" || got.Survivors != "" || got.LockScope != "" || got.Version != "" {
		t.Errorf("%+v: a machine's field kept a peer's words", got)
	}
	if got.Previous.ID != "" || got.Previous.Owner != "" || len(got.Job) != 1 {
		t.Errorf("previous %+v, job %q", got.Previous, got.Job)
	}
	for _, s := range []string{got.Reason, got.Cmd, got.Worktree, got.Anchor.Comm, got.Body.Comm, got.Outcome, got.LeftNames, got.Job["run"], got.Evidence.Reasons[0].Text} {
		if !harmless(s) || s == "" {
			t.Errorf("%q", s)
		}
	}
}

func harmless(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || strings.ContainsRune("\u2028\u2029\u202e\ufeff\u200b", r)
	})
}

func TestFlatten(t *testing.T) {
	long := strings.Repeat("ü", 600)
	for _, tt := range []struct {
		name, in string
		max      int
		want     string
	}{
		{"plain", "make bench", 20, "make bench"},
		{"lines", "a\nb\r\nc", 20, "a b  c"},
		{"escape", "\x1b]0;x\x07y", 20, "]0;x y"},
		{"invalid", "a\xffb", 20, "a\ufffdb"},
		{"bidi", "a\u202eb", 20, "a b"},
		{"just fits", strings.Repeat("x", 20), 20, strings.Repeat("x", 20)},
		{"cut", strings.Repeat("x", 21), 20, strings.Repeat("x", 12) + "…[cut]"},
		{"cut between letters", long, 1024, strings.Repeat("ü", 508) + "…[cut]"},
		{"cut in a letter", "x" + long, 1024, "x" + strings.Repeat("ü", 507) + "…[cut]"},
		{"cut, though blank where it is cut", strings.Repeat("x", 19) + strings.Repeat(" ", 50) + "y", 20, strings.Repeat("x", 12) + "…[cut]"},
		{"blanks before it", strings.Repeat(" ", 50) + "y", 20, "y"},
		{"blank", " \n\t ", 20, ""},
		{"no room for the mark", "bench", 4, "…[cut]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Flatten(tt.in, tt.max); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestOwner(t *testing.T) {
	for _, s := range []string{"a", "Z9_.-/:#", "azAZ09", "acme/db:bench#12", strings.Repeat("x", MaxOwner)} {
		if !ValidOwner(s) || SafeOwner(s) != s {
			t.Errorf("%q is an owner; made safe: %q", s, SafeOwner(s))
		}
	}
	for _, s := range []string{"", "a b", "a=b", "a\n", "ü", "a::b", "$x", "`", "a;b", "%0A", "a@b", "a[b", "a{b", "a\x7f", strings.Repeat("x", MaxOwner+1), "a\x00"} {
		if ValidOwner(s) {
			t.Errorf("%q is no owner", s)
		}
		if !ValidOwner(SafeOwner(s)) {
			t.Errorf("%q is made %q, which is none either", s, SafeOwner(s))
		}
	}
	if !ValidOwner(SafeOwner(":::::")) {
		t.Errorf("colons are made %q", SafeOwner(":::::"))
	}
}

// What a machine wrote stands in the one-line form as it is, or not at all.
func TestToken(t *testing.T) {
	for _, s := range []string{"", "satisfied:1<=2", "timed_out_proceeded:9>2", "v1.2-rc/x", strings.Repeat("x", 64)} {
		if token(s) != s {
			t.Errorf("%q became %q", s, token(s))
		}
	}
	for _, s := range []string{"a b", "a::b", "#1", "ü", "a\n", "a|b", "%0A", strings.Repeat("x", 65)} {
		if token(s) != "" {
			t.Errorf("%q became %q", s, token(s))
		}
	}
}

// A moment is unknown only if neither clock has it.
func TestInstantIsZero(t *testing.T) {
	for _, i := range []Instant{{Boot: 1}, {UTC: time.Unix(0, 0)}} {
		if i.IsZero() {
			t.Errorf("%v is unknown", i)
		}
	}
	if !(Instant{}).IsZero() {
		t.Error("nothing is known")
	}
}

// Whatever tells two processes apart tells two parties apart.
func TestSameParty(t *testing.T) {
	p := fullRecord().Anchor
	q := p
	q.UID, q.Comm, q.TimeNS = 0, "", 0
	if !p.Same(q) {
		t.Error("one process is two")
	}
	for name, change := range map[string]func(*Party){
		"pid": func(p *Party) { p.PID++ }, "start": func(p *Party) { p.Start++ }, "pid namespace": func(p *Party) { p.PIDNS++ },
		"boot": func(p *Party) { p.BootID = "c" }, "inode": func(p *Party) { p.PIDFSIno++ },
	} {
		q := p
		change(&q)
		if p.Same(q) {
			t.Errorf("another %s is the same process", name)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"format":1,"seq":7,"id":"` + anID + `","mode":"exclusive","state":"held"}`))
	f.Add(encoded(f, fullRecord(), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b, 7)
		if err != nil {
			return
		}
		if r.Format != Format || r.Seq != 7 || !hexID(r.ID) || r.Mode > Shared || r.Phase > Held || r.TTL() < 0 || r.maxHold() <= 0 {
			t.Errorf("%q gave %+v", b, r)
		}
		if r.Owner != "" && !ValidOwner(r.Owner) || !harmless(r.Reason) || len(r.Reason) > MaxText || !harmless(r.Cmd) || !harmless(r.Anchor.Comm) || strings.ContainsAny(r.Gate, " \n\t%") {
			t.Errorf("%q gave %+v", b, r)
		}
		again, err := decodeRecord(encoded(t, r, b), 7)
		if err == nil && !reflect.DeepEqual(again, r) {
			t.Errorf("%+v became %+v", r, again)
		}
		if err != nil && len(b) < maxRecord/8 {
			t.Errorf("what was read cannot be read again: %v", err)
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("lock_dir = /run/hostlock\n# x\njob repository=a/b mode=none\ndefault mode=exclusive\n"))
	f.Add([]byte("lock_dir=/a\nlock_dir=/b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseConfig("/etc/x", b)
		switch {
		case err != nil && (c != nil || !harmless(err.Error())):
			t.Errorf("%q: %v, %v", b, c, err)
		case err == nil && c.LockDir != "" && (c.LockDir[0] != '/' || strings.Contains(c.LockDir, "/../")):
			t.Errorf("%q: lock_dir %q", b, c.LockDir)
		}
	})
}

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig("/etc/x", []byte("\n# c\n lock_dir = /run//host lock/ \n\njob a=b\r\n  default mode=none"))
	want := &Config{Path: "/etc/x", LockDir: "/run/host lock", Policy: []ConfigLine{{5, "job a=b"}, {6, "default mode=none"}}}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v, want %+v", c, err, want)
	}
	for _, tt := range []struct{ text, want string }{
		{"lock_dir = run", "/etc/x:1: lock_dir \"run\" is not an absolute path"},
		{"lock_dir =", "/etc/x:1: lock_dir \"\" is not an absolute path"},
		{"\nlock_dir=/a\nlock_dir=/a", "/etc/x:3: lock_dir is set twice"},
		{"lockdir=/a", "/etc/x:1: not understood"},
		{"/run/hostlock", "/etc/x:1: not understood"},
		{"lock_dir", "/etc/x:1: not understood"},
		{"lock_dir /run/hostlock", "/etc/x:1: not understood"},
		{"jobs a=b", "/etc/x:1: not understood"},
	} {
		if c, err := ParseConfig("/etc/x", []byte(tt.text)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%q: %+v, %v, want %s", tt.text, c, err, tt.want)
		}
	}
}
