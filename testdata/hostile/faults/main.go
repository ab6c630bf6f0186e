//go:build linux

// Faults makes each system call of hostlock that can fail, fail: alone, and
// then every call of its kind. What comes of it must be a documented fallback or a
// clear error with its exit code; nothing is lost, nothing is taken from a live
// holder, nothing spins.
//
//	go run ./testdata/hostile/faults            every fault of every scenario
//	go run ./testdata/hostile/faults -every 9   a sample of them, which the seed moves
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/testdata/hostile/rig"
)

// faults is what each call can fail with, by its man page.
var faults = map[string][]syscall.Errno{
	"openat":            {unix.EACCES, unix.EMFILE, unix.EIO, unix.ENOSPC, unix.EINTR},
	"read":              {unix.EIO, unix.EINTR},
	"pread64":           {unix.EIO, unix.EINTR},
	"pwrite64":          {unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EINTR},
	"write":             {unix.ENOSPC, unix.EIO, unix.EINTR},
	"flock":             {unix.ENOLCK, unix.EINTR, unix.EIO},
	"renameat":          {unix.EACCES, unix.EIO, unix.ENOSPC},
	"renameat2":         {unix.ENOSYS, unix.EINVAL, unix.EACCES, unix.EIO, unix.EDQUOT},
	"linkat":            {unix.EPERM, unix.ENOSPC},
	"unlinkat":          {unix.EACCES, unix.EIO},
	"mkdir":             {unix.EACCES, unix.ENOSPC, unix.EROFS},
	"fchmod":            {unix.EPERM, unix.EIO},
	"ftruncate":         {unix.EIO},
	"fstat":             {unix.EIO},
	"newfstatat":        {unix.EACCES, unix.EIO},
	"lstat":             {unix.EACCES},
	"fstatfs":           {unix.EIO, unix.ENOSYS},
	"statx":             {unix.ENOSYS, unix.EIO},
	"faccessat2":        {unix.ENOSYS, unix.EACCES},
	"faccessat":         {unix.EACCES},
	"readlinkat":        {unix.EACCES, unix.EIO},
	"getdents64":        {unix.EIO, unix.EINTR},
	"pidfd_open":        {unix.ENOSYS, unix.EMFILE, unix.EPERM},
	"pidfd_send_signal": {unix.ENOSYS, unix.EPERM},
	"inotify_init1":     {unix.ENOSYS, unix.EMFILE},
	"inotify_add_watch": {unix.ENOSPC, unix.EACCES},
	"eventfd2":          {unix.EMFILE},
	"poll":              {unix.EINTR, unix.ENOMEM},
	"ppoll":             {unix.EINTR, unix.ENOMEM},
	"socketpair":        {unix.EMFILE},
	"pipe2":             {unix.EMFILE},
	"fcntl":             {unix.EMFILE, unix.EINVAL},
	"clone":             {unix.EAGAIN, unix.ENOMEM},
	"clone3":            {unix.ENOSYS, unix.EAGAIN},
	"execve":            {unix.ENOMEM, unix.EACCES},
	"wait4":             {unix.EINTR},
	"waitid":            {unix.EINTR},
	"close_range":       {unix.ENOSYS, unix.EINVAL},
	"prctl":             {unix.EINVAL},
	"getrandom":         {unix.EINTR},
	"setsid":            {unix.EPERM},
	"chdir":             {unix.EACCES},
}

// old is what a kernel or a file system may simply not have: everything must
// work without.
var old = map[string][]syscall.Errno{
	"renameat2": {unix.ENOSYS, unix.EINVAL}, "statx": {unix.ENOSYS}, "faccessat2": {unix.ENOSYS}, "pidfd_open": {unix.ENOSYS},
	"pidfd_send_signal": {unix.ENOSYS}, "inotify_init1": {unix.ENOSYS, unix.EMFILE}, "inotify_add_watch": {unix.ENOSPC},
	"close_range": {unix.ENOSYS, unix.EINVAL}, "clone3": {unix.ENOSYS}, "getrandom": {}, "wait4": {}, "poll": {}, "ppoll": {},
}

func isOld(name string, e syscall.Errno) bool { return slices.Contains(old[name], e) }

// A scenario is a command whose calls fail.
type scenario struct {
	name    string
	prepare func(*rig.World) error
	args    func(*rig.World) []string
	judge   func(w *rig.World, f fault, code int, stdout, stderr string) error
	// busy: the host stays somebody else's, and 0 may be the answer to a
	// question only.
	busy bool
	ok   int // exit code when nothing fails
	// keeper: the command leaves one, which is traced until its anchor ends.
	keeper bool
}

func fixed(args ...string) func(*rig.World) []string {
	return func(*rig.World) []string { return args }
}

func ran(w *rig.World) bool {
	_, err := os.Stat(filepath.Join(w.Root, "ran"))
	return err == nil
}

func run(extra ...string) func(*rig.World) []string {
	return func(w *rig.World) []string {
		return append(append([]string{"run", "--reason", "faulty", "--linger", "0.2"}, extra...), "--", "touch", filepath.Join(w.Root, "ran"))
	}
}

// judgeRun: the command ran, or there is an exit code that says it did not.
func judgeRun(w *rig.World, f fault, code int, stdout, stderr string) error {
	switch {
	case code == 0 && !ran(w):
		return errors.New("exit 0, and the command did not run")
	case code != 0 && code != 6 && ran(w):
		return fmt.Errorf("the command ran and succeeded, and the exit code is %d", code)
	case code == 0 || code == 6 || code == 7 || code == 126 || code == 127:
		return nil
	case code == 3 && f.every:
		return nil // what can never be read counts as held, for the grace
	case code == 3 && f.name == "write":
		return nil // we were not told that it waits, and let it
	}
	return fmt.Errorf("exit code %d", code)
}

// judgeBusy: nothing was taken, and nobody says that it could be.
func judgeBusy(w *rig.World, f fault, code int, stdout, stderr string) error {
	switch {
	case ran(w):
		return errors.New("the command ran beside a holder")
	case code == 0:
		return errors.New("exit 0 beside a holder")
	case strings.Contains(stdout, "FREE") || strings.Contains(stdout, "hold_id="):
		return fmt.Errorf("beside a holder it said %s", stdout)
	case code == 2 || code == 3 || code == 7 || code == 9:
		return nil
	case code == 1 && strings.Contains(stderr, "--pid"):
		return nil // it could not see what is above it
	case code == 126 || code == 127:
		return nil // it could not find the command
	}
	return fmt.Errorf("exit code %d", code)
}

// judgeLook: the right state, or none.
func judgeLook(key string, want ...string) func(*rig.World, fault, int, string, string) error {
	return func(w *rig.World, f fault, code int, stdout, stderr string) error {
		state := rig.Fields(stdout)[key]
		switch {
		case code == 0 && slices.Contains(want, state):
			return nil
		case code != 0 && code != 7:
			return fmt.Errorf("exit code %d", code)
		case code == 7 && (state == "" || state == "unknown"):
			return nil
		}
		return fmt.Errorf("state %q with exit code %d, want %s", state, code, want)
	}
}

var scenarios = []scenario{
	{name: "run", args: run("--timeout", "8"), judge: judgeRun},
	{name: "run in a new directory", prepare: func(w *rig.World) error { return w.Fresh(false) }, args: run("--timeout", "8"), judge: judgeRun},
	{name: "run after a dead holder", prepare: (*rig.World).Stale, args: run("--timeout", "8"), judge: judgeRun},
	{name: "run that waits", prepare: (*rig.World).Busy, args: run("--timeout", "8"), judge: judgeRun},
	{name: "acquire", prepare: (*rig.World).Live, keeper: true, judge: func(w *rig.World, f fault, code int, stdout, stderr string) error {
		v, err := w.Status()
		held := err == nil && v["state"] == "HELD"
		switch {
		case err != nil:
			return err
		case code == 0 && (!held || v["anchor_pid"] != w.Anchor.PID()):
			return fmt.Errorf("exit 0, and the host is %v", v)
		case code == 0 && rig.Fields(stdout)["hold_id"] != v["hold_id"]:
			return fmt.Errorf("it printed %q, and the hold is %s", stdout, v["hold_id"])
		case code != 0 && held:
			return fmt.Errorf("exit code %d, and the host is held: %v", code, v)
		case code == 0 || code == 7, code == 6 && f.name == "fstat": // whose .lock it is cannot be told: not ours
			return nil
		}
		return fmt.Errorf("exit code %d", code)
	}, args: func(w *rig.World) []string {
		return []string{"acquire", "--pid", w.Anchor.PID(), "--reason", "faulty"}
	}},
	{name: "release", prepare: (*rig.World).Hold, judge: func(w *rig.World, f fault, code int, stdout, stderr string) error {
		v, err := w.Status()
		switch {
		case err != nil:
			return err
		case code == 0 && v["state"] != "FREE":
			return fmt.Errorf("exit 0, and the host is %v", v)
		case code == 0 || code == 7:
			return nil
		case code == 2 && v["state"] == "HELD":
			return nil // it could not be seen whose it is
		}
		return fmt.Errorf("exit code %d, and the host is %s", code, v["state"])
	}, args: func(w *rig.World) []string { return []string{"release", "--hold-id", w.HoldID} }},
	{name: "hook job-started", prepare: (*rig.World).Live, keeper: true, judge: func(w *rig.World, f fault, code int, stdout, stderr string) error {
		v, err := w.Status()
		held := err == nil && v["state"] == "HELD"
		switch {
		case err != nil:
			return err
		case code == 0 && (!held || v["anchor_pid"] != w.Anchor.PID()):
			return fmt.Errorf("exit 0, and the host is %v", v)
		case code != 0 && held:
			return fmt.Errorf("exit code %d, and the host is held: %v", code, v)
		case code == 0 || code == 7, code == 6 && f.name == "fstat": // whose .lock it is cannot be told: not ours
			return nil
		}
		return fmt.Errorf("exit code %d", code)
	}, args: func(w *rig.World) []string { return []string{"hook", "job-started", "--pid", w.Anchor.PID()} }},
	{name: "hook job-completed", prepare: (*rig.World).Hold, judge: func(w *rig.World, f fault, code int, stdout, stderr string) error {
		if code != 0 {
			return fmt.Errorf("exit code %d, and a job's end must not fail the job", code)
		}
		return nil
	}, args: func(w *rig.World) []string { return []string{"hook", "job-completed", "--pid", w.Anchor.PID()} }},
	{name: "reap", prepare: (*rig.World).Stale, judge: func(w *rig.World, f fault, code int, stdout, stderr string) error {
		v, err := w.Status()
		switch {
		case err != nil:
			return err
		case code == 0 && v["state"] != "FREE" && !strings.Contains(stderr, "nothing to reap"):
			return fmt.Errorf("exit 0, and the host is %v", v)
		case code == 0 || code == 7:
			return nil
		}
		return fmt.Errorf("exit code %d, and the host is %s", code, v["state"])
	}, args: fixed("reap")},
	{name: "status beside a holder", prepare: (*rig.World).Hold, busy: true, args: fixed("status", "--porcelain"), judge: judgeLook("state", "HELD")},
	{name: "status after a dead holder", prepare: (*rig.World).Stale, args: fixed("status", "--porcelain"), judge: judgeLook("state", "STALE", "HELD")},
	{name: "provenance beside a holder", prepare: (*rig.World).Hold, busy: true, args: fixed("provenance"), judge: judgeLook("hostlock_state", "HELD")},
	{name: "run beside a holder", prepare: (*rig.World).Hold, busy: true, ok: 2, args: run("--no-wait"), judge: judgeBusy},
	{name: "acquire beside a holder", prepare: (*rig.World).Hold, busy: true, ok: 2, args: fixed("acquire", "--reason", "faulty"), judge: judgeBusy},
	{name: "wait beside a holder", prepare: (*rig.World).Hold, busy: true, ok: 3, args: fixed("wait", "--timeout", "0.05"), judge: judgeBusy},
	{name: "reap beside a holder", prepare: (*rig.World).Hold, busy: true, args: fixed("reap"), judge: func(w *rig.World, f fault, code int, stdout, stderr string) error {
		if strings.Contains(stderr, "reaped:") || code != 0 && code != 7 {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	}},
}

// A fault is one call of a run that fails, or from it on every one of its name.
type fault struct {
	n     int
	name  string
	path  string
	errno syscall.Errno
	every bool
}

func (f fault) String() string {
	s := fmt.Sprintf("call %d, %s %s, fails with %s", f.n, f.name, f.path, unix.ErrnoName(f.errno))
	if f.every {
		s += ", and so does every one after it"
	}
	return s
}

// points traces a scenario without any fault, and returns what could fail.
func (s *scenario) points(r *rig.Rig) (list []fault, err error) {
	names := map[string]bool{}
	_, err = s.try(r, func(c rig.Call, name string) syscall.Errno {
		for _, e := range faults[name] {
			list = append(list, fault{c.N, name, c.Path, e, false})
		}
		names[name] = true
		return 0
	}, s.ok, fault{})
	for name := range names {
		for _, e := range faults[name] {
			// A call that a signal interrupts each time it is made is none.
			if e != unix.EINTR {
				list = append(list, fault{1, name, "", e, true})
			}
		}
	}
	slices.SortFunc(list, func(a, b fault) int {
		if a.n != b.n {
			return a.n - b.n
		}
		return strings.Compare(a.String(), b.String())
	})
	return list, err
}

// few keeps two of the faults that differ only by a number in a path: of a
// walk over all processes, as many as a test needs.
func few(list []fault) []fault {
	digits := regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)
	seen := make(map[string]int)
	return slices.DeleteFunc(list, func(f fault) bool {
		key := fmt.Sprint(f.name, digits.ReplaceAllString(f.path, "N"), f.errno, f.every)
		seen[key]++
		return seen[key] > 2
	})
}

func (s *scenario) suffer(r *rig.Rig, f fault) (result, error) {
	ok := -1
	// Nobody may notice that a signal came, or that the kernel is old.
	if f.errno == unix.EINTR || f.every && isOld(f.name, f.errno) {
		ok = s.ok
	}
	hit := false
	res, err := s.try(r, func(c rig.Call, name string) syscall.Errno {
		if name != f.name || c.N < f.n || hit && !f.every {
			return 0
		}
		hit = true
		return f.errno
	}, ok, f)
	res.hit = hit
	return res, err
}

type result struct {
	hit  bool
	took time.Duration
	cpu  time.Duration
	code int
}

// own says whether a call is ours to make fail: hostlock's, and not one by
// which the Go runtime begins a thread or its poller, without which no Go
// program runs.
func own(r *rig.Rig, c rig.Call, name string) bool {
	switch {
	case c.Exe != r.Hostlock:
		return false
	case name == "clone" || name == "clone3":
		return name == "clone" && c.Args[0]&unix.CLONE_THREAD == 0
	case name == "fcntl":
		return c.Args[1] == unix.F_DUPFD_CLOEXEC
	case name == "write" && (strings.HasPrefix(c.Path, "anon_inode:") || strings.HasPrefix(c.Path, "socket:")):
		return false // an eventfd, whose counter nobody fills; a socket, on which nothing but EPIPE can happen
	case name == "eventfd2":
		return c.After != unix.SYS_EPOLL_CREATE1
	case name == "read":
		// The Go library's own, on which it hears whether an exec failed; and again a
		// socket, whose other end can only close.
		return !strings.HasPrefix(c.Path, "pipe:") && !strings.HasPrefix(c.Path, "socket:")
	}
	return true
}

// try runs a scenario, with calls that fail.
func (s *scenario) try(r *rig.Rig, decide func(rig.Call, string) syscall.Errno, ok int, f fault) (res result, err error) {
	if err := r.Fresh(true); err != nil {
		return res, err
	}
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
	began := time.Now()
	t, err := w.Trace(s.args(w), waiting, func(c rig.Call) rig.Action {
		name := rig.Name(c.Nr)
		if _, can := faults[name]; !can || !own(r, c, name) {
			return rig.Action{}
		}
		return rig.Action{Errno: decide(c, name)}
	})
	if err != nil {
		return res, err
	}
	status, err := t.Wait(rig.Bound)
	res.took, res.cpu = time.Since(began), t.CPU()
	if w.Other != nil {
		w.Other.End()
	}
	stdout := t.Stdout()
	res.code = rig.ExitCode(status)
	// A keeper holds none of the output: what it was given is all there.
	stderr := ""
	if !s.keeper {
		var finished error
		stderr, finished = t.Finish()
		err = errors.Join(err, finished)
	}
	if err == nil {
		err = s.judge(w, f, res.code, stdout, stderr)
	}
	switch {
	case err != nil:
	case ok >= 0 && res.code != ok:
		err = fmt.Errorf("exit code %d, want %d", res.code, ok)
	case !s.keeper && res.code != 0 && f.name != "write" && !strings.HasPrefix(stderr, "hostlock: "):
		err = fmt.Errorf("exit code %d, and no message", res.code)
	case strings.Count(stderr, "\n") > 12 || len(stderr) > 8<<10:
		err = errors.New("it talks too much")
	case res.cpu > 3*time.Second:
		err = fmt.Errorf("%s of processor time", res.cpu)
	case s.busy:
		var v map[string]string
		if v, err = w.Status(); err == nil && (v["state"] != "HELD" || v["hold_id"] != w.HoldID) {
			err = fmt.Errorf("the holder lost the host: %v", v)
		}
	}
	if w.Anchor != nil {
		w.Anchor.End()
	}
	if s.keeper {
		var finished error
		stderr, finished = t.Finish()
		err = errors.Join(err, finished)
	}
	if err == nil {
		os.Remove(filepath.Join(r.Root, "ran"))
		if _, _, err = w.Next(); err == nil {
			err = w.Tidy()
		}
	}
	if err != nil {
		err = fmt.Errorf("%w\n  exit %d after %s (%s of processor time), it said: %s", err, res.code, res.took.Round(time.Millisecond), res.cpu, stderr)
	}
	return res, err
}

func main() {
	every := flag.Int("every", 1, "try every K-th fault")
	sample := flag.Bool("few", false, "of faults that differ only by a number in a path, try two")
	part := flag.Int("part", 0, "of the faults, the share with this number from 0")
	parts := flag.Int("parts", 1, "number of shares")
	seed := flag.Uint64("seed", rand.Uint64(), "where to begin")
	only := flag.String("only", "", "the scenarios whose name has this in it")
	call := flag.String("call", "", "the calls of this name alone")
	hostlock := flag.String("hostlock", "", "the hostlock under test; built if not given")
	verbose := flag.Bool("v", false, "print each fault")
	flag.Parse()
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
	if !rig.CanInject {
		fmt.Println("faults: not on this kind of machine")
		return
	}
	path, err := rig.Build(*hostlock)
	if err != nil {
		fail(err)
	}
	r, err := rig.New(path)
	if err != nil {
		fail(err)
	}
	defer os.RemoveAll(r.Root)
	random := rand.New(rand.NewPCG(*seed, 0))
	tried, failures := 0, 0
	longest, most := time.Duration(0), time.Duration(0)
	for i := range scenarios {
		s := &scenarios[i]
		if !strings.Contains(s.name, *only) {
			continue
		}
		list, err := s.points(r)
		if err != nil {
			fail(fmt.Errorf("%s, with nothing that fails: %w", s.name, err))
		}
		if *sample {
			list = few(list)
		}
		n, bad, codes := 0, 0, map[int]int{}
		for j := random.IntN(*every); j < len(list); j += *every {
			f := list[j]
			if *call != "" && f.name != *call || j / *every % *parts != *part {
				continue
			}
			res, err := s.suffer(r, f)
			if res.hit {
				n++
				codes[res.code]++
			}
			longest, most = max(longest, res.took), max(most, res.cpu)
			if err != nil {
				bad++
				fmt.Printf("FAILED: %s, %s: %v\n", s.name, f, err)
			} else if *verbose {
				fmt.Printf("%s, %s: exit %d after %s\n", s.name, f, res.code, res.took)
			}
		}
		fmt.Printf("%-28s %4d faults, exit codes %v, %d failures\n", s.name, n, codes, bad)
		tried, failures = tried+n, failures+bad
	}
	fmt.Printf("faults: %d faults, the longest command took %s, the busiest %s of processor time; %d failures (seed %d)\n", tried, longest.Round(time.Millisecond), most.Round(time.Millisecond), failures, *seed)
	if failures > 0 || tried == 0 {
		os.Exit(1)
	}
}
