package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/perf/benchmath"
)

// disturbance is a benchmark's own time, under each lock, with waiters behind it; and
// what measuring it costs.
func (b *bench) disturbance() error {
	const rounds = 60
	row := "evidence: the command's own time"
	if b.wanted(row) {
		measured := func(argv ...string) *exec.Cmd {
			return b.command(append([]string{"run", "--reason", "bench", "--max-foreign-cores", "1000", "--expect-cores", "1", "--min-efficiency", "0.001",
				"--result", filepath.Join(b.dir, "result.json"), "--"}, argv...)...)
		}
		var samples [2]sample
		for range 4 {
			for i, w := range []wrapper{measured, b.flocked} {
				s, err := b.workUnder(w, 0, rounds/4, nil)
				if err != nil {
					return err
				}
				samples[i] = append(samples[i], s...)
			}
		}
		compare(row, samples[0], samples[1], 1.02)
	}
	if !b.wanted("disturbance") {
		return nil
	}
	fmt.Printf("\n%-52s %18s %18s %18s\n", "a benchmark's own time, on every CPU, with", "hostlock", "flock", "polling (mkdir)")
	var alone [3]sample
	for _, n := range []int{0, 10, 100, 1000} {
		if n > b.most {
			break
		}
		fmt.Printf("%-52s", fmt.Sprintf("    %d waiters", n))
		var ratios []string
		for i, l := range []struct {
			wrap    wrapper
			waiting func() int
		}{{b.exclusive, b.tickets}, {b.flocked, b.flockWaiters}, {b.polled, nil}} {
			waiting, started := l.waiting, 0
			if waiting == nil { // nobody can tell, so it is who was started
				waiting = func() int { return started }
			}
			s, err := b.workUnder(func(argv ...string) *exec.Cmd { started++; return l.wrap(argv...) }, n, rounds, waiting)
			if err != nil {
				return err
			}
			if n == 0 {
				alone[i] = s
			}
			fmt.Printf(" %18s", s)
			c := benchmath.AssumeNothing.Compare(benchmath.NewSample(alone[i], &benchmath.DefaultThresholds), benchmath.NewSample(s, &benchmath.DefaultThresholds))
			ratios = append(ratios, fmt.Sprintf("%.3f (p=%.2f)", s.summary().Center/alone[i].summary().Center, c.P))
		}
		fmt.Printf("   against none: %s\n", strings.Join(ratios, ", "))
	}
	return nil
}

// workUnder has a lock's holder work, with n waiters behind it, and returns what its
// work took each time.
func (b *bench) workUnder(w wrapper, n, times int, waiting func() int) (s sample, err error) {
	b.anew()
	if waiting == nil {
		waiting = func() int { return n }
	}
	q, err := lineUp(n, w(b.self, "-work", strconv.Itoa(times)), func() *exec.Cmd { return w("true") }, waiting)
	if err != nil {
		return nil, err
	}
	defer func() {
		if eerr := q.end(); err == nil {
			err = eerr
		}
	}()
	if _, err := io.WriteString(q.in, "go\n"); err != nil {
		return nil, err
	}
	for range times {
		line, err := q.out.ReadString('\n')
		if err != nil {
			return nil, err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return nil, err
		}
		s.add(time.Duration(ns))
	}
	return s, nil
}

// workTimes uses every CPU for a while, again and again.
func workTimes(times int) error {
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return nil // nobody wants the work
	}
	for range times {
		var wg sync.WaitGroup
		began := time.Now()
		for range runtime.NumCPU() {
			wg.Go(func() {
				sum := 0
				for i := range 20_000_000 {
					sum += i ^ sum
				}
				fmt.Fprintln(io.Discard, sum)
			})
		}
		wg.Wait()
		fmt.Println(time.Since(began).Nanoseconds())
	}
	_, _ = in.ReadString('\n') // until all was read
	return nil
}
