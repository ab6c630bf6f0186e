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
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/org/hostlock-action/testdata/hostile/rig"
)

// A world is what a scenario begins with.
type world struct {
	*rig.Rig
	anchor *rig.Process // for acquire
	holder *rig.Process // an acquire's anchor that had the host before
	holdID string
}

// A scenario is a command that is killed.
type scenario struct {
	name    string
	prepare func(*world) error
	args    func(*world) []string
	// promised: exit 0 means that the anchor holds the host.
	promised bool
	// release ends what is in the way once the command waits for it.
	release bool
}

func pidOf(p *rig.Process) string { return fmt.Sprint(p.Process.Pid) }

func (w *world) live() (err error) {
	w.anchor, err = rig.Living()
	return err
}

// hold makes the anchor a holder.
func (w *world) hold() error {
	if err := w.live(); err != nil {
		return err
	}
	code, out, err := w.Run("acquire", "--pid", pidOf(w.anchor), "--reason", "held")
	if err != nil || code != 0 {
		return fmt.Errorf("acquire: exit %d, %v: %s", code, err, out)
	}
	w.holdID = rig.Fields(out)["hold_id"]
	return nil
}

// stale leaves a holder that died.
func (w *world) stale() error {
	if err := w.hold(); err != nil {
		return err
	}
	w.anchor.End()
	w.anchor = nil
	return nil
}

func runTrue(extra ...string) func(*world) []string {
	return func(w *world) []string {
		return append(append([]string{"run", "--reason", "killed"}, extra...), "--", "true")
	}
}

var scenarios = []scenario{
	{name: "run", args: runTrue()},
	{name: "run in a new directory", prepare: func(w *world) error { return w.Fresh(false) }, args: runTrue()},
	{name: "run after a dead holder", prepare: (*world).stale, args: runTrue()},
	{name: "run that waits", prepare: func(w *world) error {
		err := w.hold()
		w.holder, w.anchor = w.anchor, nil
		return err
	}, args: runTrue("--wait", "--timeout", "20"), release: true},
	{name: "acquire", prepare: (*world).live, promised: true, args: func(w *world) []string {
		return []string{"acquire", "--pid", pidOf(w.anchor), "--reason", "killed"}
	}},
	{name: "release", prepare: (*world).hold, args: func(w *world) []string { return []string{"release", "--hold-id", w.holdID} }},
	{name: "reap", prepare: (*world).stale, args: func(*world) []string { return []string{"reap"} }},
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
	w := &world{Rig: r}
	defer func() {
		for _, p := range []*rig.Process{w.anchor, w.holder} {
			if p != nil {
				p.End()
			}
		}
		err = errors.Join(err, rig.Alone())
	}()
	if s.prepare != nil {
		if err := s.prepare(w); err != nil {
			return res, fmt.Errorf("prepare: %w", err)
		}
	}
	out, err := os.Create(filepath.Join(r.Root, "out"))
	if err != nil {
		return res, err
	}
	defer out.Close()
	defer os.Remove(out.Name())
	stderr, tell, err := os.Pipe()
	if err != nil {
		return res, err
	}
	defer stderr.Close()
	said := make(chan string, 1)
	go func() {
		var b strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := stderr.Read(buf)
			b.Write(buf[:n])
			if s.release && strings.Contains(b.String(), "waiting") {
				w.holder.End()
			}
			if err != nil {
				if err != io.EOF {
					b.WriteString(err.Error())
				}
				said <- b.String()
				return
			}
		}
	}()
	t := &rig.Trace{Args: append([]string{r.Hostlock}, s.args(w)...), Env: r.Env(), Stdout: out, Stderr: tell, Decide: func(c rig.Call) rig.Action {
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
	}}
	err = t.Start()
	tell.Close()
	if err != nil {
		return res, err
	}
	status, err := t.Wait(rig.Bound)
	res.killed = t.Killed
	if err == nil && all && t.Killed {
		err = t.WaitAll(rig.Bound)
	}
	if w.holder != nil {
		w.holder.End()
	}
	if err == nil {
		err = s.after(w, &res, status, out.Name())
	}
	if w.anchor != nil {
		w.anchor.End()
	}
	err = errors.Join(err, t.WaitAll(rig.Bound))
	text := <-said
	if err == nil && (strings.Contains(text, "panic:") || strings.Contains(text, "goroutine ")) {
		err = errors.New("it crashed")
	}
	if err != nil {
		err = fmt.Errorf("%w\n  it said: %s", err, strings.TrimSpace(text))
	}
	return res, err
}

// after is the judgement.
func (s *scenario) after(w *world, res *result, status syscall.WaitStatus, out string) error {
	v, err := w.Status()
	if err != nil {
		return err
	}
	switch v["state"] {
	case "FREE":
	case "STALE":
		res.stale = true
	case "HELD":
		if w.anchor == nil || v["anchor_pid"] != pidOf(w.anchor) {
			return fmt.Errorf("HELD, and nobody lives: %v", v)
		}
	default:
		return fmt.Errorf("state %s", v["state"])
	}
	if v["evidence"] == "unreadable_record" {
		return fmt.Errorf("a ticket that cannot be read: %v", v)
	}
	if b, err := os.ReadFile(out); s.promised && err == nil && strings.Contains(string(b), "hold_id=") && v["state"] != "HELD" {
		return fmt.Errorf("it said %q, and the host is %s", b, v["state"])
	}
	if s.promised && status.Exited() && status.ExitStatus() == 0 && v["state"] != "HELD" {
		return fmt.Errorf("exit 0, and the host is %s", v["state"])
	}
	if w.anchor != nil {
		w.anchor.End()
		if v, err = w.Status(); err != nil {
			return err
		}
		if v["state"] == "HELD" {
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
	case takeovers == 0 && res.stale && !s.promised:
		return errors.New("a dead holder was taken over and nobody reported it")
	}
	if v, err = w.Status(); err != nil {
		return err
	}
	if v["state"] != "FREE" {
		return fmt.Errorf("state %s at the end", v["state"])
	}
	left, err := w.Left()
	if err != nil {
		return err
	}
	for i, n := range left {
		if n == "out" {
			left = append(left[:i], left[i+1:]...)
			break
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left: %s", left)
	}
	return nil
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
