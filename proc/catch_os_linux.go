//go:build linux && (!(amd64 || arm64) || ossignal)

package proc

import (
	"encoding/binary"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// As catch_linux.go, by the library, for machines whose assembly we do not have. (The tag
// ossignal is for tests.)

var (
	heard     chan os.Signal
	hearsOnce sync.Once
)

// Catch has a signal entered in what Caught returns, also one that whoever started us has
// blocked. Until Uncatch it does nothing else, whoever sends it.
func Catch(s unix.Signal) error {
	if s <= 0 || s >= 32 {
		return unix.EINVAL
	}
	hearsOnce.Do(func() {
		// More than there are kinds: the kernel keeps one of each, and whoever
		// empties the channel waits for nothing.
		heard = make(chan os.Signal, 256)
		one := binary.NativeEndian.AppendUint64(nil, 1)
		go func() {
			for s := range heard {
				atomic.OrUint32(&caught, 1<<s.(unix.Signal))
				_, _ = unix.Write(int(atomic.LoadInt32(&caughtWake)), one)
			}
		}()
	})
	signal.Notify(heard, s)
	return nil
}

// Uncatch has a signal do again what it did before Catch.
func Uncatch(s unix.Signal) error {
	signal.Reset(s)
	return nil
}

// Ignored reports whether a signal is ignored, by whoever started us or by us.
func Ignored(s unix.Signal) bool { return signal.Ignored(s) }
