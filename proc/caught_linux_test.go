package proc

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wakes opens the eventfd that the handler writes to.
func wakes(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	WakeBy(fd)
	t.Cleanup(func() { WakeBy(-1); unix.Close(fd) })
	return fd
}

// comes waits until the eventfd is readable, and empties it.
func comes(t *testing.T, fd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("nothing wakes: %d, %v", n, err)
		}
		_, _ = unix.Read(fd, make([]byte, 8))
		return
	}
}

func TestCatch(t *testing.T) {
	fd := wakes(t)
	kinds := []unix.Signal{unix.SIGHUP, unix.SIGUSR1, unix.SIGTERM, unix.SIGIO, unix.SIGSYS} // 1 to 31
	for _, s := range kinds {
		if err := Catch(s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = Uncatch(s) })
	}
	for _, s := range kinds {
		if err := unix.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		for comes(t, fd); !Caught().Has(s); comes(t, fd) {
		}
		if Caught() != 1<<s {
			t.Errorf("%s: caught %#x", unix.SignalName(s), Caught())
		}
		if got := Take(1 << s); got != 1<<s || Caught() != 0 {
			t.Errorf("%s: took %#x and left %#x", unix.SignalName(s), got, Caught())
		}
	}
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGTERM} {
		_ = unix.Kill(os.Getpid(), s)
		for comes(t, fd); !Caught().Has(s); comes(t, fd) {
		}
	}
	if got := Take(1 << unix.SIGHUP); got != 1<<unix.SIGHUP || Caught() != 1<<unix.SIGTERM {
		t.Errorf("took %#x and left %#x", got, Caught())
	}
	Take(1 << unix.SIGTERM)
	if s := Signals(1 << unix.SIGTERM); !s.Has(unix.SIGTERM) || s.Has(unix.SIGHUP) || s.Has(unix.SIGTERM+1) || Signals(0).Has(unix.SIGTERM) {
		t.Errorf("%#x has what it has not, or not what it has", s)
	}
	for _, s := range []unix.Signal{0, -1, 32, 64} {
		if Catch(s) == nil {
			t.Errorf("%d can be caught", s)
		}
	}
}

// A child has nothing of it: neither the handler nor, as a runtime that is told to ignore
// a signal would leave it, the will to ignore it.
func TestCaughtIsNotInherited(t *testing.T) {
	for _, s := range []unix.Signal{unix.SIGUSR1, unix.SIGTERM} {
		if err := Catch(s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = Uncatch(s) })
	}
	out, err := exec.Command("grep", "^Sig\\(Ign\\|Cgt\\|Blk\\)", "/proc/self/status").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var name string
		var set uint64
		if _, err := fmt.Sscanf(line, "%s %x", &name, &set); err != nil || set&(1<<(unix.SIGUSR1-1)|1<<(unix.SIGTERM-1)) != 0 {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// What was interrupted goes on with the registers and flags that it had, wherever in the
// program, the allocator and the collector included, that was.
func TestCatchDisturbsNothing(t *testing.T) {
	fd := wakes(t)
	if err := Catch(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Uncatch(unix.SIGUSR1); Take(1 << unix.SIGUSR1) })
	var over atomic.Bool
	var work sync.WaitGroup
	block := make([]byte, 4096)
	want := sha256.Sum256(block)
	for range 3 {
		work.Go(func() {
			for !over.Load() {
				fresh := append([]byte(nil), block...)
				if got := sha256.Sum256(fresh); got != want {
					t.Error("a checksum is wrong")
				}
				if deep(100) != 100 {
					t.Error("a sum is wrong")
				}
			}
		})
	}
	for range 20_000 {
		if err := unix.Kill(os.Getpid(), unix.SIGUSR1); err != nil {
			t.Error(err)
		}
	}
	over.Store(true)
	work.Wait()
	// Each goes to one thread, which takes it when it is run.
	if comes(t, fd); !Caught().Has(unix.SIGUSR1) {
		t.Error("none came")
	}
}

//go:noinline
func deep(n int) int {
	var pad [256]byte
	if n == 0 {
		return int(pad[0])
	}
	return 1 + deep(n-1)
}

// helpCaught catches TERM and USR1, and says what comes.
func helpCaught(mode string) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	must(err)
	WakeBy(fd)
	must(Catch(unix.SIGTERM))
	must(Catch(unix.SIGUSR1))
	fmt.Println("ready", Ignored(unix.SIGHUP), Ignored(unix.SIGTERM))
	for {
		_, err := unix.Read(fd, make([]byte, 8))
		if err == unix.EINTR {
			continue
		}
		must(err)
		switch came := Take(^Signals(0)); came {
		case 1 << unix.SIGTERM:
			if mode == "uncaught" {
				must(Uncatch(unix.SIGTERM))
			}
			fmt.Println("TERM")
		case 1 << unix.SIGUSR1:
			out, err := exec.Command("grep", "^SigBlk", "/proc/self/status").Output()
			must(err)
			fmt.Print("USR1, and a child has ", string(out))
		default:
			fmt.Println("came", came)
		}
	}
}

// caughtBy starts helpCaught.
func caughtBy(t *testing.T, mode string) (c *exec.Cmd, hears func() string) {
	t.Helper()
	c = exec.Command(os.Args[0])
	c.Env = append(os.Environ(), modeEnv+"="+mode)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() })
	t.Cleanup(func() { late.Stop(); _ = c.Process.Kill(); _ = c.Wait() })
	lines := bufio.NewScanner(out)
	hears = func() string { lines.Scan(); return lines.Text() }
	if got := hears(); !strings.HasPrefix(got, "ready ") {
		t.Fatalf("%s: heard %q", mode, got)
	}
	return c, hears
}

// Who catches a signal no more dies of it.
func TestUncatch(t *testing.T) {
	c, hears := caughtBy(t, "caught")
	for range 3 {
		_ = c.Process.Signal(unix.SIGTERM)
		if got := hears(); got != "TERM" {
			t.Fatalf("heard %q", got)
		}
	}
	c, hears = caughtBy(t, "uncaught")
	_ = c.Process.Signal(unix.SIGTERM)
	if got := hears(); got != "TERM" {
		t.Fatalf("heard %q", got)
	}
	_ = c.Process.Signal(unix.SIGTERM)
	_ = c.Wait()
	if got := c.ProcessState.Sys().(interface{ Signal() unix.Signal }).Signal(); got != unix.SIGTERM {
		t.Errorf("ended by %s", unix.SignalName(got))
	}
}

// Whoever started us may have blocked what we catch. We hear of it all the same, and our
// child has it blocked.
func TestCatchWhatIsBlocked(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old, usr1 unix.Sigset_t
	usr1.Val[0] = 1 << (unix.SIGUSR1 - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &usr1, &old); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	c, hears := caughtBy(t, "caught")
	_ = c.Process.Signal(unix.SIGUSR1)
	var set uint64
	got := hears()
	if _, err := fmt.Sscanf(got, "USR1, and a child has SigBlk: %x", &set); err != nil || set&(1<<(unix.SIGUSR1-1)) == 0 {
		t.Errorf("heard %q: %v", got, err)
	}
}

// What is ignored from the start can be told of HUP and INT.
func TestIgnored(t *testing.T) {
	t.Cleanup(func() { signal.Reset(unix.SIGHUP) })
	for _, ignored := range []bool{true, false} {
		if ignored {
			signal.Ignore(unix.SIGHUP)
		} else {
			signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
		}
		if Ignored(unix.SIGHUP) != ignored {
			t.Errorf("ignored: %t, want %t", !ignored, ignored)
		}
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), modeEnv+"=caught")
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		_ = c.Process.Kill()
		_ = c.Wait()
		if want := fmt.Sprintln("ready", ignored, false); line != want {
			t.Errorf("%q, %v; want %q", line, err, want)
		}
	}
}
