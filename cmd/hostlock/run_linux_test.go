package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

func TestRunStatus(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	work := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(work, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tc := range []struct {
		name   string
		argv   []string
		status int
		says   string
	}{
		{"success", []string{"true"}, 0, "outcome=acquired hold_id="},
		{"failure", []string{"false"}, 1, "outcome=acquired hold_id="},
		{"status 255", []string{"sh", "-c", "exit 255"}, 255, "outcome=acquired"},
		{"killed by TERM", []string{"sh", "-c", "kill -TERM $$"}, 143, "outcome=acquired"},
		{"killed by KILL", []string{"sh", "-c", "kill -KILL $$"}, 137, "outcome=acquired"},
		{"the command's own 126", []string{"sh", "-c", "exit 126"}, 126, "outcome=acquired"},
		{"not found", []string{"no-such-command"}, 127, "hostlock: command not found: no-such-command"},
		{"no such path", []string{"./no-such-command"}, 127, "hostlock: command not found: ./no-such-command"},
		{"empty name", []string{""}, 127, "command not found"},
		{"a directory", []string{work}, 126, "permission denied"},
		{"not executable", []string{write("data", "x", 0o644)}, 126, "permission denied"},
		{"no interpreter", []string{write("script", "#!/no/such/interpreter\n", 0o755)}, 126, "interpreter"},
		{"a script without #!", []string{write("plain", "exit 9\n", 0o755)}, 9, "outcome=acquired"},
		{"flags of the command", []string{"sh", "-c", "exit 8", "--reason"}, 8, "outcome=acquired"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := s.start(s.run(append([]string{"--"}, tc.argv...)...))
			l.expect(tc.status)
			if !l.err.await(tc.says) {
				t.Errorf("stderr does not say %q:\n%s", tc.says, l.err)
			}
			if tc.status == 126 && len(tc.argv) == 1 || tc.status == 127 {
				if tc.name == "no interpreter" {
					l.says("outcome")
				}
				if text := l.err.String(); strings.Contains(text, "outcome") == (tc.name != "no interpreter") {
					t.Errorf("outcome on stderr:\n%s", text)
				}
			}
			s.free()
		})
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		argv   []string
		env    string
		status int
		says   string
	}{
		{"no command", []string{"--reason", "r"}, "", 1, "no command"},
		{"no reason", []string{"--", "touch", "ran"}, "", 1, "--reason"},
		{"a ttl", []string{"--reason", "r", "--ttl", "5", "--", "touch", "ran"}, "", 1, "--ttl"},
		{"a pid", []string{"--reason", "r", "--pid", "1", "--", "touch", "ran"}, "", 1, "--pid"},
		{"nested", []string{"--reason", "r", "--nested=join", "--", "touch", "ran"}, "", 1, "--nested"},
		{"kill-after 0", []string{"--reason", "r", "--kill-after", "0", "--", "touch", "ran"}, "", 1, "--kill-after"},
		{"negative linger", []string{"--reason", "r", "--linger", "-1", "--", "touch", "ran"}, "", 1, "--linger"},
		{"an efficiency of nothing", []string{"--reason", "r", "--min-efficiency", "0.9", "--", "touch", "ran"}, "", 1, "--expect-cores"},
		{"a result that cannot be written", []string{"--reason", "r", "--result", "/proc/x", "--", "touch", "ran"}, "", 1, "--result"},
		{"refused by the hook", []string{"--reason", "r", "--", "touch", "ran"}, "HOSTLOCK_REFUSED=1", 2, "outcome=busy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c := s.command("hostlock", append([]string{"run"}, tc.argv...)...)
			c.Dir = t.TempDir()
			c.Env = append(c.Env, tc.env)
			l := s.start(c)
			l.expect(tc.status)
			l.says(tc.says)
			if exists(filepath.Join(c.Dir, "ran")) || exists(s.dir) {
				t.Error("something was run, or the lock directory was touched")
			}
		})
	}
}

func TestRunExports(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	script := `echo "$HOSTLOCK_HELD $HOSTLOCK_HOLD_ID $HOSTLOCK_ANCHOR_PID $HOSTLOCK_DIR ${HOSTLOCK_OWNER-none}"`
	for _, tc := range []struct {
		name, owner string
		argv        []string
		env         string
	}{
		{"no owner declared", "none", nil, "USER=ann"},
		{"an owner", "acme/db", []string{"--owner", "acme/db"}, "USER=ann"},
		{"an inherited owner", "acme/web", nil, "HOSTLOCK_OWNER=acme/web"},
		{"nothing of before", "none", nil, "HOSTLOCK_HOLD_ID=0123456789abcdef0123456789abcdef"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := s.run(append(tc.argv, "--", "sh", "-c", script)...)
			c.Env = append(c.Env, tc.env)
			l := s.start(c)
			got := l.line()
			l.expect(0)
			want := fmt.Sprintf("1 %s %d %s %s", s.past().ID, c.Process.Pid, s.dir, tc.owner)
			if got != want {
				t.Errorf("the command sees %q, want %q", got, want)
			}
			if rest, _ := io.ReadAll(l.out); len(rest) > 0 {
				t.Errorf("on stdout, which is the command's: %q", rest)
			}
		})
	}
}

// A daemon must not keep the lock, and what the caller left open is not ours
// to close.
func TestRunDescriptors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	leaked, err := os.Create(filepath.Join(t.TempDir(), "leaked"))
	if err != nil {
		t.Fatal(err)
	}
	defer leaked.Close()
	c := s.run("--", "child", "fds")
	c.ExtraFiles = []*os.File{leaked}
	l := s.start(c)
	l.expect(0)
	text, err := io.ReadAll(l.out)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), s.dir) {
		t.Errorf("the command has a descriptor of the lock directory:\n%s", text)
	}
	if !strings.Contains(string(text), "3 "+leaked.Name()) {
		t.Errorf("the command lost what the caller left open:\n%s", text)
	}
	if strings.Contains(string(text), "pidfd") {
		t.Errorf("the command has a descriptor of hostlock's own:\n%s", text)
	}
}

func TestRunDaemon(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.start(s.run("--linger", "0", "--", "sh", "-c", `setsid sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo ready $!' `))
	daemon := l.process("ready")
	l.expect(0)
	s.free()
	alive(t, daemon)
	l.says(fmt.Sprintf("left running by the command, and let be: %d (", daemon.PID))
	l.says("left_running=1")
	if n := s.past().LeftRunning; n == nil || *n != 1 {
		t.Errorf("recorded as left running: %v", n)
	}
	// The daemon holds nothing: the next run is let in at once.
	next := s.start(s.run("--no-wait", "--", "true"))
	next.expect(0)
	next.says("outcome=acquired hold_id")
}

// What ends within the linger is waited for and not named.
func TestRunLinger(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := s.run("--linger", "1000", "--", "sh", "-c", `(read x; echo late) <&3 & echo ready $!`)
	c.ExtraFiles = []*os.File{r}
	l := s.start(c)
	r.Close()
	straggler := l.process("ready")
	if len(s.tickets()) == 0 {
		t.Error("released before what the command left had its time")
	}
	w.Close()
	if got := l.line(); got != "late" {
		t.Errorf("got %q", got)
	}
	l.expect(0)
	isGone(t, straggler)
	l.says("hostlock: outcome=")
	if strings.Contains(l.err.String(), "left") {
		t.Errorf("something is said to be left:\n%s", l.err)
	}
	s.free()

	// A signal cuts the linger short: whoever sends it has waited enough.
	c = s.run("--linger", "1000", "--", "sh", "-c", `echo command $$; sleep 1000 >/dev/null 2>&1 & echo ready $!; read x; exit 3`)
	l = s.start(c)
	command := l.process("command")
	straggler = l.process("ready")
	l.in.Close()
	hasEnded(t, command)
	l.signal(unix.SIGTERM)
	l.expect(3)
	alive(t, straggler)
	s.free()
}

func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.start(s.run("--", "child", "count"))
	id := l.process("ready")
	for _, n := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR2} {
		l.signal(n)
		if got, want := l.line(), "got "+unix.SignalName(n); got != want {
			t.Fatalf("the command says %q, want %q", got, want)
		}
	}
	l.signal(unix.SIGUSR1)
	l.line()
	if got, want := l.line(), "sum INT=1 TERM=1 HUP=1 QUIT=1"; got != want {
		t.Errorf("the command says %q, want %q", got, want)
	}
	l.expect(4)
	isGone(t, id)
	s.free()
}

// terminal opens a pseudo-terminal.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if cerr := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestRunAtATerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	master, slave := terminal(t)
	c := s.run("--", "child", "count")
	c.Stdin, c.Stdout = slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	l := s.start(c)
	slave.Close()
	l.out = bufio.NewReader(master)
	id := l.process("ready")
	// Once the loop has passed something on it is past the command's beginning,
	// when it would rather tell of a ^C twice than never.
	l.signal(unix.SIGUSR2)
	for l.line() != "got SIGUSR2" {
	}
	for key, name := range map[string]string{"\x03": "SIGINT", "\x1c": "SIGQUIT"} {
		if _, err := master.WriteString(key); err != nil {
			t.Fatal(err)
		}
		for !strings.HasSuffix(l.line(), "got "+name) { // the terminal echoes ^C
		}
	}
	// By kill(1) the run alone has it: USR1 comes behind whatever was passed on.
	l.signal(unix.SIGUSR1)
	for {
		if got := l.line(); strings.HasPrefix(got, "sum") {
			if want := "sum INT=1 TERM=0 HUP=0 QUIT=1"; got != want {
				t.Errorf("the command says %q, want %q", got, want)
			}
			break
		}
	}
	l.expect(4)
	isGone(t, id)
	s.free()
}

// ^C at any moment: from before the command is there until after it has ended.
func TestRunInterruptedAtATerminal(t *testing.T) {
	t.Parallel()
	seed := uint64(20261201)
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := newSite(t)
	outcomes := make(map[int]int)
	for i := range 60 {
		master, slave := terminal(t)
		c := s.run("--", "sh", "-c", "echo ready $$; read x; exit 5")
		c.Stdin, c.Stdout = slave, slave
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
		l := s.start(c)
		slave.Close()
		time.Sleep(time.Duration(rnd.Float64() * float64(20*time.Millisecond)))
		if _, err := master.WriteString("\x03"); err != nil {
			t.Fatal(err)
		}
		status := l.status() // a lost ^C would leave it reading
		outcomes[status]++
		if status != 130 && status != -int(unix.SIGINT) {
			t.Fatalf("round %d: status %d; stderr:\n%s", i, status, l.err)
		}
		master.Close()
		if names := s.tickets(); len(names) > 0 {
			t.Fatalf("round %d: status %d, and left in the lock directory: %s; stderr:\n%s", i, status, names, l.err)
		}
	}
	t.Log(outcomes)
}

// In a group in the background of its terminal nobody but the run has it.
func TestRunInTheBackground(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	master, slave := terminal(t)
	c := s.command("sh", "-m", "-c", `hostlock run --reason bg -- child count & wait`)
	c.Stdin, c.Stdout = slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	l := s.start(c)
	slave.Close()
	l.out = bufio.NewReader(master)
	command := l.process("ready")
	p, err := proc.Stat(command.PID)
	if err != nil {
		t.Fatal(err)
	}
	run, err := proc.Identify(p.PPID)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []unix.Signal{unix.SIGINT, unix.SIGUSR1} {
		kill(t, run, n)
		for !strings.HasPrefix(l.line(), "got "+unix.SignalName(n)) {
		}
	}
	for {
		if got := l.line(); strings.HasPrefix(got, "sum") {
			if want := "sum INT=1 TERM=0 HUP=0 QUIT=0"; got != want {
				t.Errorf("the command says %q, want %q", got, want)
			}
			break
		}
	}
	hasEnded(t, run)
	s.free()
}

func TestRunKeepsIgnoring(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, tc := range []struct {
		name, ignored string
		signals       []unix.Signal
	}{
		{"nohup", "HUP", []unix.Signal{unix.SIGHUP}},
		{"a shell's background", "INT QUIT", []unix.Signal{unix.SIGINT, unix.SIGQUIT}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := s.start(s.command("sh", "-c", `trap "" `+tc.ignored+`; exec hostlock run --reason r -- sh -c 'echo ready $$; exec sleep 1000'`))
			id := l.process("ready")
			for _, n := range tc.signals {
				l.signal(n)
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", id.PID))
				if err != nil {
					t.Fatal(err)
				}
				m := regexp.MustCompile(`SigIgn:\s*([0-9a-f]+)`).FindSubmatch(text)
				mask, err := strconv.ParseUint(string(m[1]), 16, 64)
				if err != nil || mask&(1<<(n-1)) == 0 {
					t.Errorf("%s is not ignored by the command (%x, %v)", unix.SignalName(n), mask, err)
				}
			}
			l.signal(unix.SIGTERM)
			l.expect(143)
			s.free()
		})
	}
}

func TestRunKillAfter(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, script string
		status       int
	}{
		{"a command that stays", `trap "" TERM INT; sh -c 'trap "" TERM INT; echo below $$; while :; do sleep 1000; done' & echo ready $$; while :; do wait; done`, 137},
		{"a shell that goes and leaves its benchmark", `sh -c 'trap "" TERM INT; echo below $$; while :; do sleep 1000; done' & echo ready $$; wait`, 143},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			l := s.start(s.run("--kill-after", "0.3", "--linger", "0", "--", "sh", "-c", tc.script))
			var ids []proc.Identity
			for range 2 {
				_, pid, _ := strings.Cut(l.line(), " ")
				n, _ := strconv.Atoi(pid)
				id, err := proc.Identify(n)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
			l.signal(unix.SIGTERM)
			l.expect(tc.status)
			for _, id := range ids {
				isGone(t, id)
			}
			l.says("and killed")
			s.free()
		})
	}
}

// Without --kill-after and outside CI nothing escalates.
func TestRunDoesNotEscalate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.start(s.run("--", "child", "count"))
	l.process("ready")
	l.signal(unix.SIGTERM)
	l.line()
	time.Sleep(jobKillAfter + 500*time.Millisecond)
	l.signal(unix.SIGUSR1)
	l.line()
	if got, want := l.line(), "sum INT=0 TERM=1 HUP=0 QUIT=0"; got != want {
		t.Errorf("the command says %q, want %q", got, want)
	}
	l.expect(4)
}

// What a shell started before it exec'd hostlock is not the command's: not
// waited for, not named, not killed.
func TestRunForeignChildren(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.start(s.command("sh", "-c", `sleep 1000 >/dev/null 2>&1 & echo ready $!; exec hostlock run --reason r --linger 1000 -- true`))
	id := l.process("ready")
	l.expect(0)
	alive(t, id)
	l.says("hostlock: outcome=")
	if strings.Contains(l.err.String(), "left") {
		t.Errorf("something is said to be left:\n%s", l.err)
	}
	s.free()

	l = s.start(s.command("sh", "-c", `sh -c 'sleep 1000 & echo other $!; wait' & exec hostlock run --reason r --kill-after 0.1 -- sh -c 'trap "" TERM; sleep 1000 & echo ready $!; while :; do wait; done'`))
	var other, mine proc.Identity
	for range 2 {
		word, pid, _ := strings.Cut(l.line(), " ")
		n, _ := strconv.Atoi(pid)
		got, err := proc.Identify(n)
		if err != nil {
			t.Fatal(err)
		}
		if word == "other" {
			other = got
		} else {
			mine = got
		}
	}
	l.signal(unix.SIGTERM)
	l.expect(137)
	isGone(t, mine)
	alive(t, other)
	s.free()
}

func TestRunStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := s.run("--", "sh", "-c", `echo ready $$; read x <&3; exit 6`)
	c.ExtraFiles = []*os.File{r}
	l := s.start(c)
	r.Close()
	id := l.process("ready")
	l.signal(unix.SIGSTOP)
	if _, err := unix.Wait4(c.Process.Pid, nil, unix.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	w.Close()
	hasEnded(t, id)
	if len(s.tickets()) == 0 {
		t.Error("a stopped run cannot have released")
	}
	l.signal(unix.SIGTERM) // comes too late for the command, and changes nothing
	l.signal(unix.SIGCONT)
	l.expect(6)
	s.free()
}

func TestRunWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	holder := s.start(s.run("--", "child", "hold"))
	id := holder.process("ready")
	for _, n := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1} {
		l := s.start(s.run("--", "touch", filepath.Join(s.dir, "ran")))
		l.says("waiting")
		l.signal(n)
		l.expect(128 + int(n))
		if got := s.tickets(); len(got) != 2 {
			t.Fatalf("in the lock directory: %s", got)
		}
	}
	for _, tc := range []struct {
		argv    []string
		status  int
		outcome string
	}{
		{[]string{"--no-wait"}, 2, "outcome=busy"},
		{[]string{"--timeout", "0.05"}, 3, "outcome=timed_out"},
	} {
		l := s.start(s.run(append(tc.argv, "--", "touch", filepath.Join(s.dir, "ran"))...))
		l.expect(tc.status)
		l.says(tc.outcome)
	}
	// Killed in the queue it leaves nothing that the next one stumbles over.
	l := s.start(s.run("--", "true"))
	l.says("waiting")
	next := s.start(s.run("--", "true"))
	next.says("waiting")
	_ = l.Process.Kill()
	l.status()
	holder.signal(unix.SIGTERM)
	holder.expect(143)
	isGone(t, id)
	next.expect(0)
	s.free()
}

func TestRunNested(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.start(s.run("--", "hostlock", "run", "--reason", "inner", "--no-wait", "--", "hostlock", "run", "--reason", "innermost", "--no-wait", "--", "echo", "inside"))
	if got := l.line(); got != "inside" {
		t.Errorf("got %q", got)
	}
	l.expect(0)
	l.says("outcome=joined")
	s.free()
}

// Two benchmarks in parallel steps of one job take turns.
func TestRunTurns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	step := `hostlock run --reason step -- sh -c 'echo begin; for i in 1 2 3 4 5 6 7 8 9; do :; done; sleep 0.02; echo end'`
	l := s.start(s.run("--", "sh", "-c", strings.Repeat(step+" & ", 4)+"wait"))
	for range 4 {
		if a, b := l.line(), l.line(); a != "begin" || b != "end" {
			t.Fatalf("%s, %s: two steps at once", a, b)
		}
	}
	l.expect(0)
	s.free()
}

// The holder is killed: its lock is reaped, but not before the benchmark that
// it left behind has ended.
func TestRunAfterAKill(t *testing.T) {
	t.Parallel()
	for try := 1; ; try++ {
		s := newSite(t)
		l := s.start(s.run("--", "child", "spin"))
		orphan := l.process("ready")
		_ = l.Process.Kill()
		l.status()
		next := s.start(s.run("--", "echo", "now"))
		next.says(fmt.Sprintf("left running: %d (child", orphan.PID))
		if l := proc.Look(orphan); l != proc.Alive {
			t.Errorf("the orphan is %s: nobody may kill it", l)
		}
		kill(t, orphan, unix.SIGKILL)
		if got := next.line(); got != "now" {
			t.Errorf("got %q", got)
		}
		next.expect(0)
		next.says("outcome=acquired_after_reap (stale_pid)")
		next.says("survivors=")
		// On a loaded machine there may always be a process in the middle of an exec,
		// which has no environment to be known by: then nobody can say for sure.
		if try < 20 && strings.Contains(next.err.String(), "survivors=unknown") {
			continue
		}
		next.says("survivors=drained:1")
		s.free()
		return
	}
}

// job starts a script as a CI job's step and returns the processes of the
// worker, the step's shell, hostlock and its command.
func (s *site) job(script string) (l *live, worker, shell, run, command proc.Identity) {
	s.t.Helper()
	l = s.start(s.command("Runner.Worker", "sh", "-c", script))
	var err error
	for range 2 {
		word, pid, _ := strings.Cut(l.line(), " ")
		n, _ := strconv.Atoi(pid)
		id, err := proc.Identify(n)
		if err != nil {
			s.t.Fatal(err)
		}
		if word == "step" {
			shell = id
		} else {
			command = id
		}
	}
	if worker, err = proc.Identify(l.Process.Pid); err != nil {
		s.t.Fatal(err)
	}
	p, err := proc.Stat(command.PID)
	if err != nil {
		s.t.Fatal(err)
	}
	if run, err = proc.Identify(p.PPID); err != nil {
		s.t.Fatal(err)
	}
	return l, worker, shell, run, command
}

func TestRunInAJob(t *testing.T) {
	t.Parallel()
	const script = `hostlock run --reason r -- child hold; echo after`
	for _, tc := range []struct {
		name string
		kill func(worker, shell proc.Identity) proc.Identity
		says string
	}{
		{"the step's shell is killed", func(_, shell proc.Identity) proc.Identity { return shell }, "the step's process"},
		{"the worker is killed", func(worker, _ proc.Identity) proc.Identity { return worker }, "the job's process"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			l, worker, shell, run, command := s.job(script)
			kill(t, tc.kill(worker, shell), unix.SIGKILL)
			hasEnded(t, run)
			isGone(t, command)
			l.says(tc.says)
			s.free()
		})
	}
	t.Run("the worker is killed while the run waits", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		holder := s.start(s.run("--", "child", "hold"))
		holder.process("ready")
		l := s.start(s.command("Runner.Worker", "sh", "-c", `hostlock run --reason r -- echo ran; echo after`))
		l.says("waiting")
		shell := l.process("step")
		below := proc.Descendants(shell.PID)
		if len(below) != 1 {
			t.Fatalf("below the step's shell: %v", below)
		}
		run, err := proc.Identify(below[0].PID)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Process.Kill()
		hasEnded(t, run)
		if got := s.tickets(); len(got) != 2 {
			t.Errorf("in the lock directory: %s", got)
		}
		holder.signal(unix.SIGTERM)
		holder.expect(143)
		s.free()
	})
	t.Run("a step that exec'd hostlock", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		l, _, shell, run, command := s.job(`exec hostlock run --reason r -- child hold`)
		if shell.PID != run.PID {
			t.Fatal("not exec'd")
		}
		kill(t, run, unix.SIGINT)
		hasEnded(t, run)
		isGone(t, command)
		l.status()
		s.free()
	})
	t.Run("a command that ignores the cancel", func(t *testing.T) {
		t.Parallel()
		for try := 1; ; try++ {
			s := newSite(t)
			l, _, _, run, command := s.job(`exec hostlock run --reason r -- sh -c 'trap "" INT TERM; sh -c "trap \"\" INT TERM; sleep 1000 & wait; wait; while :; do sleep 1; done" & echo ready $$; while :; do wait; done'`)
			below := proc.Descendants(command.PID)
			began := time.Now()
			kill(t, run, unix.SIGINT)
			hasEnded(t, run)
			took := time.Since(began)
			if took < jobKillAfter {
				t.Errorf("it took %s", took)
			}
			isGone(t, command)
			for _, p := range below {
				if q, err := proc.Stat(p.PID); err == nil && q.Start == p.Start && q.State != 'Z' {
					t.Errorf("%d (%s) still runs", p.PID, p.Comm)
				}
			}
			l.says("and killed")
			s.free()
			// A machine that stalls for some seconds is late, and may sleep through the
			// time for the TERM. It does not so each time.
			termed := strings.Contains(l.err.String(), "sending it SIGTERM")
			if took <= jobKillAfter+5*time.Second && termed {
				return
			}
			if try == 3 {
				t.Fatalf("it took %s, SIGTERM was sent: %t; stderr:\n%s", took, termed, l.err)
			}
		}
	})
	t.Run("a shell that dies of the cancel leaves its benchmark", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		l, _, _, run, command := s.job(`exec hostlock run --reason r -- sh -c 'echo ready $$; sleep 1000 & wait; exit'`)
		below := proc.Descendants(command.PID)
		kill(t, run, unix.SIGTERM)
		hasEnded(t, run)
		for _, p := range below {
			if q, err := proc.Stat(p.PID); err == nil && q.Start == p.Start && q.State != 'Z' {
				t.Errorf("%d (%s) still runs", p.PID, p.Comm)
			}
		}
		l.status()
		s.free()
	})
}

// Signals at any moment of a run's life: the status is the command's or the
// signal's, nothing stays held, nothing runs on.
func TestRunSignalledAnytime(t *testing.T) {
	t.Parallel()
	n := 300
	if testing.Short() {
		n = 60
	}
	seed := uint64(20261130)
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	script := `echo ready $$; sleep 0.01; echo done; exit 5`
	s := newSite(t)
	begin := time.Now()
	l := s.start(s.run("--", "sh", "-c", script))
	l.expect(5)
	whole := time.Since(begin)
	kinds := []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1}
	outcomes := make(map[string]int)
	for i := range n {
		sig := kinds[rnd.IntN(len(kinds))]
		delay := time.Duration(rnd.Float64() * 1.2 * float64(whole))
		l := s.start(s.run("--", "sh", "-c", script))
		time.Sleep(delay)
		_ = l.Process.Signal(sig) // it may have ended
		status := l.status()
		text, _ := io.ReadAll(l.out)
		var pid int
		_, _ = fmt.Sscanf(string(text), "ready %d", &pid)
		finished := strings.Contains(string(text), "done")
		switch {
		case status == 5 && finished:
			outcomes["finished"]++
		case status == 128+int(sig) && pid == 0:
			outcomes["before the command"]++
		case status == 128+int(sig):
			outcomes["in the command"]++
		// Before the handlers are there: then there is no command either. (The
		// runtime turns a QUIT into exit 2.)
		case pid == 0 && (status == -int(sig) || sig == unix.SIGQUIT && status == 2):
			outcomes["before the handlers"]++
		default:
			t.Fatalf("round %d: %s after %s: status %d, stdout %q, stderr:\n%s", i, sig, delay, status, text, l.err)
		}
		if pid != 0 {
			if p, err := proc.Stat(pid); err == nil && p.Comm == "sh" {
				t.Fatalf("round %d: %s after %s: the command %d still runs", i, sig, delay, pid)
			}
		}
		s.free()
	}
	t.Log(outcomes)
}

// The end of a command can fall between the two looks of the loop, and between the
// looks and the sleep. There is no timer that would cover for a lost one.
func TestRunNeverMissesTheEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(s.command("child", "between")).expect(0)
	s.start(s.command("child", "late")).expect(128 + int(unix.SIGKILL))
}

// At a terminal too a signal from before the fork is passed on: the command
// was not there when the terminal sent it.
func TestRunSignalledBeforeTheFork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, slave := terminal(t)
	c := s.command("child", "early")
	c.Stdin, c.Stdout = slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	l := s.start(c)
	slave.Close()
	l.expect(130)
}

// Holding costs nothing: no timer, no wake-up.
func TestRunSleeps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.start(s.run("--", "child", "hold"))
	l.process("ready")
	// The runtime's monitor thread goes to sleep after a while, for which a loaded
	// machine may take its time. What has a timer never comes to rest.
	for try := 1; ; try++ {
		time.Sleep(time.Second)
		before := switches(t, l.Process.Pid)
		time.Sleep(4 * time.Second)
		n := switches(t, l.Process.Pid) - before
		if n <= 1 {
			break
		}
		if try == 4 {
			t.Errorf("%d voluntary context switches in 4 s", n)
			break
		}
	}
	l.signal(unix.SIGTERM)
	l.expect(143)
}

// switches are the voluntary context switches of all threads of a process.
func switches(t *testing.T, pid int) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	sum := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s*(\d+)`).FindSubmatch(text)
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func TestEnviron(t *testing.T) {
	got := environ([]string{"A=1", "HOSTLOCK_HELD=0", "HOSTLOCK_HELD_NOT=2", "odd"}, []string{"HOSTLOCK_HELD=1"})
	if want := []string{"A=1", "HOSTLOCK_HELD_NOT=2", "odd", "HOSTLOCK_HELD=1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
