//go:build linux

// Package rig is what the hostile programs share: a lock directory of their
// own, the hostlock under test, and the question that each of them asks after
// whatever it did: does the next in line get the host, exactly once, with nothing
// to clean up by hand?
package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The main thread adopts what outlives its own parent. It must not be the one
// that traces, which would wait for those as well.
func init() { runtime.LockOSThread() }

// Bound is how long anything may take. It is for a loaded machine with two
// cores; what is needed is reported.
const Bound = 30 * time.Second

// A Rig is a lock directory and the hostlock under test.
type Rig struct {
	Hostlock string
	Root     string // a directory of our own; the lock directory is below it
	Dir      string
}

// Build builds hostlock, unless a path is given, and returns where it is. What
// a race detector would add are system calls of its own.
func Build(path string) (string, error) {
	if path != "" {
		return filepath.Abs(path)
	}
	dir, err := os.MkdirTemp("", "hostlock-hostile-")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "hostlock")
	c := exec.Command("go", "build", "-race=false", "-o", path, "github.com/org/hostlock-action/cmd/hostlock")
	c.Stderr = os.Stderr
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	return path, c.Run()
}

// New makes a rig. We are the parent of whatever outlives its own.
func New(hostlock string) (*Rig, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "hostlock-hostile-")
	if err != nil {
		return nil, err
	}
	return &Rig{Hostlock: hostlock, Root: root, Dir: filepath.Join(root, "lock")}, nil
}

// Env is an environment without anything of CI or hostlock but its directory.
func (r *Rig) Env() []string {
	return []string{"HOSTLOCK_DIR=" + r.Dir, "HOSTLOCK_PRIVATE_OK=1", "PATH=" + os.Getenv("PATH"), "USER=hostile", "HOSTLOCK_CONF=" + filepath.Join(r.Root, "no.conf"),
		// For the hooks; outside a job, nothing else reads these.
		"GITHUB_ENV=" + filepath.Join(r.Root, "github_env"), "GITHUB_STEP_SUMMARY=" + filepath.Join(r.Root, "github_summary")}
}

// Fresh begins with a directory that nobody used. made says whether it exists.
func (r *Rig) Fresh(made bool) error {
	if err := os.RemoveAll(r.Root); err != nil {
		return err
	}
	if err := os.Mkdir(r.Root, 0o755); err != nil || !made {
		return err
	}
	if code, out, err := r.Run("run", "--reason", "begin", "--", "true"); err != nil || code != 0 {
		return fmt.Errorf("begin: exit %d, %v: %s", code, err, out)
	}
	return nil
}

// Cmd prepares a hostlock command.
func (r *Rig) Cmd(args ...string) *exec.Cmd {
	c := exec.Command(r.Hostlock, args...)
	c.Env = r.Env()
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return c
}

// Run runs hostlock to its end and returns its exit code, its stdout and its
// stderr in one.
func (r *Rig) Run(args ...string) (int, string, error) {
	return Finish(r.Cmd(args...))
}

// Finish runs a command to its end, within Bound.
func Finish(c *exec.Cmd) (int, string, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	// A keeper has neither; whoever else still has them is not waited for.
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		return -1, "", err
	}
	late := false
	timer := time.AfterFunc(Bound, func() { late = true; _ = c.Process.Kill() })
	err := c.Wait()
	timer.Stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return -1, out.String(), err
	}
	if late {
		return -1, out.String(), fmt.Errorf("%q has not ended after %s", c.Args, Bound)
	}
	return c.ProcessState.ExitCode(), out.String(), nil
}

// Status is what hostlock status --porcelain says.
func (r *Rig) Status() (map[string]string, error) {
	code, out, err := r.Run("status", "--porcelain")
	if err != nil || code != 0 {
		return nil, fmt.Errorf("status: exit %d, %v: %s", code, err, out)
	}
	return Fields(out), nil
}

// Fields reads lines of key=value.
func Fields(text string) map[string]string {
	m := make(map[string]string)
	for line := range linesOf([]byte(text)) {
		if k, v, ok := strings.Cut(line, "="); ok {
			m[k] = v
		}
	}
	return m
}

func linesOf(b []byte) iter.Seq[string] { return strings.SplitSeq(string(b), "\n") }

// sole is a command that only one may run at a time: a second one fails.
const sole = `mkdir "$0" && rmdir "$0"`

// Next asks for the host twice at once, which waits for whoever is before. Both
// must get it, one after the other, and of a takeover one may speak, if any. It
// returns how many did, and how long it took.
func (r *Rig) Next() (takeovers int, took time.Duration, err error) {
	since := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range 2 {
		wg.Go(func() {
			code, out, err := r.Run("run", "--reason", "next", "--timeout", "25", "--", "sh", "-c", sole, filepath.Join(r.Root, "sole"))
			mu.Lock()
			defer mu.Unlock()
			if err != nil || code != 0 {
				errs = append(errs, fmt.Errorf("the next in line: exit %d, %v: %s", code, err, strings.TrimSpace(out)))
			}
			if strings.Contains(out, "outcome=acquired_after_reap") {
				takeovers++
			}
		})
	}
	wg.Wait()
	return takeovers, time.Since(since), errors.Join(errs...)
}

// Tidy checks that nothing is in the lock directory or beside it that should
// not be.
func (r *Rig) Tidy() error {
	for _, dir := range []string{r.Root, r.Dir} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			switch e.Name() {
			case "guard", "history.jsonl", "host", "lock", "github_env", "github_summary":
			default:
				return fmt.Errorf("left: %s", filepath.Join(dir, e.Name()))
			}
		}
	}
	return nil
}

// Alone waits until no process that was begun here is left.
func Alone() error {
	late := make(chan struct{})
	timer := time.AfterFunc(Bound, func() {
		close(late)
		// Whatever is left is a child of ours: it is named and ended, so that the
		// wait below ends.
		b, _ := os.ReadFile("/proc/self/task/" + fmt.Sprint(os.Getpid()) + "/children")
		for _, pid := range strings.Fields(string(b)) {
			var n int
			if _, err := fmt.Sscan(pid, &n); err == nil {
				_ = unix.Kill(n, unix.SIGKILL)
			}
		}
	})
	defer timer.Stop()
	for {
		_, err := unix.Wait4(-1, nil, unix.WALL, nil)
		if err == unix.EINTR || err == nil {
			continue
		}
		select {
		case <-late:
			return fmt.Errorf("a process was left, and did not end in %s", Bound)
		default:
			return nil
		}
	}
}

// A Process is one that only lives, as an anchor, until it is ended.
type Process struct {
	*exec.Cmd
	in io.Closer
}

// Living starts a process that lives until End.
func Living() (*Process, error) {
	c := exec.Command("cat")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &Process{c, in}, c.Start()
}

// End ends it and waits for it.
func (p *Process) End() {
	if p.ProcessState == nil {
		p.in.Close()
		_ = p.Wait()
	}
}

// Name names the calls that this program decides about, for its messages.
func Name(nr uint64) string {
	if n, ok := names[nr]; ok {
		return n
	}
	return fmt.Sprintf("syscall %d", nr)
}

var names = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_CLOSE: "close", unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_PREAD64: "pread64",
	unix.SYS_PWRITE64: "pwrite64", unix.SYS_FLOCK: "flock", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_FCHMOD: "fchmod", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_FSTAT: "fstat", unix.SYS_STATX: "statx", unix.SYS_FSTATFS: "fstatfs", unix.SYS_GETDENTS64: "getdents64",
	unix.SYS_FACCESSAT: "faccessat", unix.SYS_FACCESSAT2: "faccessat2", unix.SYS_PIDFD_OPEN: "pidfd_open", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal",
	unix.SYS_INOTIFY_INIT1: "inotify_init1", unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch", unix.SYS_EVENTFD2: "eventfd2",
	unix.SYS_PPOLL: "ppoll", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3",
	unix.SYS_EXECVE: "execve", unix.SYS_WAIT4: "wait4", unix.SYS_WAITID: "waitid", unix.SYS_CLOSE_RANGE: "close_range",
	unix.SYS_PRCTL: "prctl", unix.SYS_GETRANDOM: "getrandom", unix.SYS_FCNTL: "fcntl", unix.SYS_READLINKAT: "readlinkat",
	unix.SYS_FUTEX: "futex", unix.SYS_MMAP: "mmap", unix.SYS_MUNMAP: "munmap", unix.SYS_EXIT_GROUP: "exit_group", unix.SYS_EXIT: "exit",
	unix.SYS_RT_SIGACTION: "rt_sigaction", unix.SYS_RT_SIGPROCMASK: "rt_sigprocmask", unix.SYS_KILL: "kill", unix.SYS_GETPID: "getpid",
	unix.SYS_PIPE2: "pipe2", unix.SYS_DUP3: "dup3", unix.SYS_GETUID: "getuid", unix.SYS_GETEUID: "geteuid", unix.SYS_MADVISE: "madvise",
	unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_SETSID: "setsid", unix.SYS_CHDIR: "chdir", unix.SYS_UMASK: "umask", unix.SYS_IOCTL: "ioctl",
}
