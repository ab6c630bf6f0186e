package proc

// A Machine is what does not change while one measures, or should not. What
// cannot be told is empty or nil.
type Machine struct {
	Host     string
	Kernel   string // its release
	CPUModel string
	Governor string // of the online CPUs; "mixed" if they differ
	Turbo    *bool
	// OnlineCores is how many CPUs the machine has online; UsableCores how many
	// cores this process may use of them, by its affinity and its cgroups' limits as
	// far as they can be seen.
	OnlineCores *int
	UsableCores *float64
}
