//go:build linux

// Killat kills hostlock at its N-th system call, for every N, and asks each
// time whether the next in line gets the host, exactly once, with nothing to clean
// up by hand.
//
//	go run ./testdata/hostile/killat                      every call of every scenario
//	go run ./testdata/hostile/killat -changing -every 7   a sample of them, which the seed moves
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/org/hostlock-action/testdata/hostile/rig"
)

// A scenario is a command that is killed.
type scenario struct {
	name    string
	prepare func(*rig.World) error
	args    func(*rig.World) []string
	// promised: exit 0 means that the anchor holds the host.
	promised bool
	// ending: a keeper may still hold the host, until it sees that the anchor
	// has ended.
	ending bool
}

func runTrue(extra ...string) func(*rig.World) []string {
	return func(w *rig.World) []string {
		return append(append([]string{"run", "--reason", "killed"}, extra...), "--", "true")
	}
}

var scenarios = []scenario{
	{name: "run", args: runTrue()},
	{name: "run in a new directory", prepare: func(w *rig.World) error { return w.Fresh(false) }, args: runTrue()},
	{name: "run after a dead holder", prepare: (*rig.World).Stale, args: runTrue()},
	{name: "run that waits", prepare: (*rig.World).Busy, args: runTrue("--wait", "--timeout", "20")},
	{name: "acquire", prepare: (*rig.World).Live, promised: true, args: func(w *rig.World) []string {
		return []string{"acquire", "--pid", w.Anchor.PID(), "--reason", "killed"}
	}},
	{name: "release", prepare: (*rig.World).Hold, args: func(w *rig.World) []string { return []string{"release", "--hold-id", w.HoldID} }},
	{name: "hook job-started", prepare: (*rig.World).Live, promised: true, args: func(w *rig.World) []string {
		return []string{"hook", "job-started", "--pid", w.Anchor.PID()}
	}},
	{name: "hook job-completed", prepare: (*rig.World).Hold, ending: true, args: func(w *rig.World) []string {
		return []string{"hook", "job-completed", "--pid", w.Anchor.PID()}
	}},
	{name: "reap", prepare: (*rig.World).Stale, args: func(*rig.World) []string { return []string{"reap"} }},
}

// A result is what one kill came to.
type result struct {
	calls  int
	killed bool
	call   string
	took   time.Duration
	stale  bool
}

// kill runs a scenario and kills it at its N-th call.
func (s *scenario) kill(r *rig.Rig, n int, changing, all bool) (res result, err error) {
	w := &rig.World{Rig: r}
	defer func() { err = errors.Join(err, w.End()) }()
	if s.prepare != nil {
		if err := s.prepare(w); err != nil {
			return res, fmt.Errorf("prepare: %w", err)
		}
	}
	var waiting func()
	if w.Other != nil {
		waiting = w.Other.End
	}
	t, err := w.Trace(s.args(w), waiting, func(c rig.Call) rig.Action {
		if changing && !c.Changes() {
			return rig.Action{}
		}
		if res.calls++; res.calls != n {
			return rig.Action{}
		}
		res.call = rig.Name(c.Nr)
		if c.Path != "" {
			res.call += " " + c.Path
		}
		return rig.Action{Kill: true, All: all}
	})
	if err != nil {
		return res, err
	}
	status, err := t.Wait(rig.Bound)
	res.killed = t.Killed
	if err == nil && all && t.Killed {
		err = t.WaitAll(rig.Bound)
	}
	if w.Other != nil {
		w.Other.End()
	}
	if err == nil {
		err = s.after(w, &res, status, t.Stdout())
	}
	if w.Anchor != nil {
		w.Anchor.End()
	}
	text, finished := t.Finish()
	if err = errors.Join(err, finished); err != nil {
		err = fmt.Errorf("%w\n  it said: %s", err, text)
	}
	return res, err
}

// after is the judgement.
func (s *scenario) after(w *rig.World, res *result, status syscall.WaitStatus, out string) error {
	v, err := w.Status()
	if err != nil {
		return err
	}
	switch v["state"] {
	case "FREE":
	case "STALE":
		res.stale = true
	case "HELD":
		if w.Anchor == nil || v["anchor_pid"] != w.Anchor.PID() && !s.ending {
			return fmt.Errorf("HELD, and nobody lives: %v", v)
		}
	default:
		return fmt.Errorf("state %s", v["state"])
	}
	if v["evidence"] == "unreadable_record" {
		return fmt.Errorf("a ticket that cannot be read: %v", v)
	}
	if s.promised && strings.Contains(out, "hold_id=") && v["state"] != "HELD" {
		return fmt.Errorf("it said %q, and the host is %s", out, v["state"])
	}
	if s.promised && status.Exited() && status.ExitStatus() == 0 && v["state"] != "HELD" {
		return fmt.Errorf("exit 0, and the host is %s", v["state"])
	}
	if w.Anchor != nil {
		w.Anchor.End()
		if v, err = w.Status(); err != nil {
			return err
		}
		if v["state"] == "HELD" && !s.ending {
			return fmt.Errorf("the holder has ended, and the host is HELD: %v", v)
		}
		res.stale = v["state"] == "STALE"
	}
	takeovers, took, err := w.Next()
	res.took = took
	switch {
	case err != nil:
		return err
	case takeovers > 1:
		return errors.New("two reported the same takeover")
	case takeovers == 0 && res.stale && !s.promised && !s.ending:
		return errors.New("a dead holder was taken over and nobody reported it")
	}
	if v, err = w.Status(); err != nil {
		return err
	}
	if v["state"] != "FREE" {
		return fmt.Errorf("state %s at the end", v["state"])
	}
	return w.Tidy()
}

func main() {
	every := flag.Int("every", 1, "kill at every K-th call")
	changing := flag.Bool("changing", false, "count only the calls that change something outside the process")
	whom := flag.String("whom", "both", "kill all processes, or the one that makes the call, or both in turn")
	seed := flag.Uint64("seed", rand.Uint64(), "where to begin")
	only := flag.String("only", "", "the scenarios whose name has this in it")
	at := flag.Int("at", 0, "kill at this call alone")
	hostlock := flag.String("hostlock", "", "the hostlock under test; built if not given")
	verbose := flag.Bool("v", false, "print each kill point")
	flag.Parse()
	path, err := rig.Build(*hostlock)
	if err != nil {
		fmt.Fprintln(os.Stderr, "killat:", err)
		os.Exit(1)
	}
	r, err := rig.New(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "killat:", err)
		os.Exit(1)
	}
	defer os.RemoveAll(r.Root)
	random := rand.New(rand.NewPCG(*seed, 0))
	points, failures, stale := 0, 0, 0
	longest := time.Duration(0)
	for _, s := range scenarios {
		if !strings.Contains(s.name, *only) {
			continue
		}
		for _, all := range []bool{true, false} {
			if *whom == "all" && !all || *whom == "one" && all {
				continue
			}
			whom := map[bool]string{true: "all its processes", false: "the one process"}[all]
			n, kills, bad, beyond := 1+random.IntN(*every), 0, 0, 0
			if *at > 0 {
				n = *at
			}
			most := 0
			// Runs differ by a few calls of the Go runtime's: the end is where
			// several in a row ended before they could be killed.
			for beyond < 3 {
				if err := r.Fresh(true); err != nil {
					fmt.Fprintln(os.Stderr, "killat:", err)
					os.Exit(1)
				}
				res, err := s.kill(r, n, *changing, all)
				if res.killed {
					kills++
					beyond = 0
				} else {
					beyond++
				}
				most = max(most, res.calls)
				longest = max(longest, res.took)
				if res.stale {
					stale++
				}
				if err != nil {
					bad++
					fmt.Printf("FAILED: %s, %s killed at call %d (%s): %v\n", s.name, whom, n, res.call, err)
				} else if *verbose {
					fmt.Printf("%s, %s killed at call %d of %d (%s): stale=%v, next after %s\n", s.name, whom, n, res.calls, res.call, res.stale, res.took)
				}
				n += *every
				if *at > 0 {
					break
				}
			}
			fmt.Printf("%-24s %-18s %4d kill points over %4d calls, %d failures\n", s.name, whom, kills, most, bad)
			points, failures = points+kills, failures+bad
		}
	}
	fmt.Printf("killat: %d kill points, %d of them left a dead holder, the next two had the host within %s; %d failures (seed %d)\n", points, stale, longest.Round(time.Millisecond), failures, *seed)
	if failures > 0 || points == 0 {
		os.Exit(1)
	}
}
