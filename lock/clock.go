//go:build linux

package lock

import (
	"time"

	"github.com/org/hostlock-action/proc"
)

func now() Instant {
	return Instant{UTC: time.Now().UTC(), Boot: proc.BootTime()}
}
