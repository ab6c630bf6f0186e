package lock

import "fmt"

// Mode says whether a ticket tolerates others beside it.
type Mode uint8

const (
	Exclusive Mode = iota // alone on the host: a measurement
	Shared                // beside other shared tickets: builds
)

// Conflicts reports whether two tickets of these modes cannot hold together.
func (m Mode) Conflicts(other Mode) bool { return m == Exclusive || other == Exclusive }

// Phase is what a ticket's own record says of itself. Whether that is still
// true is for judge to say.
type Phase uint8

const (
	Waiting Phase = iota
	Held
)

// State is the answer to "what would acquire meet?". An unusable directory has
// no State: it is an error.
type State uint8

const (
	Free    State = iota // nothing holds; somebody may still wait
	HeldNow              // a live hold within its ttl: acquire waits or is refused
	Stale                // a dead hold that nobody has acknowledged: acquire reaps it
	Expired              // a live hold past its ttl: acquire takes it over, with a warning
)

// Takeover is how a lock changed hands without being released.
type Takeover uint8

const (
	NoTakeover   Takeover = iota
	StalePID              // the anchor was proven dead
	TTLExpired            // the holder lives, past its own ttl: both sets of numbers are suspect
	Unverifiable          // nothing could vouch for the holder during the whole grace
)

// Outcome is how an attempt to take the host ended.
type Outcome uint8

const (
	OutcomeUnknown Outcome = iota
	Acquired
	AcquiredAfterReap // printed with its Takeover
	Joined
	Busy
	TimedOut
	ReapRefused // printed with its Takeover
	GateFailed
	Unusable
)

// Scope is what a lock directory really covers.
type Scope uint8

const (
	Box       Scope = iota // the whole host
	Container              // only what shares our container or private /tmp
	Private                // only who was pointed at the same directory
)

// Source is where the path of the lock directory came from.
type Source uint8

const (
	FromDefault Source = iota
	FromConfig
	FromEnv
	FromFlag
)

// Verdict is whether a measurement can be believed.
type Verdict uint8

const (
	VerdictUnknown Verdict = iota // nobody can say: no bound to judge by, or no measure
	Clean                         // within each bound that was given, and nothing speaks against it
	Suspect                       // something speaks against it
)

// Reason is why a verdict is not clean. Each stands for one verdict: see
// Verdict.
type Reason uint8

const (
	ReasonUnknown Reason = iota // another version's
	// These make a run suspect.
	ForeignCores  // others used more cores than the bound
	StolenCores   // the hypervisor gave others more cores than the bound
	LowEfficiency // the command got less CPU time than it should have used
	TookOver      // from a holder that lives, or of whom nobody knows
	TakenOver     // the host was not ours to the end
	SurvivorsBusy // of a dead holder, beside us
	GateProceeded // the host was not quiet at the start
	CPUsChanged   // went online or offline meanwhile
	// These leave it unknown.
	NoBound         // none was given to judge by
	TooShort        // for the kernel's clock of CPU time
	Unmeasurable    // the window's two ends do not belong together
	ChildrenLost    // something ignored SIGCHLD, and its children's CPU was counted nowhere
	OwnUnknown      // what the command used itself
	HostUnknown     // what the whole host used
	HostImplausible // less than the command alone, or more than there is
	TooClose        // to the bound for the resolution of the counters
	SurvivorsUnknown
	TakeoverUnknown
	NotWholeHost // the lock covers less than the host
	SharedHold   // others could hold beside us, and their load was not bounded
)

// Verdict is what a reason by itself makes of a run.
func (r Reason) Verdict() Verdict {
	if r >= ForeignCores && r <= CPUsChanged {
		return Suspect
	}
	return VerdictUnknown
}

// The text forms. They are an interface of the tool: never renamed.
var (
	modeText     = []string{"exclusive", "shared"}
	phaseText    = []string{"waiting", "held"}
	stateText    = []string{"FREE", "HELD", "STALE", "EXPIRED"}
	takeoverText = []string{"none", "stale_pid", "ttl_expired", "unverifiable"}
	outcomeText  = []string{"unknown", "acquired", "acquired_after_reap", "joined", "busy", "timed_out", "reap_refused", "gate_failed", "unusable"}
	scopeText    = []string{"box", "container", "private"}
	sourceText   = []string{"default", "config", "env", "flag"}
	verdictText  = []string{"unknown", "clean", "suspect"}
	reasonText   = []string{"unknown", "foreign_cores", "steal", "efficiency", "takeover", "taken_over", "survivors_busy", "gate_proceeded", "cpus_changed",
		"no_bound", "window_too_short", "unmeasurable", "children_lost", "own_cpu_unknown", "host_cpu_unknown", "host_cpu_implausible", "too_close",
		"survivors_unknown", "takeover_unknown", "scope", "shared"}
)

func textOf(forms []string, i uint8) string {
	if int(i) < len(forms) {
		return forms[i]
	}
	return "unknown"
}

func parseText(forms []string, what string, text []byte) (uint8, error) {
	for i, f := range forms {
		if f == string(text) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("%q is no %s", Flatten(string(text), 40), what)
}

func (m Mode) String() string     { return textOf(modeText, uint8(m)) }
func (p Phase) String() string    { return textOf(phaseText, uint8(p)) }
func (s State) String() string    { return textOf(stateText, uint8(s)) }
func (k Takeover) String() string { return textOf(takeoverText, uint8(k)) }
func (o Outcome) String() string  { return textOf(outcomeText, uint8(o)) }
func (s Scope) String() string    { return textOf(scopeText, uint8(s)) }
func (s Source) String() string   { return textOf(sourceText, uint8(s)) }
func (v Verdict) String() string  { return textOf(verdictText, uint8(v)) }
func (r Reason) String() string   { return textOf(reasonText, uint8(r)) }

// With is the outcome as it is published: with the kind of the takeover where
// there was one.
func (o Outcome) With(kind Takeover) string {
	if o == AcquiredAfterReap || o == ReapRefused {
		return o.String() + " (" + kind.String() + ")"
	}
	return o.String()
}

func (m Mode) MarshalText() ([]byte, error)     { return []byte(m.String()), nil }
func (p Phase) MarshalText() ([]byte, error)    { return []byte(p.String()), nil }
func (k Takeover) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
func (r Reason) MarshalText() ([]byte, error)  { return []byte(r.String()), nil }

func (m *Mode) UnmarshalText(b []byte) error {
	i, err := parseText(modeText, "mode", b)
	*m = Mode(i)
	return err
}

func (p *Phase) UnmarshalText(b []byte) error {
	i, err := parseText(phaseText, "ticket state", b)
	*p = Phase(i)
	return err
}

func (k *Takeover) UnmarshalText(b []byte) error {
	i, err := parseText(takeoverText, "takeover", b)
	*k = Takeover(i)
	return err
}

// A verdict or a reason that a later version wrote is unknown here. It makes no
// record unreadable: they claim nothing about the lock.
func (v *Verdict) UnmarshalText(b []byte) error {
	i, _ := parseText(verdictText, "verdict", b)
	*v = Verdict(i)
	return nil
}

func (r *Reason) UnmarshalText(b []byte) error {
	i, _ := parseText(reasonText, "reason", b)
	*r = Reason(i)
	return nil
}
