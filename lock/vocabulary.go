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

// The text forms. They are an interface of the tool: never renamed.
var (
	modeText     = []string{"exclusive", "shared"}
	phaseText    = []string{"waiting", "held"}
	stateText    = []string{"FREE", "HELD", "STALE", "EXPIRED"}
	takeoverText = []string{"none", "stale_pid", "ttl_expired", "unverifiable"}
	outcomeText  = []string{"unknown", "acquired", "acquired_after_reap", "joined", "busy", "timed_out", "reap_refused", "gate_failed", "unusable"}
	scopeText    = []string{"box", "container", "private"}
	sourceText   = []string{"default", "config", "env", "flag"}
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
