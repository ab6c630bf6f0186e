//go:build linux

package hook

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// measuredHold is a hold of a minute on eight CPUs, of which the job used 2.5 and
// others foreign cores, after it had waited for 72 s and for its gate for 2 s.
func measuredHold(foreign float64, b lock.Bounds) *lock.Record {
	asked := lock.Instant{UTC: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), Boot: time.Hour}
	held := asked.Add(72 * time.Second)
	opened := lock.Window{At: held.Add(2 * time.Second), BootID: "b",
		Counters: proc.Counters{Mono: time.Hour, Online: "0-7", CPU: new(proc.CPUTimes), PressureUS: new(uint64(7))}}
	closed := opened
	closed.Mono += time.Minute
	busy := 150 + 60*foreign
	closed.CPU = &proc.CPUTimes{User: uint64(100 * busy), Idle: uint64(100 * (480 - busy))}
	closed.PressureUS = new(uint64(6_000_007))
	r := &lock.Record{Outcome: "acquired", Owner: "o", RequestedAt: asked, HeldAt: &held, Window: &opened,
		Takeover: new(lock.NoTakeover), Survivors: "none", Gate: "satisfied:1<=2", LockScope: "box"}
	e := lock.Judged(opened, closed, lock.Own{CPU: new(150 * time.Second)}, b, lock.FactsOf(r))
	r.Evidence = &e
	return r
}

func TestPicture(t *testing.T) {
	r := measuredHold(1.75, lock.Bounds{})
	want := "```text\n" +
		"waited    1 min 12 s  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇\n" +
		"gate             2 s                  ▇\n" +
		"measured   1 min 0 s                   ▇▇▇▇▇▇▇▇▇▇▇▇▇\n" +
		"\n" +
		"own       2.50 cores  ▇▇▇▇▇▇▇▇▇·····················\n" +
		"others    1.75 cores  ▇▇▇▇▇▇▇·······················\n" +
		"idle      3.75 cores  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇················\n" +
		"```\n\n"
	if got := picture(r, r.Evidence.Measures); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// Others that hardly did anything did something.
	r = measuredHold(0.01, lock.Bounds{})
	if got := picture(r, r.Evidence.Measures); !strings.Contains(got, "others    0.01 cores  ▇····") {
		t.Errorf("\n%s", got)
	}
	m := r.Evidence.Measures
	m.ForeignCores = nil
	if got := picture(r, m); strings.Contains(got, "own") || !strings.Contains(got, "measured") {
		t.Errorf("without what others used:\n%s", got)
	}
	r.Window = nil
	if got := picture(r, lock.Measures{}); got != "" {
		t.Errorf("of a hold that was not measured:\n%s", got)
	}
}

func TestBarIsAlwaysWhole(t *testing.T) {
	for _, from := range []float64{-1, 0, 0.3, 7, 8, 9} {
		for _, part := range []float64{-1, 0, 1e-9, 0.3, 8, 100, math.NaN()} {
			for _, whole := range []float64{-1, 0, 8} {
				b := bar(from, part, whole, '·')
				if n := len([]rune(b)); n != barWidth {
					t.Errorf("bar(%v, %v, %v) is %d wide: %s", from, part, whole, n, b)
				}
				if shown := strings.Contains(b, "▇"); part > 0 && !shown || !(part > 0) && shown {
					t.Errorf("bar(%v, %v, %v): %s", from, part, whole, b)
				}
			}
		}
	}
}

func TestHeadline(t *testing.T) {
	b := lock.Bounds{MaxForeignCores: 0.5}
	for _, tt := range []struct {
		name string
		r    *lock.Record
		lost string
		want string // begins
		also string
	}{
		{"clean", measuredHold(0.1, b), "", "**clean**: ", ""},
		{"suspect", measuredHold(1.75, b), "", "**suspect**: do not publish these numbers.\n\n- Others used 1.75 cores meanwhile", "put it under the lock, and run this again.\n"},
		{"no bound", measuredHold(0.1, lock.Bounds{}), "", "**unknown**: ", "max-foreign-cores is an input of the action"},
		{"lost", measuredHold(0.1, b), "taken away at noon", "**suspect**: do not publish these numbers.\n\n- taken away at noon. Run this again.\n\n", ""},
		{"lost, never measured", &lock.Record{Takeover: new(lock.NoTakeover), Survivors: "none", LockScope: "box"}, "taken away at noon", "**suspect**: do not publish these numbers.\n\n- taken away at noon. Run this again.\n- No bound", ""},
		{"never measured, and from a living holder", &lock.Record{Takeover: new(lock.TTLExpired), Survivors: "none", LockScope: "box"}, "", "**suspect**: do not publish these numbers.\n\n- The lock was taken from a holder that lives", ""},
	} {
		if got := headline(judged(tt.r, tt.lost)); !strings.HasPrefix(got, tt.want) || !strings.Contains(got, tt.also) {
			t.Errorf("%s:\n%s", tt.name, got)
		}
	}
	if e := judged(measuredHold(1.75, b), "x"); len(e.Reasons) != 2 || e.Reasons[0].Reason != lock.TakenOver {
		t.Errorf("%+v", e.Reasons)
	}
}

func TestEveryReasonHasItsAdvice(t *testing.T) {
	for r := lock.ReasonUnknown + 1; r.String() != lock.ReasonUnknown.String(); r++ {
		if got := advice(r); r != lock.TakeoverUnknown && (got == "" || !strings.HasSuffix(got, ".")) {
			t.Errorf("%v: %q", r, got)
		}
	}
}

func TestBelieve(t *testing.T) {
	b := lock.Bounds{ExpectCores: 5, MinEfficiency: 0.4, MaxForeignCores: 0.5}
	step := func(foreign float64, b lock.Bounds, change func(e *lock.Evidence)) *Step {
		p := &lock.Past{Record: *measuredHold(foreign, b)}
		if change != nil {
			change(p.Evidence)
			p.Evidence.Verdict, p.Evidence.Reasons = lock.Judge(p.Evidence.Measures, b, lock.FactsOf(&p.Record))
		}
		return &Step{Past: p}
	}
	for _, tt := range []struct {
		name string
		s    *Step
		want map[string]string // what is not written is unknown
	}{
		{"clean", step(0.25, b, nil), map[string]string{"verdict": "clean", "reasons": "none", "contended": "no", "foreign-cores": "0.250", "own-cores": "2.500", "efficiency": "0.500", "pressure": "0.100"}},
		{"contended", step(1.75, b, nil), map[string]string{"verdict": "suspect", "reasons": "foreign_cores", "contended": "yes", "foreign-cores": "1.750", "own-cores": "2.500", "efficiency": "0.500", "pressure": "0.100"}},
		{"by another machine", step(0.25, b, func(e *lock.Evidence) { *e.Measures.StealCores = 3 }),
			map[string]string{"verdict": "suspect", "reasons": "steal", "contended": "yes", "foreign-cores": "0.250", "own-cores": "2.500", "efficiency": "0.500", "pressure": "0.100"}},
		{"too close to tell", step(0.5, b, nil), map[string]string{"verdict": "unknown", "reasons": "too_close", "contended": "", "foreign-cores": "0.500", "own-cores": "2.500", "efficiency": "0.500", "pressure": "0.100"}},
		{"two reasons", step(1.75, lock.Bounds{ExpectCores: 5, MinEfficiency: 0.6, MaxForeignCores: 0.5}, nil),
			map[string]string{"verdict": "suspect", "reasons": "efficiency foreign_cores", "contended": "yes", "foreign-cores": "1.750", "own-cores": "2.500", "efficiency": "0.500", "pressure": "0.100"}},
		{"no bound", step(1.75, lock.Bounds{}, nil), map[string]string{"verdict": "unknown", "reasons": "no_bound", "contended": "", "foreign-cores": "1.750", "own-cores": "2.500", "pressure": "0.100"}},
		{"only efficiency bounded", step(1.75, lock.Bounds{ExpectCores: 5, MinEfficiency: 0.4}, nil),
			map[string]string{"verdict": "clean", "reasons": "none", "contended": "", "foreign-cores": "1.750", "own-cores": "2.500", "efficiency": "0.500", "pressure": "0.100"}},
		{"not a run", &Step{}, map[string]string{"verdict": "unknown"}},
	} {
		out := map[string]string{}
		believe(out, tt.s)
		for _, name := range []string{"verdict", "reasons", "contended", "foreign-cores", "own-cores", "efficiency", "pressure"} {
			if out[name] != tt.want[name] {
				t.Errorf("%s: %s=%q, want %q", tt.name, name, out[name], tt.want[name])
			}
		}
	}
}

func TestPolicyBoundsWhatOthersUse(t *testing.T) {
	p, err := policy(t, "job repository=a/b max-foreign-cores=0.5\ndefault mode=shared")
	if err != nil {
		t.Fatal(err)
	}
	if g := p.Decide(environment("GITHUB_REPOSITORY", "a/b")); g.MaxForeignCores != 0.5 {
		t.Errorf("%+v", g)
	}
	for _, v := range []string{"0", "-1", "NaN", "Inf", "some"} {
		if _, err := policy(t, "default max-foreign-cores="+v); err == nil || !strings.Contains(err.Error(), "max-foreign-cores="+v) {
			t.Errorf("%s: %v", v, err)
		}
	}
	c := &Call{Getenv: environment("HOSTLOCK_CONF", t.TempDir()+"/none", "HOSTLOCK_HOOK_MAX_FOREIGN_CORES", "0.25")}
	if b := c.bounds(); b.MaxForeignCores != 0.25 || b.MinEfficiency != 0 {
		t.Errorf("%+v", b)
	}
}
