package lock

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/org/hostlock-action/proc"
)

// brief is a record of a hold that lasts: what is read by hand.
func brief() *Record {
	r := fullRecord()
	r.Window, r.Evidence = nil, nil
	r.ResumesAnchor = &Party{Identity: proc.Identity{PID: 7, Start: 8}, UID: 9, Comm: "Runner.Worker"}
	return r
}

// What hostlock writes while a hold lasts is read without reflection, and the same.
func TestRecordIsReadByHand(t *testing.T) {
	joined := &Record{Format: Format, Seq: 7, ID: anID, Mode: Shared, Joins: anID, Anchor: Party{Identity: proc.Identity{PID: 1}}, Reason: "q\"\\\u2028\x1b<"}
	for name, r := range map[string]*Record{"brief": brief(), "joined": joined, "bare": {Format: Format, Seq: 7, ID: anID}, "spaced": {Format: Format, Job: map[string]string{"a b": "c d", "": ""}}} {
		b := encoded(t, r, nil)
		var got Record
		if !got.read(b) {
			t.Errorf("%s: not read by hand: %s", name, b)
		} else if !reflect.DeepEqual(&got, r) {
			t.Errorf("%s: read as %+v\nwant %+v", name, &got, r)
		}
	}
}

// A record with more keys than any has is for encoding/json, which does not seek each
// among all.
func TestRecordOfManyKeys(t *testing.T) {
	r := brief()
	r.Job = make(map[string]string)
	for i := range maxKeys {
		r.Job[strconv.Itoa(i)] = "x"
	}
	if !new(Record).read(encoded(t, r, nil)) {
		t.Errorf("with %d keys it is not read by hand", len(r.Job))
	}
	r.Job["more"] = "x"
	b := encoded(t, r, nil)
	if new(Record).read(b) {
		t.Errorf("with %d keys it is read by hand", len(r.Job))
	}
	if got, err := decodeRecord(b, r.Seq); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever a peer writes is read as encoding/json reads it.
func FuzzUnmarshalRecord(f *testing.F) {
	good := string(encoded(f, brief(), nil))
	for _, s := range []string{good, string(encoded(f, fullRecord(), nil)), "", "{}", "null", "[]", good + good, good + "x", good + " \n", "{" + good + "}",
		`{"seq":1,"seq":2}`, `{"Seq":1}`, `{"s\u0065q":1}`, `{"seq":-0}`, `{"seq":1e3}`, `{"seq":18446744073709551615}`, `{"format":9223372036854775808}`, `{"id":null}`, `{"id":7}`,
		`{"anchor":{"pid":1},"anchor":{"uid":2}}`, `{"held_at":{"boot_ns":1},"held_at":{"utc":"2026-01-02T03:04:05Z"}}`, `{"anchor":{"pid":1,"PID":2}}`, `{"anchor":null}`, `{"held_at":null}`, `{"held_at":{}}`, `{"held_at":{"utc":"2026-01-02T03:04:05Z","boot_ns":1}}`,
		`{"held_at":{"utc":"2026\u002d01-02T03:04:05Z"}}`, `{"held_at":{"utc":"2026-01-02T3:04:05Z"}}`, `{"held_at":{"utc":null}}`, `{"job":{}}`, `{"job":{"a":"b","a":"c"}}`, `{"job":{"a":null}}`, `{"job":null}`,
		`{"takeover":"none","takeover":"x"}`, `{"mode":"both"}`, `{"mode":0}`, `{"owner_declared":"true"}`, `{"reason":"\ud800\u0000"}`, "{\"reason\":\"\xff\"}", `{"previous":{"id":"x","more":1}}`, `{"previous":{"more":"id","owner":"x"}}`, `{"held_at":{"x":"utc","2026-01-02T03:04:05Z":"y"}}`, `{"anchor":["pid",1]}`, `{"ttl_s":1.5}`, `{"max_hold_s":9223372036854775808}`, `{"new":{"a":[1]}}`,
		"{\"reason\":\"a\x01\"}", "{\"job\":{\"a\n\":\"b\"}}", `{"job":{"\u0061":"b"}}`, "{\"job\":{\"\xff\":\"b\"}}", `{"reason":\u0061"}`, `{"reason":"\"}`, `{"reason":"\`, `{"reason":"a`, `{"reason":a"}`, `{"held_at":{"utc":2026-01-02T03:04:05Z"}}`, `{"seq":-}`, `{"ttl_s":-0}`, `{"ttl_s":-01}`, `{"ttl_s":+1}`, `{"ttl_s":00}`, `{"owner_declared":falsee}`, `{ "seq": 1 }`, `{,"seq":1}`, `{"seq":1`,
		`{"x":}`, `{"anchor":{"x":}}`, `{"held_at":{"x":}}`, `{"previous":{"x":}}`, `{"reason":"}`, `{"format":01}`,
		`{"seq":1,}`, `{"seq"}`, `{"seq":1 "id":"x"}`, `{"seq":01}`, strings.Repeat(`{"job":`, 50)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, want := Record{Mode: noMode, Phase: noPhase}, Record{Mode: noMode, Phase: noPhase}
		err, werr := got.unmarshal(b), json.Unmarshal(b, &want)
		if (err == nil) != (werr == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as %+v (%v), want %+v (%v)", b, got, err, want, werr)
		}
	})
}
