module github.com/org/hostlock-action

go 1.26.0

require (
	github.com/spf13/pflag v1.1.0
	golang.org/x/sys v0.50.0
)

require github.com/sethvargo/go-githubactions v1.4.0 // indirect
