package lock

import (
	"slices"
	"testing"
)

// The kind of a takeover is told of what was a takeover, and of nothing else. (Defect 20.)
func TestOutcomeWith(t *testing.T) {
	for o := OutcomeUnknown; o <= Unusable; o++ {
		want := o.String()
		switch o {
		case AcquiredAfterReap:
			want = "acquired_after_reap (ttl_expired)"
		case ReapRefused:
			want = "reap_refused (ttl_expired)"
		}
		if got := o.With(TTLExpired); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What speaks against a run makes it suspect; what is only not known leaves it unknown.
func TestReasonVerdict(t *testing.T) {
	against := []Reason{ForeignCores, StolenCores, LowEfficiency, TookOver, TakenOver, SurvivorsBusy, GateProceeded, CPUsChanged}
	for r := ReasonUnknown; r <= SharedHold+1; r++ {
		want := VerdictUnknown
		if slices.Contains(against, r) {
			want = Suspect
		}
		if got := r.Verdict(); got != want {
			t.Errorf("%v makes a run %v, want %v", r, got, want)
		}
	}
}

// A value without a word, and a word without a value, are unknown.
func TestUnknownWords(t *testing.T) {
	for _, s := range []string{Mode(2).String(), Mode(255).String(), State(4).String(), Reason(len(reasonText)).String()} {
		if s != "unknown" {
			t.Errorf("%q", s)
		}
	}
	v, r := Suspect, ForeignCores
	if err := v.UnmarshalText([]byte("splendid")); err != nil || v != VerdictUnknown {
		t.Errorf("%v, %v", v, err)
	}
	if err := r.UnmarshalText([]byte("sunspots")); err != nil || r != ReasonUnknown {
		t.Errorf("%v, %v", r, err)
	}
	if len(reasonText) != int(SharedHold)+1 || len(outcomeText) != int(Unusable)+1 {
		t.Error("values and words differ in number")
	}
}
