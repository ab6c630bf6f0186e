//go:build linux

package lock

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Records are written by hand for the sake of start-up; what is written is
// what encoding/json would write, to the byte, for every field there is.
func TestRecordIsWrittenAsEncodingJSONWould(t *testing.T) {
	same := func(t interface{ Errorf(string, ...any) }, r *Record) {
		got, err := r.appendJSON(nil)
		want, werr := json.Marshal(r)
		if err != nil || werr != nil || string(got) != string(want) {
			t.Errorf("wrote %s, %v\nwant  %s, %v", got, err, want, werr)
		}
		p := Past{Record: *r, UID: 5, End: endTakenOver, EndedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), EndedBy: -1, WaitSecs: 0.25, HeldSecs: 12345.000001}
		got, err = p.appendJSON(nil)
		want, werr = json.Marshal(p)
		if err != nil || werr != nil || string(got) != string(want) {
			t.Errorf("wrote %s, %v\nwant  %s, %v", got, err, want, werr)
		}
	}
	same(t, &Record{})
	same(t, fullRecord())
	same(t, &Record{Evidence: &Evidence{}})
	every := []byte("\u2028\u2029\ufffd\U0001f512")
	for c := range 256 {
		every = append(every, byte(c))
	}
	same(t, &Record{Reason: string(every)})
	for _, f := range []float64{1, -1, 1e-5, 1e-6, 9.99e-7, -1e-7, 1e-9, 2.5e-9, 1e-10, 1.05e-100, math.SmallestNonzeroFloat64,
		999999999999999999999, 1e21, -1e21, 1e22, 1.5e100, math.MaxFloat64, math.Copysign(0, -1)} {
		same(t, &Record{Evidence: &Evidence{Measures: Measures{OwnCores: &f}}})
	}
	rapid.Check(t, func(t *rapid.T) {
		r := fullRecord()
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
		r.Reason, r.Cmd, r.Anchor.Comm = text.Draw(t, "reason"), text.Draw(t, "cmd"), text.Draw(t, "comm")
		r.Job = rapid.MapOf(rapid.StringMatching(`[a-z_]*`), text).Draw(t, "job")
		r.Anchor.PIDNS, r.TTLSeconds = rapid.Uint64().Draw(t, "ns"), rapid.Int64().Draw(t, "ttl")
		r.RequestedAt.UTC = r.RequestedAt.UTC.Add(time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "at")))
		opened, closed, own, b, f := drawCase(t)
		e := Judged(opened, closed, own, b, f)
		if rapid.Bool().Draw(t, "odd bounds") {
			e.Bounds.MinEfficiency = rapid.Float64().Draw(t, "bound")
		}
		for i := range e.Reasons {
			e.Reasons[i].Text = text.Draw(t, "text")
		}
		opened.At, opened.Throttle = r.RequestedAt, rapid.MapOf(rapid.IntRange(0, 300), rapid.Uint64()).Draw(t, "throttle")
		r.Window, r.Evidence = &opened, &e
		same(t, r)
	})
	for _, f := range []float64{math.NaN(), math.Inf(1)} {
		r := fullRecord()
		r.Evidence.Bounds.MaxForeignCores = f
		if _, err := r.appendJSON(nil); err == nil {
			t.Errorf("%v was written", f)
		}
		if _, err := r.encode([]byte(`{"a":1}`)); err == nil {
			t.Errorf("%v was written over another", f)
		}
	}
}
