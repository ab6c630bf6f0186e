package proc

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Signals is a set of signal numbers, 1 to 31. Like the kernel it keeps one of each.
type Signals uint32

// Has reports whether a signal is in the set.
func (s Signals) Has(n unix.Signal) bool { return s&(1<<n) != 0 }

// What the handler of Catch works on. It is the process's, as its handlers are.
var (
	caught     uint32      // Signals
	caughtWake int32  = -1 // an eventfd
)

// WakeBy has every signal that is caught make an eventfd readable.
func WakeBy(eventfd int) { atomic.StoreInt32(&caughtWake, int32(eventfd)) }

// Caught is the signals that came since they were last taken.
func Caught() Signals { return Signals(atomic.LoadUint32(&caught)) }

// Take is Caught of some kinds, which are taken out.
func Take(kinds Signals) Signals { return Signals(atomic.AndUint32(&caught, ^uint32(kinds))) & kinds }
