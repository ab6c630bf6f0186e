package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// growth is what a queue costs those who come to it: a look, an arrival that does not
// wait, and the guard under which each arrival is made.
func (b *bench) growth() error {
	type point struct{ status, refused sample }
	points := make(map[int]*point)
	lengths := []int{0, 10, 100, 1000}
	row := "growth"
	if !b.wanted(row) {
		return nil
	}
	fmt.Printf("\n%-52s %18s %18s\n", "cost behind a queue of", "status", "run --no-wait")
	for _, n := range lengths {
		if n > b.most {
			break
		}
		b.anew()
		p := &point{}
		points[n] = p
		guard := make(chan sample)
		var arrived atomic.Bool
		go func() { guard <- b.watchGuard(&arrived) }()
		q, err := lineUp(n, b.exclusive("sh", "-c", "echo; read x"), func() *exec.Cmd { return b.exclusive("true") }, b.tickets)
		arrived.Store(true)
		waits := <-guard
		if err != nil {
			return err
		}
		for range max(20, b.rounds/4) {
			d, err := took(b.command("status"), 0)
			if err == nil {
				p.status.add(d)
				d, err = took(b.command("run", "--reason", "bench", "--no-wait", "--", "true"), 2)
				p.refused.add(d)
			}
			if err != nil {
				return errors.Join(err, q.end())
			}
		}
		fmt.Printf("%-52s %18s %18s %s\n", fmt.Sprintf("    %d waiters", n), p.status, p.refused, growthOf(p.refused, points[0].refused))
		if len(waits) > 0 && n > 0 {
			longest := 0.0
			for _, w := range waits {
				longest = max(longest, w)
			}
			fmt.Printf("%-52s %18s %15.3f ms\n", "    while they came: a wait for the guard, longest", waits, longest/1e6)
		}
		if err := q.end(); err != nil {
			return err
		}
	}
	return nil
}

func growthOf(s, first sample) string {
	return fmt.Sprintf("%7.2f x that of none", s.summary().Center/first.summary().Center)
}

// watchGuard takes the guard once a millisecond, as one more visitor, and returns how
// long that took each time.
func (b *bench) watchGuard(done *atomic.Bool) (waits sample) {
	for ; !done.Load(); time.Sleep(time.Millisecond) {
		f, err := os.OpenFile(filepath.Join(b.lockDir, "guard"), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		began := time.Now()
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX) == nil {
			waits.add(time.Since(began))
		}
		f.Close()
	}
	return waits
}
