module github.com/org/hostlock-action

go 1.26.0

// What the runtime would adapt to a container's CPU limit costs a dozen system
// calls at start-up, in front of every benchmark, and two descriptors held open.
godebug (
	containermaxprocs=0
	updatemaxprocs=0
)

require (
	github.com/sethvargo/go-githubactions v1.4.0
	github.com/spf13/pflag v1.1.0
	golang.org/x/sys v0.50.0
)

require (
	golang.org/x/text v0.14.0 // indirect
	golang.org/x/tools v0.26.0 // indirect
)

// For tests only.
require (
	github.com/rogpeppe/go-internal v1.16.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	pgregory.net/rapid v1.3.0
)
