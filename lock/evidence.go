package lock

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/org/hostlock-action/proc"
)

// MinWindow is the shortest window that is measured: the kernel counts the
// host's CPU time in ticks of 10 ms, of which a shorter one holds too few to mean
// anything.
const MinWindow = 50 * time.Millisecond

// A Window is what was counted at one end of a measurement. Between the two
// ends nothing is read: that would perturb what is measured, and a burst between two
// looks could hide, which between two counters it cannot.
type Window struct {
	At     Instant `json:"at"`
	BootID string  `json:"boot_id,omitempty"`
	TimeNS uint64  `json:"time_ns,omitempty"`
	proc.Counters
	// OwnTicks is what a job's process and the children that it had waited for had
	// used until then. A run has none: its command begins with nothing.
	OwnTicks *uint64 `json:"own_ticks,omitempty"`
}

// Own is what the measured command, or the job, used itself between the two
// ends of a window. nil is unknown.
type Own struct {
	CPU             *time.Duration
	ContextSwitches *uint64
	MemoryPeakBytes *uint64
	// Lost: somewhere a process that ignored SIGCHLD had children. What they used
	// was counted towards nobody, so CPU is too little by an unknown amount.
	Lost bool
}

// Measures is what a window looked like as a whole. nil is unknown, never 0.
type Measures struct {
	WindowSeconds  *float64 `json:"window_seconds"`
	OwnCPUSeconds  *float64 `json:"own_cpu_seconds"`  // of the command and all that it started
	HostCPUSeconds *float64 `json:"host_cpu_seconds"` // of everybody: neither idle nor waiting for I/O nor stolen
	StealSeconds   *float64 `json:"steal_seconds"`    // that the hypervisor gave to others
	OwnCores       *float64 `json:"own_cores"`        // average over the window, like all cores here
	ForeignCores   *float64 `json:"foreign_cores"`    // that everybody else used, kernel threads included
	StealCores     *float64 `json:"steal_cores"`
	IdleCores      *float64 `json:"idle_cores"`
	OnlineCores    *int     `json:"online_cores"`
	// ResolutionCores is how far ForeignCores may be off, because the kernel counts
	// the host's CPU time in whole ticks.
	ResolutionCores *float64 `json:"resolution_cores"`
	CPUsChanged     *bool    `json:"cpus_changed"`
	// Efficiency is the share of the expected cores that the command kept busy;
	// EfficiencyCores the cores that it did where nobody said how many to expect.
	Efficiency      *float64 `json:"efficiency"`
	EfficiencyCores *float64 `json:"efficiency_cores"`
	// PressureShare is the share of the window in which something runnable had no
	// CPU: the command's own threads, if they are more than the cores, included.
	PressureShare  *float64 `json:"pressure_share"`
	ThrottleEvents *uint64  `json:"throttle_events"` // thermal, of all packages
	// ContextSwitches are the command's, of its whole tree; MemoryPeakBytes is of
	// its largest process.
	ContextSwitches *uint64 `json:"context_switches"`
	MemoryPeakBytes *uint64 `json:"memory_peak_bytes"`
}

// Bounds is what a caller expects of a run; 0 is not given.
type Bounds struct {
	ExpectCores     float64 `json:"expect_cores,omitempty"`
	MinEfficiency   float64 `json:"min_efficiency,omitempty"` // of ExpectCores
	MaxForeignCores float64 `json:"max_foreign_cores,omitempty"`
}

// Facts is what is known of a hold beside the counters.
type Facts struct {
	Mode      Mode
	Scope     Scope
	Takeover  *Takeover // nil: not recorded
	Survivors string    // as in the record
	Gate      string    // as in the record
	TakenOver bool
	Lost      bool // as in Own
}

// A Finding is one reason and a sentence for people.
type Finding struct {
	Reason Reason `json:"reason"`
	Text   string `json:"text"`
}

// Given reports whether there is anything to judge a measure by.
func (b Bounds) Given() bool { return b.MinEfficiency > 0 || b.MaxForeignCores > 0 }

// Evidence is how a hold's window was measured and judged.
type Evidence struct {
	Measures Measures  `json:"measures"`
	Bounds   Bounds    `json:"bounds"`
	Verdict  Verdict   `json:"verdict"`
	Reasons  []Finding `json:"reasons"`
}

// Measure takes the difference between the two ends of a window. What cannot be
// told from them is nil.
func Measure(opened, closed Window, own Own, b Bounds) Measures {
	m := Measures{ContextSwitches: own.ContextSwitches, MemoryPeakBytes: own.MemoryPeakBytes}
	wall := (closed.Mono - opened.Mono).Seconds()
	if wall <= 0 || opened.Mono <= 0 || opened.BootID != closed.BootID || opened.TimeNS != closed.TimeNS {
		return m
	}
	m.WindowSeconds = number(wall)
	if own.CPU != nil && *own.CPU >= 0 && !own.Lost {
		m.OwnCPUSeconds = number(own.CPU.Seconds())
	}
	if n := cmp.Or(closed.OnlineCores(), opened.OnlineCores()); n > 0 {
		m.OnlineCores = &n
	}
	if opened.Online != "" && closed.Online != "" {
		changed := opened.Online != closed.Online
		m.CPUsChanged = &changed
	}
	if wall < MinWindow.Seconds() {
		return m
	}
	// Nobody has more CPU time than there is.
	most := math.Inf(1)
	if n := max(opened.OnlineCores(), closed.OnlineCores()); n > 0 {
		most = float64(n) * wall
	}
	if m.OwnCPUSeconds != nil && *m.OwnCPUSeconds > most*1.05+resolution(most) {
		m.OwnCPUSeconds = nil
	}
	if m.OwnCPUSeconds != nil {
		used := *m.OwnCPUSeconds / wall
		m.OwnCores = number(used)
		if b.ExpectCores > 0 {
			m.Efficiency = number(used / b.ExpectCores)
		} else {
			m.EfficiencyCores = m.OwnCores
		}
	}
	m.host(opened, closed, wall, most)
	if opened.PressureUS != nil && closed.PressureUS != nil && *closed.PressureUS >= *opened.PressureUS {
		// The two clocks are not read at the same moment.
		if share := float64(*closed.PressureUS-*opened.PressureUS) / 1e6 / wall; share < 1.1 {
			m.PressureShare = number(min(share, 1))
		}
	}
	m.ThrottleEvents = throttled(opened.Throttle, closed.Throttle)
	return m
}

// host measures what the whole machine did.
func (m *Measures) host(opened, closed Window, wall, most float64) {
	if opened.CPU == nil || closed.CPU == nil {
		return
	}
	busyTicks, stealTicks, ok := closed.CPU.Since(*opened.CPU)
	busy, steal := float64(busyTicks)/proc.TicksPerSecond, float64(stealTicks)/proc.TicksPerSecond
	slack := resolution(busy)
	if !ok || busy+steal > most*1.05+slack {
		return
	}
	m.HostCPUSeconds, m.StealSeconds = number(busy), number(steal)
	m.StealCores = number(steal / wall)
	m.ResolutionCores = number(slack / wall)
	if idle, ok := closed.CPU.IdleSince(*opened.CPU); ok && m.CPUsChanged != nil && !*m.CPUsChanged {
		m.IdleCores = number(min(float64(idle)/proc.TicksPerSecond, most) / wall)
	}
	if m.OwnCPUSeconds != nil && !implausible(*m.OwnCPUSeconds, busy) {
		m.ForeignCores = number(max(busy-*m.OwnCPUSeconds, 0) / wall)
	}
}

// resolution is how many seconds the host's CPU time may be off when it reads
// busy. Each of its fields is cut to a tick at both ends; and most kernels charge a
// whole tick to whatever runs when it strikes, so that of n ticks that were partly used
// about √n/2 go to the wrong side. The tick is 10 ms on the slowest kernels.
func resolution(busy float64) float64 {
	return 0.04 + 0.05*math.Sqrt(busy)
}

// implausible: the host as a whole did less than the command alone, by more than
// the ticks explain. Some emulated /proc counts nothing at all.
func implausible(own, host float64) bool {
	return own-host > 0.05*own+2*resolution(own)
}

// throttled sums the events of all packages. The same CPU must speak for each
// at both ends.
func throttled(opened, closed map[int]uint64) *uint64 {
	if len(opened) == 0 || len(opened) != len(closed) {
		return nil
	}
	var sum uint64
	for cpu, before := range opened {
		after, ok := closed[cpu]
		if !ok || after < before {
			return nil
		}
		sum += after - before
	}
	return &sum
}

// number is v with as many digits as it has meaning. What is published is also
// what is judged.
func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	v = math.Round(v*1e6) / 1e6
	return &v
}

// Judge says whether a run can be believed, and if not, every reason why: what
// makes it suspect before what leaves it unknown. A measure without a bound gives no
// verdict. The lock is the primary signal, and this is evidence beside it.
func Judge(m Measures, b Bounds, f Facts) (Verdict, []Finding) {
	var suspect, unknown []Finding
	find := func(r Reason, words ...string) {
		finding := Finding{r, strings.Join(words, "")}
		switch r.Verdict() {
		case Suspect:
			suspect = append(suspect, finding)
		case VerdictUnknown, Clean:
			unknown = append(unknown, finding)
		}
	}
	judgeBounds(m, b, f, find)
	judgeFacts(b, f, find)
	if m.CPUsChanged != nil && *m.CPUsChanged {
		find(CPUsChanged, "CPUs went online or offline meanwhile: this was not one machine from beginning to end.")
	}
	verdict := Clean
	switch {
	case len(suspect) > 0:
		verdict = Suspect
	case len(unknown) > 0:
		verdict = VerdictUnknown
	}
	return verdict, append(suspect, unknown...)
}

// Judged measures a window and judges it.
func Judged(opened, closed Window, own Own, b Bounds, f Facts) Evidence {
	f.Lost = own.Lost
	e := Evidence{Measures: Measure(opened, closed, own, b), Bounds: b}
	e.Verdict, e.Reasons = Judge(e.Measures, b, f)
	return e
}

const takenOverText = "The lock was taken over before the end: somebody else may have measured at the same time."

func judgeBounds(m Measures, b Bounds, f Facts, find func(Reason, ...string)) {
	switch {
	case !b.Given():
		find(NoBound, "No bound was given to judge by: see --max-foreign-cores and --min-efficiency.")
		return
	case m.WindowSeconds == nil:
		find(Unmeasurable, "The counters at the end do not continue those at the beginning.")
		return
	case *m.WindowSeconds < MinWindow.Seconds():
		find(TooShort, "The window of ", milliseconds(*m.WindowSeconds), " ms is too short to be measured: it takes at least ", milliseconds(MinWindow.Seconds()), " ms.")
		return
	case f.Lost:
		find(ChildrenLost, "A process ignored SIGCHLD: what its children used cannot be told from what others did.")
	case m.OwnCPUSeconds == nil:
		find(OwnUnknown, "What the command itself used could not be measured.")
	}
	if m.Efficiency != nil && *m.Efficiency < b.MinEfficiency {
		find(LowEfficiency, "Only ", digits(*m.Efficiency), " of the CPU time of ", digits(b.ExpectCores), " cores was used, below the bound of ", digits(b.MinEfficiency),
			": it had to wait for CPUs, or for something else.")
	}
	if b.MaxForeignCores <= 0 {
		return
	}
	switch {
	case m.ResolutionCores == nil:
		find(HostUnknown, "What the whole host used could not be measured.")
	case m.ForeignCores == nil && m.OwnCPUSeconds != nil:
		find(HostImplausible, "The host claims to have used less than the command alone: its counters are not to be believed.")
	case m.ForeignCores == nil:
	case *m.ForeignCores-*m.ResolutionCores > b.MaxForeignCores:
		find(ForeignCores, "Others used ", digits(*m.ForeignCores), " cores meanwhile, above the bound of ", digits(b.MaxForeignCores), ".")
	case *m.ForeignCores+*m.ResolutionCores > b.MaxForeignCores:
		find(TooClose, "Others used ", digits(*m.ForeignCores), " ± ", digits(*m.ResolutionCores), " cores: in a window this short that cannot be told from the bound of ", digits(b.MaxForeignCores), ".")
	}
	// Of it the kernel keeps an exact sum, which is cut to a tick at both ends.
	if m.StealCores != nil && *m.StealCores-2/(proc.TicksPerSecond**m.WindowSeconds) > b.MaxForeignCores {
		find(StolenCores, "The hypervisor gave ", digits(*m.StealCores), " cores' time to other machines, above the bound of ", digits(b.MaxForeignCores), ".")
	}
}

func judgeFacts(b Bounds, f Facts, find func(Reason, ...string)) {
	if f.TakenOver {
		find(TakenOver, takenOverText)
	}
	if f.Takeover == nil {
		find(TakeoverUnknown, "It is not recorded whether the lock had to be taken from another holder.")
	} else {
		switch *f.Takeover {
		case NoTakeover, StalePID:
		case TTLExpired:
			find(TookOver, "The lock was taken from a holder that lives, past its time limit: it may still have been measuring.")
		case Unverifiable:
			find(TookOver, "The lock was taken from a holder of whom nobody knows whether it lives.")
		}
	}
	switch word, count, _ := strings.Cut(f.Survivors, ":"); word {
	case "none", "drained", "idle":
	case "busy":
		find(SurvivorsBusy, "The last holder died and left ", count, " busy processes, which ran beside this.")
	default:
		find(SurvivorsUnknown, "It is not known whether the last holder left anything running.")
	}
	if strings.HasPrefix(f.Gate, "timed_out_proceeded") {
		find(GateProceeded, "The host was not quiet at the start (", f.Gate, ").")
	}
	if f.Scope != Box {
		find(NotWholeHost, "The lock (", f.Scope.String(), ") does not cover the whole host.")
	}
	if f.Mode == Shared && b.MaxForeignCores <= 0 {
		find(SharedHold, "The hold was shared, and nothing bounded what the others did: see --max-foreign-cores.")
	}
}

func digits(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// milliseconds are whole ones: what is a little too short must not read as enough.
func milliseconds(s float64) string { return strconv.Itoa(int(s * 1000)) }

// clean makes evidence that a peer wrote harmless to show.
func (e *Evidence) clean() {
	for i := range e.Reasons {
		e.Reasons[i].Text = Flatten(e.Reasons[i].Text, MaxText)
	}
}
