package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A queue is a holder, and waiters behind it.
type queue struct {
	holder  *exec.Cmd
	in      io.WriteCloser // its end lets the holder go
	out     *bufio.Reader  // of the holder
	waiters []*exec.Cmd
	said    *os.File // what the waiters' commands say
}

// lineUp starts a holder and n waiters, and returns when all of them wait.
func lineUp(n int, holder *exec.Cmd, waiter func() *exec.Cmd, waiting func() int) (q *queue, err error) {
	q = &queue{holder: holder}
	if q.in, err = holder.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		return nil, err
	}
	q.out = bufio.NewReader(out)
	if err := holder.Start(); err != nil {
		return nil, err
	}
	if _, err := q.out.ReadString('\n'); err != nil {
		return nil, fmt.Errorf("the holder: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	q.said = r
	for i := range n {
		c := waiter()
		c.Stdout = w
		if err := c.Start(); err != nil {
			return nil, errors.Join(err, q.end())
		}
		q.waiters = append(q.waiters, c)
		// In order, and a few at a time: a machine that starts a thousand at once
		// is measured by that.
		if err := await(func() bool { return waiting() > i-8 }); err != nil {
			return nil, errors.Join(err, q.end())
		}
	}
	if err := await(func() bool { return waiting() >= n }); err != nil {
		return nil, errors.Join(err, q.end())
	}
	time.Sleep(500 * time.Millisecond) // for their threads to have gone to sleep
	return q, nil
}

func await(there func() bool) error {
	for end := time.Now().Add(2 * time.Minute); !there(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("not all wait after two minutes")
		}
	}
	return nil
}

// end kills what is left.
func (q *queue) end() error {
	for _, c := range q.waiters {
		_ = c.Process.Kill()
	}
	q.in.Close()
	_ = q.holder.Wait()
	for _, c := range q.waiters {
		_ = c.Wait()
	}
	return q.said.Close()
}

// tickets counts the tickets that wait behind one.
func (b *bench) tickets() int {
	names, _ := filepath.Glob(filepath.Join(b.lockDir, "*.json"))
	return len(names) - 1
}

// flockWaiters counts who waits for a file's lock (proc_locks(5): "->"). A follower of
// ours does too, so it is asked while no hostlock waits.
func (b *bench) flockWaiters() int {
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	return bytes.Count(table, []byte("-> FLOCK"))
}

// handOver ends the holder and returns the times from one waiter's command to the next,
// and that from the holder's end until all had started.
func (q *queue) handOver() (gaps sample, all time.Duration, err error) {
	began := time.Now()
	q.in.Close()
	var starts []time.Time
	lines := bufio.NewReader(q.said)
	for {
		if _, err := lines.ReadString('\n'); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, 0, err
		}
		starts = append(starts, time.Now())
	}
	_ = q.holder.Wait() // read x at the end of file is 1
	for _, c := range q.waiters {
		if err := c.Wait(); err != nil {
			return nil, 0, fmt.Errorf("a waiter: %w", err)
		}
	}
	if len(starts) != len(q.waiters) {
		return nil, 0, fmt.Errorf("%d of %d commands started", len(starts), len(q.waiters))
	}
	for i := 1; i < len(starts); i++ {
		gaps.add(starts[i].Sub(starts[i-1]))
	}
	return gaps, starts[len(starts)-1].Sub(began), q.said.Close()
}

// handOvers are from the start of one waiter's command to that of the next, and for
// shared waiters, who start together, from the end of the exclusive holder until all of
// them run. Short queues are lined up again and again.
func (b *bench) handOvers() error {
	var hundred float64
	for _, n := range []int{2, 10, 100, 1000} {
		for _, mode := range []struct {
			name         string
			ours, theirs wrapper
		}{{"exclusive", b.exclusive, b.flocked}, {"shared", b.shared, b.flockedShared}} {
			shared := mode.name == "shared"
			row, times := fmt.Sprintf("hand-over, %d waiters", n), max(1, min(40, b.rounds/n))
			if shared {
				row, times = fmt.Sprintf("until %d shared waiters run", n), max(6, min(20, b.rounds/n))
			}
			// Each shared arrival reads the records of all who share, which is the square
			// of their number: a thousand of them are nobody's.
			if n > b.most || shared && n > 100 || !b.wanted(row) {
				continue
			}
			var samples [2]sample
			for range times {
				for i, w := range []wrapper{mode.ours, mode.theirs} {
					waiting, first := b.tickets, b.exclusive
					if i == 1 {
						waiting, first = b.flockWaiters, b.flocked
					}
					q, err := lineUp(n, first("sh", "-c", "echo; read x"), func() *exec.Cmd { return w("echo") }, waiting)
					if err != nil {
						return fmt.Errorf("%s: %w", row, err)
					}
					gaps, all, err := q.handOver()
					if err != nil {
						return fmt.Errorf("%s: %w", row, err)
					}
					if shared {
						samples[i].add(all)
					} else {
						samples[i] = append(samples[i], gaps...)
					}
				}
			}
			reach := 0.0
			if !shared && n == 100 {
				reach = 1.8
				hundred = samples[0].summary().Center
			}
			compare(row, samples[0], samples[1], reach)
			if !shared && n == 1000 && hundred > 0 {
				ratio := samples[0].summary().Center / hundred
				fmt.Printf("%-52s %48.2f x   %s\n", "    against that at 100 waiters", ratio, verdict(ratio, 1.3))
			}
		}
	}
	return nil
}
