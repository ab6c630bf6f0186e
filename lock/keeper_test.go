//go:build linux

package lock

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// keptHost is a lock that an acquire took for a process and left to a keeper.
func keptHost(t *testing.T, e errand) (h *host, anchor *helper, keeper int, taken report) {
	t.Helper()
	h = newHost(t)
	anchor = plain(t, "idle")
	e.Dir, e.Anchor = h.path, anchor.Process.Pid
	c := errandCmd(t, "hold", e)
	// What the taker has open without close-on-exec, as a shell's children do.
	for range 8 {
		c.ExtraFiles = append(c.ExtraFiles, os.Stderr)
	}
	taker := start(t, c)
	taken = taker.hears(t, "held")
	if err := taker.Wait(); err != nil {
		t.Fatal(err)
	}
	ks := h.keepers()
	if len(ks) != 1 {
		t.Fatalf("keepers %v, want one", ks)
	}
	t.Cleanup(func() {
		unix.Kill(ks[0], unix.SIGKILL)
		unix.Wait4(ks[0], nil, 0, nil)
	})
	return h, anchor, ks[0], taken
}

// A goroutine may run on any thread; the name that ps shows is the main one's.
func TestNameProcess(t *testing.T) {
	was, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	defer nameProcess(strings.TrimSpace(string(was)))
	const name = "not by chance"
	// Of two threads that goroutines hold at the same time, one is not the main one.
	var named, both sync.WaitGroup
	both.Add(2)
	for range 2 {
		named.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			both.Done()
			both.Wait()
			if unix.Gettid() != unix.Getpid() {
				nameProcess(name)
			}
		})
	}
	named.Wait()
	if is, err := os.ReadFile("/proc/self/comm"); err != nil || string(is) != name+"\n" {
		t.Errorf("%q, %v, want %q", is, err, name)
	}
}

// ends waits for a keeper, which is our child, to exit, and returns its status.
func ends(t *testing.T, keeper int) int {
	t.Helper()
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(keeper, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return ws.ExitStatus()
	}
}

// The taker has gone, and the lock stays with its anchor. The keeper has
// nothing of its taker's: no descriptor, no environment, no directory, no terminal.
func TestKeeper(t *testing.T) {
	h, anchor, keeper, taken := keptHost(t, errand{})
	v := h.want(HeldNow)
	tk := v.Holders[0]
	if tk.ID() != taken.ID || tk.Record.Anchor.PID != anchor.Process.Pid || tk.Record.Body.PID != keeper || tk.Record.Embodied() {
		t.Errorf("anchor %+v, body %+v", tk.Record.Anchor, tk.Record.Body)
	}
	if _, err := h.acquire(); !errors.As(err, new(*BusyError)) {
		t.Fatalf("beside it: %v", err)
	}
	base := "/proc/" + strconv.Itoa(keeper)
	if cwd, err := os.Readlink(base + "/cwd"); err != nil || cwd != "/" {
		t.Errorf("its directory is %q, %v", cwd, err)
	}
	if env, err := os.ReadFile(base + "/environ"); err != nil || len(env) > 0 {
		t.Errorf("its environment is %q, %v", env, err)
	}
	if p, err := proc.Stat(keeper); err != nil || p.Session != keeper || p.TTYNR != 0 || p.Comm != "hostlock" {
		t.Errorf("%+v, %v: not a session of its own", p, err)
	}
	fds := openFiles(t, keeper)
	for fd, link := range fds {
		switch {
		case fd <= 2 && link == "/dev/null",
			fd == keeperLockFD && link == h.path+"/"+tk.entry.name()+lockSuffix,
			fd == keeperDirFD && link == h.path,
			fd > keeperDirFD && (strings.Contains(link, "inotify") || strings.Contains(link, "pidfd") || strings.Contains(link, "eventfd") || strings.Contains(link, "eventpoll")):
		default:
			t.Errorf("descriptor %d is %s", fd, link)
		}
	}
	for _, fd := range []int{0, 1, 2, keeperLockFD} {
		if fds[fd] == "" {
			t.Errorf("descriptor %d is closed: %v", fd, fds)
		}
	}
	// The ticket belongs to the process that has its kernel lock.
	d := h.dir()
	fd, _, err := d.openFile(tk.entry.name()+lockSuffix, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if probeLock(fd) != lockHeld {
		t.Error("the kernel lock is free")
	}

	anchor.killed(t)
	if status := ends(t, keeper); status != 0 {
		t.Errorf("it ended with status %d", status)
	}
	h.want(Stale)
	if probeLock(fd) != lockFree {
		t.Error("the kernel lock is still held")
	}
	if o := h.take(); o != "acquired_after_reap (stale_pid)" {
		t.Error(o)
	}
}

func openFiles(t *testing.T, pid int) map[int]string {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	var links map[int]string
	// The taker is told before the keeper has closed its pipe.
	for range 1000 {
		links = map[int]string{}
		names, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			fd, err := strconv.Atoi(n.Name())
			if err != nil {
				t.Fatal(err)
			}
			if link, err := os.Readlink(dir + n.Name()); err == nil {
				links[fd] = link
			}
		}
		if links[keeperPipeFD] == "" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return links
}

// Killed, the keeper changes nothing for those who see the anchor.
func TestKeeperKilled(t *testing.T) {
	h, anchor, keeper, _ := keptHost(t, errand{})
	unix.Kill(keeper, unix.SIGKILL)
	waitDead(t, keeper)
	h.want(HeldNow)
	if _, err := h.acquire(); !errors.As(err, new(*BusyError)) {
		t.Fatalf("beside it: %v", err)
	}
	anchor.killed(t)
	h.want(Stale)
}

// A keeper that is stopped, and an anchor that is.
func TestKeeperStopped(t *testing.T) {
	h, anchor, keeper, _ := keptHost(t, errand{})
	unix.Kill(keeper, unix.SIGSTOP)
	waitid(t, keeper, unix.WSTOPPED)
	anchor.stopped(t)
	h.want(HeldNow)
	anchor.killed(t)
	h.want(Stale)
	if o := h.take(); o != "acquired_after_reap (stale_pid)" {
		t.Error(o)
	}
	unix.Kill(keeper, unix.SIGCONT)
	ends(t, keeper)
	h.want(Free)
}

// Released by another process of the job, the keeper ends.
func TestKeeperEndsWithItsTicket(t *testing.T) {
	for _, force := range []bool{false, true} {
		h, anchor, keeper, taken := keptHost(t, errand{})
		if _, err := h.dir().Release(taken.ID, Caller{UID: unix.Getuid()}, force); err != nil {
			t.Fatal(err)
		}
		if status := ends(t, keeper); status != 0 {
			t.Errorf("it ended with status %d", status)
		}
		h.want(Free)
		if proc.Look(h.identity(anchor.Process.Pid)) != proc.Alive {
			t.Error("the anchor is dead")
		}
	}
}

func (h *host) identity(pid int) proc.Identity {
	h.Helper()
	id, err := proc.Identify(pid)
	if err != nil {
		h.Fatal(err)
	}
	return id
}

// Past its ttl it is taken over, and the keeper ends; the anchor is left alone.
func TestKeeperEvicted(t *testing.T) {
	h, anchor, keeper, _ := keptHost(t, errand{TTL: time.Second})
	next := send(t, errand{Dir: h.path, Wait: true})
	if r := next.next(t); r.Event == "waiting" {
		r = next.hears(t, "held")
		if r.Outcome != "acquired_after_reap (ttl_expired)" {
			t.Error(r.Outcome)
		}
	}
	ends(t, keeper)
	h.want(HeldNow)
	if proc.Look(h.identity(anchor.Process.Pid)) != proc.Alive {
		t.Error("the anchor is dead")
	}
}

// Killed after the record names the anchor and the keeper, and before the word
// that makes it so: nothing stays held.
func TestTakerKilledBeforeItsWord(t *testing.T) {
	for _, word := range []string{"", "comm", "commit"} { // without its end of line it is none
		t.Run("said "+word, func(t *testing.T) {
			h := newHost(t)
			anchor := plain(t, "idle")
			hold, err := h.acquire()
			if err != nil {
				t.Fatal(err)
			}
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ours := os.NewFile(uintptr(pair[0]), "keeper")
			defer ours.Close()
			keeper, err := spawnKeeper(hold, pair[1])
			unix.Close(pair[1])
			if err != nil {
				t.Fatal(err)
			}
			told := hold.Record
			told.Anchor = Party{Identity: h.identity(anchor.Process.Pid)}
			told.Body = Party{Identity: h.identity(keeper)}
			if err := json.NewEncoder(ours).Encode(orders{told, h.path, hold.entry.name()}); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(ours).ReadString('\n'); line != keeperReady+"\n" {
				t.Fatal(line, err)
			}
			if err := hold.become(told, nil); err != nil {
				t.Fatal(err)
			}
			h.want(HeldNow)
			fmt.Fprint(ours, word)
			// The taker dies: the kernel closes what it had open.
			ours.Close()
			unix.Close(hold.lockFD)
			hold.lockFD = -1
			ends(t, keeper)
			h.want(Free)
			if o := h.take(); o != "acquired" {
				t.Error(o)
			}
		})
	}
}

// The taker is killed anywhere between its first step and its last. Either the
// keeper was told to keep the lock, or nothing is held.
func TestTakerKilledAnywhere(t *testing.T) {
	h := newHost(t)
	anchor := plain(t, "idle")
	e := errand{Dir: h.path, Anchor: anchor.Process.Pid, Barrier: true, Ignore: true}
	// How long a whole taking is here and now.
	taker := send(t, e)
	taker.hears(t, "ready")
	begin := time.Now()
	fmt.Fprintln(taker.in)
	taker.hears(t, "held")
	whole := time.Since(begin)
	taker.Wait()
	v := h.want(HeldNow)
	if _, err := h.dir().Release(v.Holders[0].ID(), Caller{UID: unix.Getuid()}, false); err != nil {
		t.Fatal(err)
	}
	for _, k := range h.keepers() {
		ends(t, k)
	}

	kept, nothing := 0, 0
	for i := range 40 {
		taker := send(t, e)
		taker.hears(t, "ready")
		fmt.Fprintln(taker.in)
		time.Sleep(time.Duration(rand.Int64N(int64(whole))))
		taker.killed(t)
		taker.Wait()
		// What it had begun comes to its end: the keeper, if there is one,
		// keeps on without its pipe, or exits.
		keeper := 0
		for {
			ks := h.keepers()
			if len(ks) == 0 {
				keeper = 0
				break
			}
			keeper = ks[0]
			var ws unix.WaitStatus
			if pid, _ := unix.Wait4(keeper, &ws, unix.WNOHANG, nil); pid == keeper {
				keeper = 0
				break
			}
			if _, err := os.Readlink("/proc/" + strconv.Itoa(keeper) + "/fd/" + strconv.Itoa(keeperPipeFD)); errors.Is(err, os.ErrNotExist) {
				if comm, err := proc.Stat(keeper); err == nil && comm.State != 'Z' {
					break
				}
			}
			time.Sleep(time.Millisecond)
		}
		v := h.view()
		if keeper != 0 {
			kept++
			if v.State != HeldNow || v.Holders[0].Record.Body.PID != keeper {
				t.Fatalf("round %d: state %v, though a keeper keeps", i, v.State)
			}
			if _, err := h.dir().Release(v.Holders[0].ID(), Caller{UID: unix.Getuid()}, false); err != nil {
				t.Fatal(err)
			}
			ends(t, keeper)
			continue
		}
		nothing++
		if v.State != Free && v.State != Stale {
			t.Fatalf("round %d: state %v: the taker is dead and nobody keeps; %+v", i, v.State, v.Holders[0].Record)
		}
		// And the next has it at once, told what it took over.
		hold, err := h.acquire(letBe)
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if want := map[State]string{Free: "acquired", Stale: "acquired_after_reap (stale_pid)"}[v.State]; hold.Outcome() != want {
			t.Errorf("round %d: %s, want %s", i, hold.Outcome(), want)
		}
		if err := hold.Release(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kept, %d nothing", kept, nothing)
	if names, err := os.ReadDir(h.path); err != nil || len(names) > 3 {
		t.Errorf("left in the directory: %v, %v", names, err)
	}
}

// A run killed anywhere leaves nothing, or a ticket that the next can judge.
func TestRunKilledAnywhere(t *testing.T) {
	h := newHost(t)
	e := errand{Dir: h.path, Barrier: true, Once: true, Ignore: true}
	taker := send(t, e)
	taker.hears(t, "ready")
	begin := time.Now()
	fmt.Fprintln(taker.in)
	taker.hears(t, "held")
	taker.hears(t, "released")
	whole := time.Since(begin)
	for i := range 40 {
		taker := send(t, e)
		taker.hears(t, "ready")
		fmt.Fprintln(taker.in)
		time.Sleep(time.Duration(rand.Int64N(int64(whole))))
		taker.killed(t)
		v := h.view()
		if v.State != Free && v.State != Stale || len(v.Waiting) > 0 {
			t.Fatalf("round %d: state %v, %d wait", i, v.State, len(v.Waiting))
		}
		if o, want := h.take(), map[State]string{Free: "acquired", Stale: "acquired_after_reap (stale_pid)"}[v.State]; o != want {
			t.Errorf("round %d: %s, want %s", i, o, want)
		}
		h.want(Free)
	}
}
