package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// The tests need real processes. This test binary is all of them, by the name
// that it is called by: hostlock itself, a command that it runs (child), and a
// stand-in for the program that runs a CI job (Runner.Worker).
func init() {
	switch filepath.Base(os.Args[0]) {
	case "hostlock":
		os.Exit(start(os.Args[1:], os.Stdout, os.Stderr))
	case "child":
		child(os.Args[1:])
		os.Exit(0)
	case "Runner.Worker":
		c := exec.Command(os.Args[1], os.Args[2:]...)
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		if c.Start() != nil {
			os.Exit(99)
		}
		fmt.Println("step", c.Process.Pid)
		_ = c.Wait()
		os.Exit(0)
	}
}

// child is a command under test. Each kind says "ready PID" once it is set up.
func child(args []string) {
	ready := func() { fmt.Println("ready", os.Getpid()) }
	switch args[0] {
	case "hold": // until it is killed
		ready()
		for {
			_ = unix.Pause()
		}
	case "spin": // busy until it is killed
		ready()
		for n := uint(0); ; n++ {
			_ = n * n
		}
	case "count": // names the signals it gets; USR1 makes it sum up and exit 4
		c := make(chan os.Signal, 64)
		signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
		ready()
		got := make(map[os.Signal]int)
		for s := range c {
			got[s]++
			fmt.Println("got", unix.SignalName(s.(unix.Signal)))
			if s == unix.SIGUSR1 {
				fmt.Printf("sum INT=%d TERM=%d HUP=%d QUIT=%d\n", got[unix.SIGINT], got[unix.SIGTERM], got[unix.SIGHUP], got[unix.SIGQUIT])
				os.Exit(4)
			}
		}
	case "between": // a command that ends between the two looks of the loop
		in, err := listen()
		if err != nil {
			os.Exit(99)
		}
		s := &supervisor{in: in, family: newFamily(""), say: say}
		s.between = func() {
			if !s.ended.IsZero() {
				return
			}
			_ = unix.Waitid(unix.P_PID, s.command.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			// Its signal follows, unless the loop had it before: on a loaded machine
			// the command can end before the first look.
			for range 100 {
				if proc.Caught().Has(unix.SIGCHLD) {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		if s.command, err = launch("/bin/true", []string{"true"}, nil); err != nil {
			os.Exit(99)
		}
		os.Exit(exitStatus(s.run().status))
	case "late": // a command that ends between the loop's look and its sleep
		in, err := listen()
		if err != nil {
			os.Exit(99)
		}
		s := &supervisor{in: in, job: &jobWatch{who: []string{"a job"}, pidfd: []int{gone}}, family: newFamily("")}
		s.say = func(string, ...any) { // of the job's end, after the look
			must(proc.SignalFD(s.command.pidfd, unix.SIGKILL))
			_ = unix.Waitid(unix.P_PID, s.command.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			s.say = say
		}
		if s.command, err = launch("/bin/sleep", []string{"sleep", "1000"}, nil); err != nil {
			os.Exit(99)
		}
		os.Exit(exitStatus(s.run().status))
	case "early": // a command whose signal came before it was there
		in, err := listen()
		if err != nil {
			os.Exit(99)
		}
		if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
			os.Exit(99)
		}
		for in.Err() == nil {
			poll([]unix.PollFd{{Fd: int32(in.wake), Events: unix.POLLIN}}, 0)
		}
		s := &supervisor{in: in, family: newFamily(""), say: say}
		if s.command, err = launch("/bin/sleep", []string{"sleep", "1000"}, nil); err != nil {
			os.Exit(99)
		}
		s.early = in.take()
		os.Exit(exitStatus(s.run().status))
	case "fds": // where its descriptors lead
		names, _ := os.ReadDir("/proc/self/fd")
		for _, n := range names {
			to, _ := os.Readlink("/proc/self/fd/" + n.Name())
			fmt.Println(n.Name(), to)
		}
	default:
		work(args)
	}
}

// A site is a lock directory of a test's own, and the programs.
type site struct {
	t        *testing.T
	dir, bin string
}

func newSite(t *testing.T) *site {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t, filepath.Join(t.TempDir(), "lock"), t.TempDir()}
	for _, name := range []string{"hostlock", "child", "Runner.Worker", "boxed"} {
		if err := os.Symlink(exe, filepath.Join(s.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// command prepares a program with nothing of hostlock or CI in its environment.
func (s *site) command(name string, args ...string) *exec.Cmd {
	s.t.Helper()
	if !strings.Contains(name, "/") {
		if p := filepath.Join(s.bin, name); exists(p) {
			name = p
		}
	}
	c := exec.Command(name, args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOSTLOCK_") && !strings.HasPrefix(e, "GITHUB_") && !strings.HasPrefix(e, "PATH=") {
			c.Env = append(c.Env, e)
		}
	}
	c.Env = append(c.Env, "HOSTLOCK_DIR="+s.dir, "HOSTLOCK_PRIVATE_OK=1", "PATH="+s.bin+":"+os.Getenv("PATH"))
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal, whatever we have
	return c
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// run prepares "hostlock run" with a reason.
func (s *site) run(args ...string) *exec.Cmd {
	return s.command("hostlock", append([]string{"run", "--reason", "a test"}, args...)...)
}

// A live is a program that was started; its lines arrive on out.
type live struct {
	*exec.Cmd
	t   *testing.T
	out *bufio.Reader
	in  io.WriteCloser
	err *lines
}

func (s *site) start(c *exec.Cmd) *live {
	s.t.Helper()
	l := &live{Cmd: c, t: s.t, err: newLines()}
	if c.Stdin == nil {
		in, err := c.StdinPipe()
		if err != nil {
			s.t.Fatal(err)
		}
		l.in = in
	}
	if c.Stdout == nil {
		// Not StdoutPipe: Wait would close it, and what is left behind may still write.
		r, w, err := os.Pipe()
		if err != nil {
			s.t.Fatal(err)
		}
		c.Stdout = w
		l.out = bufio.NewReader(r)
		defer w.Close()
		s.t.Cleanup(func() { r.Close() })
	}
	r, w, err := os.Pipe() // as a file, so that Wait does not wait for who has it
	if err != nil {
		s.t.Fatal(err)
	}
	c.Stderr = w
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	w.Close()
	go l.err.read(r)
	s.t.Cleanup(func() {
		if c.ProcessState == nil {
			below := proc.Descendants(c.Process.Pid)
			_ = c.Process.Kill()
			_ = c.Wait()
			for _, p := range below { // what it runs would stay for ever
				if id, err := p.Identify(); err == nil {
					if fd, l := proc.Open(id); l == proc.Alive {
						_ = proc.SignalFD(fd, unix.SIGKILL)
						unix.Close(fd)
					}
				}
			}
		}
	})
	return l
}

// patience bounds a wait for an event that has to come.
const patience = 60 * time.Second

// line is the next line of stdout.
func (l *live) line() string {
	l.t.Helper()
	type read struct {
		s   string
		err error
	}
	c := make(chan read, 1)
	go func() {
		s, err := l.out.ReadString('\n')
		c <- read{strings.TrimRight(s, "\r\n"), err}
	}()
	select {
	case r := <-c:
		if r.err != nil {
			l.t.Fatalf("stdout: %q, %v; stderr:\n%s", r.s, r.err, l.err)
		}
		return r.s
	case <-time.After(patience):
		l.t.Fatalf("no line came; stderr:\n%s", l.err)
	}
	return ""
}

// number reads lines until one begins with a word, and returns its number.
func (l *live) number(word string) int {
	l.t.Helper()
	for {
		if n, ok := strings.CutPrefix(l.line(), word+" "); ok {
			v, err := strconv.Atoi(n)
			if err != nil {
				l.t.Fatal(err)
			}
			return v
		}
	}
}

// process is the process that a line like "ready 123" names.
func (l *live) process(word string) proc.Identity {
	l.t.Helper()
	id, err := proc.Identify(l.number(word))
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

// status waits for the end, and returns the exit status as a shell has it.
func (l *live) status() int {
	l.t.Helper()
	timer := time.AfterFunc(patience, func() { _ = l.Process.Kill() })
	err := l.Wait()
	if !timer.Stop() {
		l.t.Fatalf("it does not end; stderr:\n%s", l.err)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		l.t.Fatal(err)
	}
	if ws := l.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return -int(ws.Signal()) // hostlock itself was killed: never a status of the command
	} else {
		return ws.ExitStatus()
	}
}

func (l *live) signal(s syscall.Signal) {
	l.t.Helper()
	if err := l.Process.Signal(s); err != nil {
		l.t.Fatal(err)
	}
}

// expect checks the exit status.
func (l *live) expect(status int) {
	l.t.Helper()
	if got := l.status(); got != status {
		l.t.Fatalf("exit status %d, want %d; stderr:\n%s", got, status, l.err)
	}
}

// says waits until stderr has a text.
func (l *live) says(text string) {
	l.t.Helper()
	if !l.err.await(text) {
		l.t.Fatalf("stderr does not say %q:\n%s", text, l.err)
	}
}

// lines collects stderr.
type lines struct {
	mu   sync.Mutex
	cond *sync.Cond
	b    bytes.Buffer
	end  bool
}

func newLines() *lines {
	l := new(lines)
	l.cond = sync.NewCond(&l.mu)
	return l
}

func (l *lines) read(r *os.File) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		l.mu.Lock()
		l.b.Write(buf[:n])
		l.end = err != nil
		l.mu.Unlock()
		l.cond.Broadcast()
		if err != nil {
			r.Close()
			return
		}
	}
}

func (l *lines) await(text string) bool {
	late := false
	timer := time.AfterFunc(patience, func() {
		l.mu.Lock()
		late = true
		l.mu.Unlock()
		l.cond.Broadcast()
	})
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !strings.Contains(l.b.String(), text) {
		if l.end || late {
			return false
		}
		l.cond.Wait()
	}
	return true
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// tickets are the names of what is in the queue or holds.
func (s *site) tickets() []string {
	s.t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "guard" && e.Name() != "history.jsonl" {
			names = append(names, e.Name())
		}
	}
	return names
}

// free checks that nothing is held or left in the lock directory.
func (s *site) free() {
	s.t.Helper()
	if names := s.tickets(); len(names) > 0 {
		s.t.Fatalf("left in the lock directory: %s", names)
	}
}

// past is the history's last line.
func (s *site) past() lock.Past {
	s.t.Helper()
	d, err := lock.OpenToLook(lock.Location{Path: s.dir})
	if err != nil {
		s.t.Fatal(err)
	}
	defer d.Close()
	h, err := d.History()
	if err != nil || len(h) == 0 {
		s.t.Fatalf("history: %d lines, %v", len(h), err)
	}
	return h[len(h)-1]
}

// ended waits until a process is gone.
func hasEnded(t *testing.T, id proc.Identity) {
	t.Helper()
	fd, l := proc.Open(id)
	if l == proc.Gone {
		return
	}
	if fd < 0 {
		t.Fatalf("process %d cannot be watched: %s", id.PID, l)
	}
	defer unix.Close(fd)
	if !becomesReadable(fd) {
		t.Fatalf("process %d does not end", id.PID)
	}
}

// becomesReadable waits until a descriptor is readable.
func becomesReadable(fd int) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(end)/time.Millisecond)+1)
		if n > 0 || err != nil && err != unix.EINTR {
			return true
		}
	}
	return false
}

// alive checks that a process runs, and ends it with the test.
func alive(t *testing.T, id proc.Identity) {
	t.Helper()
	fd, l := proc.Open(id)
	if l != proc.Alive {
		t.Fatalf("process %d is %s", id.PID, l)
	}
	t.Cleanup(func() {
		_ = proc.SignalFD(fd, unix.SIGKILL)
		unix.Close(fd)
	})
}

func isGone(t *testing.T, id proc.Identity) {
	t.Helper()
	if l := proc.Look(id); l != proc.Gone {
		fd, _ := proc.Open(id)
		_ = proc.SignalFD(fd, unix.SIGKILL)
		t.Fatalf("process %d is %s after the run has ended", id.PID, l)
	}
}

func kill(t *testing.T, id proc.Identity, s unix.Signal) {
	t.Helper()
	fd, l := proc.Open(id)
	if fd < 0 {
		t.Fatalf("process %d is %s", id.PID, l)
	}
	defer unix.Close(fd)
	if err := proc.SignalFD(fd, s); err != nil {
		t.Fatal(err)
	}
}
