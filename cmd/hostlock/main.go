// Command hostlock takes, holds and explains the benchmark lock of a host that
// several CI runners share. See usage.go for what it says of itself.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// Exit codes. They are an interface.
const (
	exitOK          = 0
	exitUsage       = 1
	exitBusy        = 2
	exitTimeout     = 3
	exitReapRefused = 4
	exitGate        = 5
	exitDoubtful    = 6 // held but not believable, or taken over
	exitUnusable    = 7
	exitUnsupported = 8
	exitNested      = 9
)

// version is set by the linker for a release; a build from source names its
// module version or commit.
var version = ""

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "devel-" + s.Value[:12]
			}
		}
		if v := info.Main.Version; v != "" && v != "(devel)" {
			return v
		}
	}
	return "devel"
}

func main() {
	growStack(false)
	os.Exit(start(os.Args[1:], os.Stdout, os.Stderr))
}

// growStack has the stack grown once, while there is next to nothing on it, to what run
// needs. A goroutine begins with 2 KiB; left alone it grows four times, and each time
// what is on it is moved, and pages are touched that nobody has touched before (newstack
// and stackpoolalloc in runtime/stack.go). A function is given room for its whole frame
// when it is called, whatever of that it then uses.
//
//go:noinline
func growStack(really bool) byte {
	if !really {
		return 0
	}
	var room [20 << 10]byte
	return room[len(os.Args)]
}

// start answers what needs neither a lock nor a platform, and passes the rest
// on. Help comes before any validation.
func start(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(stderr, "hostlock: a command is missing, such as run or status (see hostlock --help)")
		return exitUsage
	}
	switch args[0] {
	case "-h", "--help", "help":
		if len(args) > 1 {
			if text, ok := usages[args[1]]; ok {
				fmt.Fprint(stdout, text)
				return exitOK
			}
		}
		fmt.Fprint(stdout, usage)
		return exitOK
	case "version", "--version":
		switch {
		case wantsHelp(args[1:]):
			fmt.Fprint(stdout, usages["version"])
			return exitOK
		case len(args) > 1:
			fmt.Fprintln(stderr, "hostlock: version takes no arguments (see hostlock version --help)")
			return exitUsage
		}
		fmt.Fprintln(stdout, "hostlock", versionText())
		return exitOK
	}
	if text, ok := usages[args[0]]; ok && wantsHelp(args[1:]) {
		fmt.Fprint(stdout, text)
		return exitOK
	}
	return dispatch(args[0], args[1:])
}

// wantsHelp reports whether help is asked for before the command to run.
func wantsHelp(args []string) bool {
	for _, a := range args {
		switch a {
		case "--":
			return false
		case "-h", "--help":
			return true
		}
	}
	return false
}
