//go:build linux

// Load has many want the host at once: first a queue of waiters, who must cost
// nothing, then contenders for thousands of hand-overs, shared and exclusive, some
// of them killed. Exclusion is checked by the contenders themselves, with the
// kernel's locks and a counter that only a sole holder may touch; the order by the
// numbers of their tickets.
//
//	go run ./testdata/hostile/load -waiters 1000 -handovers 10000
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/testdata/hostile/rig"
)

// work is what a contender runs while it has the host. It dies with its run.
func work(mode, root string) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if fmt.Sprint(unix.Getppid()) != os.Getenv("HOSTLOCK_ANCHOR_PID") {
		os.Exit(9) // the run was killed: nobody reads our status
	}
	mutex, err := os.OpenFile(filepath.Join(root, "mutex"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mutex.Close()
	how := unix.LOCK_SH
	if mode == "exclusive" {
		how = unix.LOCK_EX
	}
	if err := unix.Flock(int(mutex.Fd()), how|unix.LOCK_NB); err != nil {
		return fmt.Errorf("NOT ALONE: %s: %w", mode, err)
	}
	seq, err := ticket(filepath.Join(root, "lock"), os.Getenv("HOSTLOCK_HOLD_ID"))
	if err != nil {
		return err
	}
	if mode == "exclusive" {
		n, err := count(root)
		if err != nil {
			return err
		}
		for range 3 {
			unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
		if again, err := count(root); err != nil || again != n {
			return fmt.Errorf("NOT ALONE: the counter went from %d to %d, %v", n, again, err)
		}
		// In one write, for whoever is killed here must not tear it.
		file, err := os.OpenFile(filepath.Join(root, "counter"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err := fmt.Fprintf(file, counter, n+1); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(root, "log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = fmt.Fprintln(log, mode, seq)
	return err
}

const counter = "%09d"

func count(root string) (int, error) {
	b, err := os.ReadFile(filepath.Join(root, "counter"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(b))
}

// ticket finds the number of a hold. Holders have low ones.
func ticket(dir, id string) (uint64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return 0, err
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(filepath.Base(a)[1:], filepath.Base(b)[1:]) })
	for _, n := range names {
		var r struct {
			ID  string `json:"id"`
			Seq uint64 `json:"seq"`
		}
		if b, err := os.ReadFile(n); err == nil && json.Unmarshal(b, &r) == nil && r.ID == id {
			return r.Seq, nil
		}
	}
	return 0, fmt.Errorf("NOT THERE: the hold %s has no ticket among %d", id, len(names))
}

// front is the process of the lowest ticket, which holds the host or will soon;
// 0 if there is none.
func front(dir string) int {
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	var r struct {
		Body struct{ PID int }
	}
	if len(names) > 0 {
		first := slices.MinFunc(names, func(a, b string) int { return strings.Compare(filepath.Base(a)[1:], filepath.Base(b)[1:]) })
		if b, err := os.ReadFile(first); err == nil {
			_ = json.Unmarshal(b, &r)
		}
	}
	return r.Body.PID
}

// A field is where the contest takes place.
type field struct {
	*rig.Rig
	self string
}

func (f *field) begin() error {
	if err := f.Fresh(true); err != nil {
		return err
	}
	for name, text := range map[string]string{"mutex": "", "counter": fmt.Sprintf(counter, 0), "log": ""} {
		if err := os.WriteFile(filepath.Join(f.Root, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (f *field) contender(mode string, said *os.File) *exec.Cmd {
	args := []string{"run", "--reason", "load", "--timeout", "3000"}
	if mode == "shared" {
		args = append(args, "--shared")
	}
	c := f.Cmd(append(args, "--", f.self, "-work", mode, f.Root)...)
	c.Stderr = said
	return c
}

// judge reads what the contenders wrote: each exclusive one must have a higher
// number than all before it, and a lower one than all after it.
func (f *field) judge(killed int) (exclusive, shared int, err error) {
	file, err := os.Open(filepath.Join(f.Root, "log"))
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	var highest, floor uint64 // of all so far; of the last exclusive one
	var errs []error
	for s := bufio.NewScanner(file); s.Scan(); {
		var mode string
		var seq uint64
		if n, _ := fmt.Sscan(s.Text(), &mode, &seq); n != 2 {
			errs = append(errs, fmt.Errorf("line %q", s.Text()))
			continue
		}
		if seq < floor || mode == "exclusive" && seq <= highest {
			errs = append(errs, fmt.Errorf("OUT OF TURN: %s with number %d, after %d and the exclusive %d", mode, seq, highest, floor))
		}
		highest = max(highest, seq)
		if mode == "exclusive" {
			exclusive++
			floor = seq
		} else {
			shared++
		}
	}
	n, err := count(f.Root)
	if err != nil {
		errs = append(errs, err)
	}
	if n < exclusive || n > exclusive+killed {
		errs = append(errs, fmt.Errorf("NOT ALONE: the counter is %d after %d exclusive holds, %d were killed", n, exclusive, killed))
	}
	for _, name := range []string{"mutex", "counter", "log", "said"} {
		_ = os.Remove(filepath.Join(f.Root, name))
	}
	_, _, err = f.Next() // and whoever comes next clears away the last that died
	errs = append(errs, err, f.Tidy(), rig.Alone())
	return exclusive, shared, errors.Join(errs...)
}

// usage is what a process has used so far.
type usage struct {
	ticks, switches int
	fds             int
	rssKB           int
}

func (u *usage) add(pid int) {
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 21 {
			utime, _ := strconv.Atoi(f[11])
			stime, _ := strconv.Atoi(f[12])
			u.ticks += utime + stime
		}
	}
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, t.Name()))
		for line := range strings.SplitSeq(string(b), "\n") {
			if key, v, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(key, "ctxt_switches") {
				n, _ := strconv.Atoi(strings.TrimSpace(v))
				u.switches += n
			} else if ok && key == "VmRSS" && t.Name() == fmt.Sprint(pid) {
				n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
				u.rssKB += n
			}
		}
	}
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	u.fds = max(u.fds, len(fds))
}

// queue has many wait behind one holder.
func (f *field) queue(n int, watch time.Duration) error {
	if err := f.begin(); err != nil {
		return err
	}
	w := &rig.World{Rig: f.Rig}
	if err := w.Hold(); err != nil {
		return err
	}
	said, err := os.Create(filepath.Join(f.Root, "said"))
	if err != nil {
		return err
	}
	defer said.Close()
	began := time.Now()
	all := make([]*exec.Cmd, n)
	for i := range all {
		all[i] = f.contender("exclusive", said)
		if err := all[i].Start(); err != nil {
			return err
		}
	}
	tickets := func() int {
		names, _ := filepath.Glob(filepath.Join(f.Dir, "*.json"))
		return len(names)
	}
	for end := time.Now().Add(rig.Bound * 10); tickets() < n+1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("only %d wait", tickets()-1)
		}
	}
	arrived := time.Since(began)
	// They must come to rest. What a process does once, when it has come, is no
	// cost; a machine that is busy with others may take a while over it.
	var before, after usage
	for try := 0; ; try++ {
		before, after = usage{}, usage{}
		for _, c := range all {
			before.add(c.Process.Pid)
		}
		time.Sleep(watch)
		for _, c := range all {
			after.add(c.Process.Pid)
		}
		if after.switches == before.switches && after.ticks == before.ticks {
			break
		}
		if try == 20 {
			return fmt.Errorf("the waiters never rest: in %s %d context switches, %d ticks", watch, after.switches-before.switches, after.ticks-before.ticks)
		}
	}
	code, out, err := f.Run("status", "--porcelain")
	if err != nil || code != 0 || rig.Fields(out)["waiting"] != strconv.Itoa(n) {
		return fmt.Errorf("status: exit %d, %v, waiting %s", code, err, rig.Fields(out)["waiting"])
	}
	began = time.Now()
	w.Anchor.End()
	var errs []error
	for _, c := range all {
		if err := c.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("a waiter: %w", err))
		}
	}
	took := time.Since(began)
	if len(errs) > 0 {
		b, _ := os.ReadFile(said.Name())
		errs = append(errs, fmt.Errorf("they said: %s", wrong(b)))
	}
	exclusive, _, err := f.judge(0)
	if exclusive != n {
		errs = append(errs, fmt.Errorf("%d of %d had the host", exclusive, n))
	}
	fmt.Printf("waiters: %d in the queue after %s; in %s they used %d ticks of processor time and %d context switches; %d descriptors each at most, %.1f MB resident each; served in %s, %.2f ms each with the start of its command\n",
		n, arrived.Round(time.Millisecond), watch, after.ticks-before.ticks, after.switches-before.switches, after.fds, float64(after.rssKB)/float64(n)/1024, took.Round(time.Millisecond), took.Seconds()*1000/float64(n))
	return errors.Join(append(errs, err)...)
}

// wrong is the lines that the contenders' own checks wrote, and those about
// what went wrong.
func wrong(b []byte) string {
	var out []string
	for line := range strings.SplitSeq(string(b), "\n") {
		if strings.HasPrefix(line, "load: ") || strings.Contains(line, "unusable") || strings.Contains(line, "panic") || strings.Contains(line, "timed out") {
			out = append(out, line)
		}
		if len(out) == 20 {
			break
		}
	}
	return strings.Join(out, "\n")
}

// contest has contenders take the host again and again.
func (f *field) contest(contenders, handovers int, random *rand.Rand) error {
	if err := f.begin(); err != nil {
		return err
	}
	said, err := os.OpenFile(filepath.Join(f.Root, "said"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer said.Close()
	var (
		mu      sync.Mutex
		running = map[int]*exec.Cmd{}
		left    atomic.Int64
		killed  atomic.Int64
		odd     []error
		wg      sync.WaitGroup
	)
	left.Store(int64(handovers))
	began := time.Now()
	seeds := make([]uint64, contenders)
	for i := range seeds {
		seeds[i] = random.Uint64()
	}
	for i := range contenders {
		mine := rand.New(rand.NewPCG(seeds[i], 0))
		wg.Go(func() {
			for again := false; again || left.Add(-1) >= 0; {
				again = false
				mode := "exclusive"
				if mine.IntN(3) == 0 {
					mode = "shared"
				}
				c := f.contender(mode, said)
				err := c.Start()
				if err == nil {
					mu.Lock()
					running[i] = c
					mu.Unlock()
					err = c.Wait()
					mu.Lock()
					delete(running, i)
					mu.Unlock()
				}
				if err != nil && c.ProcessState != nil && c.ProcessState.ExitCode() == -1 {
					killed.Add(1)
					again, err = true, nil // it may have had the host, or not
				}
				if err != nil {
					mu.Lock()
					odd = append(odd, fmt.Errorf("a contender: %w", err))
					mu.Unlock()
				}
			}
		})
	}
	over := make(chan struct{})
	killer := make(chan struct{})
	go func() {
		defer close(killer)
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
			}
			whom := 0 // anybody, or the one at the front
			if random.IntN(2) == 0 {
				whom = front(f.Dir)
			}
			mu.Lock()
			for _, c := range running {
				// Not yet waited for, so its number is its own.
				if whom == 0 || c.Process.Pid == whom {
					_ = c.Process.Kill()
					break
				}
			}
			mu.Unlock()
		}
	}()
	wg.Wait()
	close(over)
	<-killer
	took := time.Since(began)
	b, err := os.ReadFile(said.Name())
	if err != nil {
		return err
	}
	bad := wrong(b)
	if bad != "" {
		odd = append(odd, errors.New("they said: "+bad))
	}
	reaps := strings.Count(string(b), "outcome=acquired_after_reap")
	exclusive, shared, err := f.judge(int(killed.Load()))
	fmt.Printf("contest: %d contenders, %d hand-overs (%d exclusive, %d shared) in %s, %.1f ms each; %d runs killed, %d took over from one; %d wrong\n",
		contenders, exclusive+shared, exclusive, shared, took.Round(time.Millisecond), took.Seconds()*1000/float64(max(1, exclusive+shared)), killed.Load(), reaps, len(odd))
	if exclusive+shared < handovers {
		odd = append(odd, fmt.Errorf("%d hand-overs, want %d", exclusive+shared, handovers))
	}
	return errors.Join(append(odd, err)...)
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "-work" {
		if err := work(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			os.Exit(9)
		}
		return
	}
	waiters := flag.Int("waiters", 100, "how many wait at once")
	watch := flag.Duration("watch", 2*time.Second, "how long they are watched")
	contenders := flag.Int("contenders", 50, "how many contend")
	handovers := flag.Int("handovers", 500, "how often the host changes hands")
	seed := flag.Uint64("seed", rand.Uint64(), "of whom to kill, and when")
	hostlock := flag.String("hostlock", "", "the hostlock under test; built if not given")
	flag.Parse()
	path, err := rig.Build(*hostlock)
	var r *rig.Rig
	var self string
	if err == nil {
		self, err = os.Executable()
	}
	if err == nil {
		r, err = rig.New(path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	defer os.RemoveAll(r.Root)
	f := &field{r, self}
	var errs []error
	if *waiters > 0 {
		errs = append(errs, f.queue(*waiters, *watch))
	}
	if *handovers > 0 {
		errs = append(errs, f.contest(*contenders, *handovers, rand.New(rand.NewPCG(*seed, 0))))
	}
	if err := errors.Join(errs...); err != nil {
		told := map[string]int{}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if told[line]++; told[line] <= 3 {
				fmt.Println("FAILED:", line)
			}
		}
		fmt.Printf("load: failed (seed %d)\n", *seed)
		os.Exit(1)
	}
}
