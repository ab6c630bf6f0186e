//go:build !linux

package main

import (
	"fmt"
	"os"
)

// dispatch refuses: nothing here can tell whether a holder lives, and a lock
// that cannot is neither busy nor free.
func dispatch(string, []string) int {
	fmt.Fprintln(os.Stderr, "hostlock: this platform is not supported: hostlock needs Linux to tell whether a holder lives")
	return exitUnsupported
}
