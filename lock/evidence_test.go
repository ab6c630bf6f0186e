package lock

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/org/hostlock-action/proc"
)

// window is ten seconds of a machine with four CPUs, of which the host used 20
// core-seconds and the command 15.
func window(change ...func(opened, closed *Window, own *Own)) (opened, closed Window, own Own) {
	opened = Window{BootID: "b", TimeNS: 1, Counters: proc.Counters{Mono: time.Hour, Online: "0-3",
		CPU:        &proc.CPUTimes{User: 1000, Nice: 2000, System: 3000, Idle: 4000, IOWait: 5000, IRQ: 6000, SoftIRQ: 7000, Steal: 8000, Guest: 900, GuestNice: 1900},
		PressureUS: new(uint64(500)), Throttle: map[int]uint64{0: 7, 2: 9}}}
	closed = opened
	closed.Mono += 10 * time.Second
	// In user the guest's 300 are counted already.
	closed.CPU = &proc.CPUTimes{User: 2500, Nice: 2100, System: 3300, Idle: 5700, IOWait: 5200, IRQ: 6040, SoftIRQ: 7060, Steal: 8100, Guest: 1200, GuestNice: 1900}
	closed.PressureUS = new(uint64(2_500_500))
	closed.Throttle = map[int]uint64{0: 7, 2: 12}
	own = Own{CPU: new(15 * time.Second), ContextSwitches: new(uint64(42)), MemoryPeakBytes: new(uint64(1 << 20))}
	for _, c := range change {
		c(&opened, &closed, &own)
	}
	return opened, closed, own
}

func fullWindow(at Instant) *Window {
	w, _, _ := window()
	w.At, w.OwnTicks = at, new(uint64(5))
	return &w
}

func fullEvidence() *Evidence {
	o, c, own := window()
	e := Judged(o, c, own, Bounds{2, 0.9, 0.4}, Facts{Scope: Box, Takeover: new(NoTakeover), Survivors: "none"})
	return &e
}

func show(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMeasure(t *testing.T) {
	const (
		whole = `{"window_seconds":10,"own_cpu_seconds":15,"host_cpu_seconds":20,"steal_seconds":1,"own_cores":1.5,"foreign_cores":0.5,"steal_cores":0.1,` +
			`"idle_cores":1.9,"online_cores":4,"resolution_cores":0.026361,"cpus_changed":false,"efficiency":0.75,"efficiency_cores":null,` +
			`"pressure_share":0.25,"throttle_events":3,"context_switches":42,"memory_peak_bytes":1048576}`
		nothing = `{"window_seconds":null,"own_cpu_seconds":null,"host_cpu_seconds":null,"steal_seconds":null,"own_cores":null,"foreign_cores":null,"steal_cores":null,` +
			`"idle_cores":null,"online_cores":null,"resolution_cores":null,"cpus_changed":null,"efficiency":null,"efficiency_cores":null,` +
			`"pressure_share":null,"throttle_events":null,"context_switches":42,"memory_peak_bytes":1048576}`
	)
	with := func(base string, keys ...string) string {
		for i := 0; i < len(keys); i += 2 {
			from := strings.Index(base, `"`+keys[i]+`":`)
			if from < 0 {
				t.Fatal(keys[i])
			}
			from += len(keys[i]) + 3
			to := from + strings.IndexAny(base[from:], ",}")
			base = base[:from] + keys[i+1] + base[to:]
		}
		return base
	}
	noHost := []string{"host_cpu_seconds", "null", "steal_seconds", "null", "steal_cores", "null", "foreign_cores", "null", "idle_cores", "null", "resolution_cores", "null"}
	noOwn := []string{"own_cpu_seconds", "null", "own_cores", "null", "foreign_cores", "null", "efficiency", "null"}
	two := Bounds{ExpectCores: 2}
	tests := []struct {
		name   string
		b      Bounds
		change func(opened, closed *Window, own *Own)
		want   string
	}{
		{"everything", two, nil, whole},
		{"no expectation", Bounds{}, nil, with(whole, "efficiency", "null", "efficiency_cores", "1.5")},
		{"nobody else", two, func(_, _ *Window, own *Own) { *own.CPU = 20 * time.Second },
			with(whole, "own_cpu_seconds", "20", "own_cores", "2", "foreign_cores", "0", "efficiency", "1")},
		{"ticks missed a little of ours", two, func(_, _ *Window, own *Own) { *own.CPU = 20*time.Second + 200*time.Millisecond },
			with(whole, "own_cpu_seconds", "20.2", "own_cores", "2.02", "foreign_cores", "0", "efficiency", "1.01")},
		{"the host did less than we alone", two, func(_, _ *Window, own *Own) { *own.CPU = 24 * time.Second },
			with(whole, "own_cpu_seconds", "24", "own_cores", "2.4", "foreign_cores", "null", "efficiency", "1.2")},
		{"an emulated /proc/stat that counts nothing", two, func(_, c *Window, _ *Own) { c.CPU = new(proc.CPUTimes) }, with(whole, noHost...)},
		{"a counter ran backwards", two, func(_, c *Window, _ *Own) { c.CPU.SoftIRQ = 6999 }, with(whole, noHost...)},
		{"steal ran backwards", two, func(_, c *Window, _ *Own) { c.CPU.Steal = 7999 }, with(whole, noHost...)},
		{"idle stepped back", two, func(_, c *Window, _ *Own) { c.CPU.Idle = 3999 }, with(whole, "idle_cores", "null")},
		{"more than four CPUs can do", two, func(_, c *Window, _ *Own) { c.CPU.User = 7000 }, with(whole, noHost...)},
		{"our own more than four CPUs can do", two, func(_, _ *Window, own *Own) { *own.CPU = 44 * time.Second }, with(whole, noOwn...)},
		{"no /proc/stat before", two, func(o, _ *Window, _ *Own) { o.CPU = nil }, with(whole, noHost...)},
		{"no /proc/stat after", two, func(_, c *Window, _ *Own) { c.CPU = nil }, with(whole, noHost...)},
		{"a CPU went offline", two, func(_, c *Window, _ *Own) { c.Online = "0-2" }, with(whole, "online_cores", "3", "idle_cores", "null", "cpus_changed", "true")},
		{"the same number of other CPUs", two, func(_, c *Window, _ *Own) { c.Online = "0-2,4" }, with(whole, "idle_cores", "null", "cpus_changed", "true")},
		{"nobody knows what was online", two, func(o, c *Window, _ *Own) { o.Online, c.Online = "", "" },
			with(whole, "online_cores", "null", "idle_cores", "null", "cpus_changed", "null")},
		{"what was online at the end is unknown", two, func(_, c *Window, _ *Own) { c.Online = "" },
			with(whole, "idle_cores", "null", "cpus_changed", "null")},
		{"as much as four CPUs can do, by the ticks", two, func(_, c *Window, _ *Own) { c.CPU.User = 4610 },
			with(whole, "host_cpu_seconds", "41.1", "foreign_cores", "2.61", "resolution_cores", "0.036055")},
		{"more than four CPUs can do, with what was stolen", two, func(_, c *Window, _ *Own) { c.CPU.User, c.CPU.Steal = 4650, 8150 }, with(whole, noHost...)},
		{"our own as much as four CPUs can do, by the ticks", two, func(_, _ *Window, own *Own) { *own.CPU = 42*time.Second + 300*time.Millisecond },
			with(whole, "own_cpu_seconds", "42.3", "own_cores", "4.23", "foreign_cores", "null", "efficiency", "2.115")},
		{"nothing of our own", two, func(_, _ *Window, own *Own) { *own.CPU = 0 },
			with(whole, "own_cpu_seconds", "0", "own_cores", "0", "foreign_cores", "2", "efficiency", "0")},
		{"own unknown", two, func(_, _ *Window, own *Own) { own.CPU = nil }, with(whole, noOwn...)},
		{"own negative", two, func(_, _ *Window, own *Own) { *own.CPU = -1 }, with(whole, noOwn...)},
		{"own incomplete", two, func(_, _ *Window, own *Own) { own.Lost = true }, with(whole, noOwn...)},
		{"no pressure before", two, func(o, _ *Window, _ *Own) { o.PressureUS = nil }, with(whole, "pressure_share", "null")},
		{"no pressure after", two, func(_, c *Window, _ *Own) { c.PressureUS = nil }, with(whole, "pressure_share", "null")},
		{"pressure ran backwards", two, func(_, c *Window, _ *Own) { *c.PressureUS = 499 }, with(whole, "pressure_share", "null")},
		{"pressure all the time", two, func(_, c *Window, _ *Own) { *c.PressureUS = 10_001_000 }, with(whole, "pressure_share", "1")},
		{"more pressure than time", two, func(_, c *Window, _ *Own) { *c.PressureUS = 20_000_000 }, with(whole, "pressure_share", "null")},
		{"no throttle counters", two, func(o, c *Window, _ *Own) { o.Throttle, c.Throttle = nil, nil }, with(whole, "throttle_events", "null")},
		{"throttle counters no more", two, func(_, c *Window, _ *Own) { c.Throttle = nil }, with(whole, "throttle_events", "null")},
		{"a package more", two, func(_, c *Window, _ *Own) { c.Throttle[4] = 0 }, with(whole, "throttle_events", "null")},
		{"another CPU speaks for a cool package", two, func(o, c *Window, _ *Own) { o.Throttle, c.Throttle = map[int]uint64{0: 0}, map[int]uint64{1: 5} },
			with(whole, "throttle_events", "null")},
		{"another CPU speaks for a package", two, func(_, c *Window, _ *Own) { c.Throttle = map[int]uint64{0: 7, 3: 9} }, with(whole, "throttle_events", "null")},
		{"throttle ran backwards", two, func(_, c *Window, _ *Own) { c.Throttle[2] = 8 }, with(whole, "throttle_events", "null")},
		{"another boot", two, func(_, c *Window, _ *Own) { c.BootID = "c" }, nothing},
		{"another time namespace", two, func(_, c *Window, _ *Own) { c.TimeNS = 2 }, nothing},
		{"time ran backwards", two, func(_, c *Window, _ *Own) { c.Mono = time.Hour - 1 }, nothing},
		{"no time at all", two, func(_, c *Window, _ *Own) { c.Mono = time.Hour }, nothing},
		{"opened without a clock", two, func(o, _ *Window, _ *Own) { o.Mono = 0 }, nothing},
		{"never opened", two, func(o, _ *Window, _ *Own) { *o = Window{} }, nothing},
		{"just under 50 ms", two, func(o, c *Window, own *Own) {
			c.Mono = o.Mono + 50*time.Millisecond - time.Microsecond
			*own.CPU = 70 * time.Millisecond
		},
			with(nothing, "window_seconds", "0.049999", "own_cpu_seconds", "0.07", "online_cores", "4", "cpus_changed", "false")},
		{"50 ms", two, func(o, c *Window, own *Own) {
			*c = *o
			c.Mono += 50 * time.Millisecond
			*own.CPU = 75 * time.Millisecond
			c.CPU = new(*o.CPU)
			c.CPU.User += 10
		}, with(whole, "window_seconds", "0.05", "own_cpu_seconds", "0.075", "host_cpu_seconds", "0.1", "steal_seconds", "0", "steal_cores", "0", "idle_cores", "0",
			"resolution_cores", "1.116228", "pressure_share", "0", "throttle_events", "0")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, c, own := window()
			if tt.change != nil {
				tt.change(&o, &c, &own)
			}
			if got := show(t, Measure(o, c, own, tt.b)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// good is a run that nothing speaks against.
func good() (Measures, Bounds, Facts) {
	o, c, own := window()
	b := Bounds{ExpectCores: 2, MinEfficiency: 0.7, MaxForeignCores: 0.6}
	return Measure(o, c, own, b), b, Facts{Mode: Exclusive, Scope: Box, Takeover: new(NoTakeover), Survivors: "none", Gate: "satisfied:1<=2"}
}

func words(fs []Finding) string {
	var w []string
	for _, f := range fs {
		w = append(w, f.Reason.String())
	}
	return strings.Join(w, " ")
}

// The table of verdicts, row by row: one thing at a time is not as it should be.
func TestJudge(t *testing.T) {
	tests := []struct {
		name    string
		change  func(m *Measures, b *Bounds, f *Facts)
		verdict Verdict
		reasons string
		says    string
	}{
		{"clean", nil, Clean, "", ""},
		{"only efficiency bounded", func(_ *Measures, b *Bounds, _ *Facts) { b.MaxForeignCores = 0 }, Clean, "", ""},
		{"only foreign cores bounded", func(_ *Measures, b *Bounds, _ *Facts) { b.MinEfficiency = 0 }, Clean, "", ""},
		{"no bound", func(_ *Measures, b *Bounds, _ *Facts) { *b = Bounds{} }, VerdictUnknown, "no_bound", "--max-foreign-cores"},
		{"an expectation is no bound", func(_ *Measures, b *Bounds, _ *Facts) { *b = Bounds{ExpectCores: 2} }, VerdictUnknown, "no_bound", ""},

		{"foreign cores", func(m *Measures, _ *Bounds, _ *Facts) { *m.ForeignCores = 0.83 }, Suspect, "foreign_cores", "Others used 0.83 cores meanwhile, above the bound of 0.6."},
		{"above the bound, within the resolution", func(m *Measures, _ *Bounds, _ *Facts) { *m.ForeignCores = 0.61 }, VerdictUnknown, "too_close", "0.61 ± 0.0264"},
		{"below the bound, within the resolution", func(m *Measures, _ *Bounds, _ *Facts) { *m.ForeignCores = 0.59 }, VerdictUnknown, "too_close", ""},
		{"as near as can be told", func(m *Measures, _ *Bounds, _ *Facts) { *m.ForeignCores = 0.573 }, Clean, "", ""},
		{"foreign cores at the bound, as near as can be told", func(m *Measures, b *Bounds, _ *Facts) {
			*m.ForeignCores, *m.ResolutionCores, b.MaxForeignCores = 0.25, 0.25, 0.5
		}, Clean, "", ""},
		{"above the bound by the resolution", func(m *Measures, b *Bounds, _ *Facts) {
			*m.ForeignCores, *m.ResolutionCores, b.MaxForeignCores = 0.75, 0.25, 0.5
		}, VerdictUnknown, "too_close", ""},
		{"steal at the bound, as near as ticks can tell", func(m *Measures, b *Bounds, _ *Facts) {
			*m.WindowSeconds, *m.StealCores, *m.ForeignCores, *m.ResolutionCores, b.MaxForeignCores = 0.08, 0.75, 0, 0, 0.5 // a tick is 0.125 cores
		}, Clean, "", ""},
		{"steal", func(m *Measures, _ *Bounds, _ *Facts) { *m.StealCores = 0.61 }, Suspect, "steal", "0.61"},
		{"steal, as near as ticks can tell", func(m *Measures, _ *Bounds, _ *Facts) { *m.StealCores = 0.6019 }, Clean, "", ""},
		{"steal, a little nearer", func(m *Measures, _ *Bounds, _ *Facts) { *m.StealCores = 0.6021 }, Suspect, "steal", ""},
		{"steal without a bound on cores", func(m *Measures, b *Bounds, _ *Facts) { *m.StealCores, b.MaxForeignCores = 3, 0 }, Clean, "", ""},
		{"efficiency", func(m *Measures, _ *Bounds, _ *Facts) { *m.Efficiency = 0.69 }, Suspect, "efficiency", "Only 0.69 of the CPU time of 2 cores was used, below the bound of 0.7"},
		{"efficiency at its bound", func(m *Measures, _ *Bounds, _ *Facts) { *m.Efficiency = 0.7 }, Clean, "", ""},
		{"no efficiency asked for", func(m *Measures, b *Bounds, _ *Facts) { *m.Efficiency, b.MinEfficiency = 0.1, 0 }, Clean, "", ""},
		{"cpus changed", func(m *Measures, _ *Bounds, _ *Facts) { *m.CPUsChanged = true }, Suspect, "cpus_changed", ""},
		{"cpus unknown", func(m *Measures, _ *Bounds, _ *Facts) { m.CPUsChanged, m.OnlineCores, m.IdleCores = nil, nil, nil }, Clean, "", ""},
		{"throttled, under pressure: no bound", func(m *Measures, _ *Bounds, _ *Facts) { *m.ThrottleEvents, *m.PressureShare = 1000, 1 }, Clean, "", ""},

		{"unmeasurable", func(m *Measures, _ *Bounds, _ *Facts) { *m = Measures{} }, VerdictUnknown, "unmeasurable", ""},
		{"too short", func(m *Measures, _ *Bounds, _ *Facts) { *m.WindowSeconds = 0.0499 }, VerdictUnknown, "window_too_short", "The window of 49 ms is too short to be measured: it takes at least 50 ms."},
		{"much too short", func(m *Measures, _ *Bounds, _ *Facts) { *m.WindowSeconds = 0.02999 }, VerdictUnknown, "window_too_short", "The window of 29 ms"},
		{"50 ms", func(m *Measures, _ *Bounds, _ *Facts) { *m.WindowSeconds = 0.05 }, Clean, "", ""},
		{"children lost", func(m *Measures, _ *Bounds, f *Facts) {
			f.Lost = true
			m.OwnCPUSeconds, m.OwnCores, m.ForeignCores, m.Efficiency = nil, nil, nil, nil
		}, VerdictUnknown, "children_lost", "SIGCHLD"},
		{"own unknown", func(m *Measures, _ *Bounds, _ *Facts) {
			m.OwnCPUSeconds, m.OwnCores, m.ForeignCores, m.Efficiency = nil, nil, nil, nil
		}, VerdictUnknown, "own_cpu_unknown", ""},
		{"host unknown", func(m *Measures, _ *Bounds, _ *Facts) {
			m.HostCPUSeconds, m.ResolutionCores, m.ForeignCores, m.StealCores = nil, nil, nil, nil
		}, VerdictUnknown, "host_cpu_unknown", ""},
		{"host unknown, not asked for", func(m *Measures, b *Bounds, _ *Facts) {
			m.HostCPUSeconds, m.ResolutionCores, m.ForeignCores, b.MaxForeignCores = nil, nil, nil, 0
		}, Clean, "", ""},
		{"host implausible", func(m *Measures, _ *Bounds, _ *Facts) { m.ForeignCores = nil }, VerdictUnknown, "host_cpu_implausible", ""},

		{"taken over", func(_ *Measures, _ *Bounds, f *Facts) { f.TakenOver = true }, Suspect, "taken_over", ""},
		{"taken over, without a bound", func(_ *Measures, b *Bounds, f *Facts) { f.TakenOver = true; *b = Bounds{} }, Suspect, "taken_over no_bound", ""},
		{"from a dead holder that left nothing", func(_ *Measures, _ *Bounds, f *Facts) { *f.Takeover = StalePID }, Clean, "", ""},
		{"from a living holder", func(_ *Measures, _ *Bounds, f *Facts) { *f.Takeover = TTLExpired }, Suspect, "takeover", "lives"},
		{"from nobody knows whom", func(_ *Measures, _ *Bounds, f *Facts) { *f.Takeover = Unverifiable }, Suspect, "takeover", ""},
		{"takeover not recorded", func(_ *Measures, _ *Bounds, f *Facts) { f.Takeover = nil }, VerdictUnknown, "takeover_unknown", ""},
		{"survivors drained", func(_ *Measures, _ *Bounds, f *Facts) { f.Survivors = "drained:3" }, Clean, "", ""},
		{"survivors idle", func(_ *Measures, _ *Bounds, f *Facts) { f.Survivors = "idle:1" }, Clean, "", ""},
		{"survivors busy", func(_ *Measures, _ *Bounds, f *Facts) { f.Survivors = "busy:2" }, Suspect, "survivors_busy", "2 busy"},
		{"survivors unknown", func(_ *Measures, _ *Bounds, f *Facts) { f.Survivors = "unknown" }, VerdictUnknown, "survivors_unknown", ""},
		{"survivors not recorded", func(_ *Measures, _ *Bounds, f *Facts) { f.Survivors = "" }, VerdictUnknown, "survivors_unknown", ""},
		{"no gate", func(_ *Measures, _ *Bounds, f *Facts) { f.Gate = "none" }, Clean, "", ""},
		{"gate timed out and proceeded", func(_ *Measures, _ *Bounds, f *Facts) { f.Gate = "timed_out_proceeded:7>2" }, Suspect, "gate_proceeded", "7>2"},
		{"a container's lock", func(_ *Measures, _ *Bounds, f *Facts) { f.Scope = Container }, VerdictUnknown, "scope", "container"},
		{"a private lock", func(_ *Measures, _ *Bounds, f *Facts) { f.Scope = Private }, VerdictUnknown, "scope", "private"},
		{"shared, the others bounded", func(_ *Measures, _ *Bounds, f *Facts) { f.Mode = Shared }, Clean, "", ""},
		{"shared, nothing bounded", func(_ *Measures, b *Bounds, f *Facts) { f.Mode, b.MaxForeignCores = Shared, 0 }, VerdictUnknown, "shared", ""},

		{"every reason is told, the grave ones first", func(m *Measures, _ *Bounds, f *Facts) {
			*m.ForeignCores, *m.Efficiency = 2, 0.2
			f.Scope, f.Survivors, f.Takeover = Container, "unknown", new(TTLExpired)
		}, Suspect, "efficiency foreign_cores takeover survivors_unknown scope", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, b, f := good()
			if tt.change != nil {
				tt.change(&m, &b, &f)
			}
			v, reasons := Judge(m, b, f)
			if v != tt.verdict || words(reasons) != tt.reasons {
				t.Errorf("%v (%s), want %v (%s)", v, words(reasons), tt.verdict, tt.reasons)
			}
			if tt.says != "" && !strings.Contains(reasons[0].Text, tt.says) {
				t.Errorf("says %q, want %q in it", reasons[0].Text, tt.says)
			}
			for _, r := range reasons {
				if r.Text == "" || !strings.HasSuffix(r.Text, ".") || r.Text != Flatten(r.Text, MaxText) {
					t.Errorf("%v says %q", r.Reason, r.Text)
				}
			}
		})
	}
}

// A process that ignored SIGCHLD makes the command's own time unknown, and that is
// said as the reason.
func TestJudgedOfLostChildren(t *testing.T) {
	o, c, own := window()
	_, b, f := good()
	for lost, want := range map[bool]string{false: "", true: "children_lost"} {
		own.Lost = lost
		if e := Judged(o, c, own, b, f); words(e.Reasons) != want || (e.Measures.OwnCPUSeconds == nil) != lost || e.Bounds != b {
			t.Errorf("lost %v: %s, %+v", lost, words(e.Reasons), e)
		}
	}
}

func TestNumber(t *testing.T) {
	for in, want := range map[float64]float64{0: 0, 1.5: 1.5, 1.23456789: 1.234568, -0.25: -0.25} {
		if got := number(in); got == nil || *got != want {
			t.Errorf("%v: %v, want %v", in, got, want)
		}
	}
	for _, in := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if got := number(in); got != nil {
			t.Errorf("%v: %v", in, *got)
		}
	}
}

// anyFacts and the like draw what a machine and a hold may present.
func drawCase(t *rapid.T) (opened, closed Window, own Own, b Bounds, f Facts) {
	ticks := rapid.Uint64Range(0, 3000)
	cpu := func(label string) *proc.CPUTimes {
		if rapid.IntRange(0, 9).Draw(t, label+" absent") == 0 {
			return nil
		}
		return &proc.CPUTimes{User: ticks.Draw(t, label), Nice: ticks.Draw(t, label), System: ticks.Draw(t, label), Idle: ticks.Draw(t, label), IOWait: ticks.Draw(t, label),
			IRQ: ticks.Draw(t, label), SoftIRQ: ticks.Draw(t, label), Steal: ticks.Draw(t, label), Guest: ticks.Draw(t, label), GuestNice: ticks.Draw(t, label)}
	}
	opened = Window{BootID: "b", Counters: proc.Counters{Mono: time.Second, CPU: cpu("opened"), Online: rapid.SampledFrom([]string{"0-3", "0-1", ""}).Draw(t, "online")}}
	closed = Window{BootID: "b", Counters: proc.Counters{Mono: time.Second + time.Duration(rapid.Int64Range(-1e6, 60e9).Draw(t, "wall")), CPU: cpu("closed"),
		Online: rapid.SampledFrom([]string{"0-3", "0-1", ""}).Draw(t, "online")}}
	if closed.CPU != nil && opened.CPU != nil && rapid.Bool().Draw(t, "forwards") {
		for _, p := range [][2]*uint64{{&closed.CPU.User, &opened.CPU.User}, {&closed.CPU.Nice, &opened.CPU.Nice}, {&closed.CPU.System, &opened.CPU.System},
			{&closed.CPU.Idle, &opened.CPU.Idle}, {&closed.CPU.IOWait, &opened.CPU.IOWait}, {&closed.CPU.IRQ, &opened.CPU.IRQ}, {&closed.CPU.SoftIRQ, &opened.CPU.SoftIRQ},
			{&closed.CPU.Steal, &opened.CPU.Steal}, {&closed.CPU.Guest, &opened.CPU.Guest}, {&closed.CPU.GuestNice, &opened.CPU.GuestNice}} {
			*p[0] += *p[1]
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "own unknown") > 0 {
		own.CPU = new(time.Duration(rapid.Int64Range(0, 100e9).Draw(t, "own")))
	}
	own.Lost = rapid.IntRange(0, 9).Draw(t, "lost") == 0
	bound := func(label string) float64 {
		return rapid.SampledFrom([]float64{0, 0.05, 0.5, 0.9, 2}).Draw(t, label)
	}
	b = Bounds{ExpectCores: bound("expect"), MinEfficiency: bound("efficiency"), MaxForeignCores: bound("foreign")}
	if b.ExpectCores == 0 {
		b.MinEfficiency = 0
	}
	f = Facts{Mode: rapid.SampledFrom([]Mode{Exclusive, Shared}).Draw(t, "mode"), Scope: rapid.SampledFrom([]Scope{Box, Box, Box, Container, Private}).Draw(t, "scope"),
		Survivors: rapid.SampledFrom([]string{"none", "none", "idle:1", "busy:1", "unknown", ""}).Draw(t, "survivors"),
		Gate:      rapid.SampledFrom([]string{"none", "satisfied:1<=2", "timed_out_proceeded:3>2", ""}).Draw(t, "gate"),
		TakenOver: rapid.IntRange(0, 9).Draw(t, "taken over") == 0}
	if k := rapid.IntRange(-1, 3).Draw(t, "takeover"); k >= 0 {
		f.Takeover = new(Takeover(k))
	}
	return
}

// Whatever the counters are: what is measured is possible, a verdict agrees with
// its reasons, and clean is only what was measured and bounded.
func TestJudgedAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opened, closed, own, b, f := drawCase(t)
		e := Judged(opened, closed, own, b, f)
		m := e.Measures
		for name, v := range map[string]*float64{"own": m.OwnCores, "foreign": m.ForeignCores, "idle": m.IdleCores, "steal": m.StealCores, "efficiency": m.Efficiency,
			"resolution": m.ResolutionCores, "pressure": m.PressureShare} {
			if v != nil && (*v < 0 || math.IsNaN(*v) || math.IsInf(*v, 0)) {
				t.Errorf("%s is %v", name, *v)
			}
			if v != nil && (m.WindowSeconds == nil || *m.WindowSeconds < 0.05) {
				t.Errorf("%s is %v in no window", name, *v)
			}
		}
		if m.ForeignCores != nil {
			if m.OwnCores == nil || m.HostCPUSeconds == nil || own.Lost {
				t.Error("foreign cores without both sides of the difference")
			} else if host := *m.HostCPUSeconds / (closed.Mono - opened.Mono).Seconds(); math.Round((*m.ForeignCores-host)*1e5) > 1 || math.Round((*m.ForeignCores+*m.OwnCores-host)*1e5) < -1 { // 1e-5, without the ulps of the sum
				t.Errorf("own %v and foreign %v of %v cores", *m.OwnCores, *m.ForeignCores, host)
			}
		}
		for _, seen := range []*float64{m.OwnCores, m.ForeignCores, m.StealCores} {
			if n := max(opened.OnlineCores(), closed.OnlineCores()); seen != nil && n > 0 && *seen > float64(n)*1.05 + resolution(float64(n)**m.WindowSeconds) / *m.WindowSeconds + 1 {
				t.Errorf("%v of %d cores", *seen, n)
			}
		}

		worst := Clean
		seen := map[Reason]bool{}
		suspects := 0
		for i, r := range e.Reasons {
			if seen[r.Reason] || r.Reason == ReasonUnknown {
				t.Errorf("%v, again or at all", r.Reason)
			}
			seen[r.Reason] = true
			switch r.Reason.Verdict() {
			case Suspect:
				worst = Suspect
				suspects++
				if suspects != i+1 {
					t.Error("a grave reason behind a light one")
				}
			case VerdictUnknown, Clean:
				if worst == Clean {
					worst = VerdictUnknown
				}
			}
		}
		if e.Verdict != worst {
			t.Errorf("%v over %s", e.Verdict, words(e.Reasons))
		}
		if bounded := b.MinEfficiency > 0 || b.MaxForeignCores > 0; bounded && m.WindowSeconds != nil && *m.WindowSeconds >= 0.05 && seen[ChildrenLost] != own.Lost {
			t.Errorf("children lost %v: %s", own.Lost, words(e.Reasons))
		}
		if e.Verdict != Clean {
			return
		}
		switch {
		case b.MinEfficiency == 0 && b.MaxForeignCores == 0:
			t.Error("clean without a bound")
		case b.MinEfficiency > 0 && (m.Efficiency == nil || *m.Efficiency < b.MinEfficiency):
			t.Errorf("clean, efficiency %v", m.Efficiency)
		case b.MaxForeignCores > 0 && (m.ForeignCores == nil || *m.ForeignCores > b.MaxForeignCores):
			t.Errorf("clean, foreign %v", m.ForeignCores)
		case f.Scope != Box || f.TakenOver || f.Takeover == nil || own.Lost || own.CPU == nil:
			t.Errorf("clean, %+v %+v", f, own)
		}
	})
}

// More foreign load, or less of our own, never makes a verdict better.
func TestJudgeMonotone(t *testing.T) {
	rank := map[Verdict]int{Suspect: 0, VerdictUnknown: 1, Clean: 2}
	rapid.Check(t, func(t *rapid.T) {
		m, b, f := good()
		b.MaxForeignCores = rapid.Float64Range(0.01, 4).Draw(t, "bound")
		b.MinEfficiency = rapid.Float64Range(0.01, 1).Draw(t, "efficiency bound")
		worse := m
		*m.ForeignCores = rapid.Float64Range(0, 4).Draw(t, "foreign")
		*m.Efficiency = rapid.Float64Range(0, 1).Draw(t, "efficiency")
		worse.ForeignCores = number(*m.ForeignCores + rapid.Float64Range(0, 2).Draw(t, "more"))
		worse.Efficiency = number(*m.Efficiency - rapid.Float64Range(0, *m.Efficiency).Draw(t, "less"))
		was, _ := Judge(m, b, f)
		is, _ := Judge(worse, b, f)
		if rank[is] > rank[was] {
			t.Errorf("%v with less load, %v with more", was, is)
		}
	})
}

func TestVerdictText(t *testing.T) {
	if want := []string{"unknown", "clean", "suspect"}; !slices.Equal(verdictText, want) {
		t.Errorf("%v", verdictText)
	}
	if len(reasonText) != int(SharedHold)+1 {
		t.Errorf("%d words for %d reasons", len(reasonText), SharedHold+1)
	}
	for i := range reasonText {
		var r Reason
		if b, err := Reason(i).MarshalText(); err != nil || r.UnmarshalText(b) != nil || r != Reason(i) {
			t.Errorf("%s comes back as %v", b, r)
		}
	}
	var e Evidence
	if err := json.Unmarshal([]byte(`{"verdict":"immaculate","reasons":[{"reason":"full_moon","text":"a\nb"}]}`), &e); err != nil {
		t.Fatalf("another version's: %v", err)
	}
	e.clean()
	if e.Verdict != VerdictUnknown || e.Reasons[0].Reason != ReasonUnknown || e.Reasons[0].Text != "a b" {
		t.Errorf("%+v", e)
	}
}
