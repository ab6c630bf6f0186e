//go:build linux

package lock

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
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
	// The taker is told before the keeper has closed its pipe. Whatever it opens for its first
	// look takes that number.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		links := map[int]string{}
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
		if links[keeperPipeFD] == "" || time.Now().After(end) {
			return links
		}
	}
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
	var guard unix.Stat_t
	if err := unix.Stat(h.path+"/"+guardFile, &guard); err != nil {
		t.Fatal(err)
	}
	// Not while it has the guard, for its first look: that is another test's.
	for {
		unix.Kill(keeper, unix.SIGSTOP)
		waitid(t, keeper, unix.WSTOPPED)
		table, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		if flockOwner(string(table), guard.Ino) != keeper {
			break
		}
		unix.Kill(keeper, unix.SIGCONT)
	}
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
		unharmed(t, anchor.Process.Pid)
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

// A hold is handed over whole or not at all: until the keeper has it, it is the taker's.
func TestHandOver(t *testing.T) {
	h := newHost(t)
	anchor := plain(t, "idle")
	party := Party{Identity: h.identity(anchor.Process.Pid), UID: unix.Getuid(), Comm: "anchor"}
	for name, tt := range map[string]struct {
		set  func(hold *Hold, anchor *Party)
		says string
	}{
		"to a dead process": {func(_ *Hold, anchor *Party) { anchor.Start, anchor.PIDFSIno = 1, 1 }, ErrAnchorGone.Error()},
		"on a full disk":    {func(hold *Hold, _ *Party) { fullDisk(hold.d) }, unix.ENOSPC.Error()},
	} {
		hold, err := h.acquire()
		if err != nil {
			t.Fatal(err)
		}
		fd, was := hold.lockFD, hold.Record
		to := party
		tt.set(hold, &to)
		if err := hold.HandOver(to); err == nil || !strings.HasPrefix(err.Error(), "the hold cannot be handed to a keeper: ") || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		for _, k := range h.keepers() {
			if status := ends(t, k); status != 1 {
				t.Errorf("%s: the keeper ended with status %d", name, status)
			}
		}
		if v := h.want(HeldNow); v.Holders[0].ID() != was.ID || !v.Holders[0].Record.Embodied() || hold.lockFD != fd || hold.Record.Anchor != was.Anchor {
			t.Errorf("%s: %+v", name, v.Holders[0].Record)
		}
		if err := hold.Release(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A limit is on what is done with the host: it counts from now. How long a hold
	// without one lasted counts from when it was taken.
	for _, limit := range []time.Duration{0, time.Hour} {
		hold, err := h.acquire(ttl(limit))
		if err != nil {
			t.Fatal(err)
		}
		taken := *hold.Record.HeldAt
		if err := hold.HandOver(party); err != nil {
			t.Fatal(err)
		}
		keepers := h.keepers()
		r := h.want(HeldNow).Holders[0].Record
		if later := r.HeldAt.Boot > taken.Boot; later != (limit > 0) {
			t.Errorf("ttl %s: held since %v, taken %v", limit, r.HeldAt.Boot, taken.Boot)
		}
		if len(keepers) != 1 || r.Anchor != party || r.Body.PID != keepers[0] || r.Body.UID != unix.Getuid() || r.Body.Comm != "hostlock" || hold.lockFD != -1 {
			t.Errorf("kept by %v: %+v for %+v", keepers, r.Body, r.Anchor)
		}
		if _, err := hold.d.Release(r.ID, Caller{UID: unix.Getuid()}, false); err != nil {
			t.Fatal(err)
		}
		for _, k := range keepers {
			ends(t, k)
		}
	}
	// Taken away meanwhile, there is nothing to hand over.
	hold, err := h.acquire()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.d.remove(hold.entry); err != nil {
		t.Fatal(err)
	}
	if err := hold.HandOver(party); !errors.As(err, new(*TakenOverError)) {
		t.Errorf("%v", err)
	}
	for _, k := range h.keepers() {
		ends(t, k)
	}
	h.want(Free)
}

// Only a trade has a job to ask for. Of any other hold whose anchor dies while it is
// handed over its keeper gives notice, and the next is told of a dead holder.
func TestHandOverToOneThatDies(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	told := h.Record
	told.Anchor, told.Body = Party{Identity: w.identity(7)}, Party{Identity: w.identity(8)}
	if err := h.become(told, nil); err != nil {
		t.Errorf("%v", err)
	}
	w.want(Stale)
}

// What a keeper says first.
func TestHearReady(t *testing.T) {
	for said, want := range map[string]string{
		"ready\n":         "",
		"ready":           "",
		"":                "it ended before it was ready",
		"\n":              "it ended before it was ready",
		"no such thing\n": "no such thing",
		"half a sent":     "half a sent",
	} {
		got := ""
		if err := hearReady(strings.NewReader(said)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
	if err := hearReady(iotest.ErrReader(unix.ECONNRESET)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v", err)
	}
}

// Started by hand, a keeper has nothing to keep, and touches nothing.
func TestKeeperByHand(t *testing.T) {
	c := exec.Command("/proc/self/exe", KeeperCommand)
	c.Env = []string{"GORACE=atexit_sleep_ms=0"}
	var exit *exec.ExitError
	if out, err := c.CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != 1 || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// What makes a keeper end, by one look.
func TestKeeperIsOver(t *testing.T) {
	forged := func(h *Hold) error {
		return h.d.writeNote(h.entry, func(n *note) { n.Unseen = &noted{Instant: Instant{Boot: 1}} })
	}
	for _, tt := range []struct {
		name string
		set  func(w *world, h *Hold) error
		want bool
		left int // tickets
	}{
		{"nothing has happened", func(*world, *Hold) error { return nil }, false, 1},
		{"its anchor has died", func(w *world, _ *Hold) error { delete(w.life, 7); return nil }, true, 1},
		{"its anchor cannot be seen", func(w *world, _ *Hold) error { w.lives(7, proc.Unknown); return nil }, false, 1},
		{"released by another process", func(_ *world, h *Hold) error { return h.d.remove(h.entry) }, true, 0},
		{"taken over by another user, who could not remove it", func(w *world, h *Hold) error {
			w.pass(time.Minute)
			return h.d.writeNote(h.entry, func(n *note) { n.Takeover = TTLExpired })
		}, true, 0},
		{"a peer says that nobody vouches for it", func(_ *world, h *Hold) error { return forged(h) }, false, 1},
		{"its job has ended, and left nothing", func(w *world, h *Hold) error {
			w.editRecord(h.entry, func(m map[string]any) { m["job_ended_at"] = w.clock })
			return nil
		}, true, 0},
	} {
		w := newWorld(t)
		a := w.actor(ttl(time.Minute))
		h := a.gets()
		w.lives(7, proc.Alive)
		if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
			t.Fatal(err)
		}
		k := &keeper{hold: h, anchor: w.identity(7), anchorFD: -1, again: true}
		if err := tt.set(w, h); err != nil {
			t.Fatal(err)
		}
		if got := k.over(); got != tt.want {
			t.Errorf("%s: over %v", tt.name, got)
		}
		d, _ := w.process()
		entries, _, err := d.list()
		if err != nil || len(entries) != tt.left {
			t.Errorf("%s: left %v, %v", tt.name, entries, err)
		}
		if tt.left > 0 {
			if n := d.load(entries[0]).note; n.Unseen != nil {
				t.Errorf("%s: noted %+v", tt.name, n)
			}
		}
		if !tt.want && k.limit() != 0 {
			t.Errorf("%s: it looks again after %s", tt.name, k.limit())
		}
	}
}

// A keeper that cannot have the guard keeps on, and looks again.
func TestKeeperWithoutTheGuard(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	k := &keeper{hold: h, anchor: h.Record.Anchor.Identity, anchorFD: -1}
	if err := errors.Join(os.Remove(w.file(guardFile)), os.Mkdir(w.file(guardFile), 0o755)); err != nil {
		t.Fatal(err)
	}
	if k.over() || k.limit() != 5*time.Second {
		t.Errorf("it looks again after %s", k.limit())
	}
	if err := os.Remove(w.file(guardFile)); err != nil {
		t.Fatal(err)
	}
	if k.over() || k.limit() != 0 {
		t.Errorf("it looks again after %s", k.limit())
	}
	k.vigil.within(time.Minute)
	if k.limit() != time.Minute {
		t.Errorf("it looks again after %s", k.limit())
	}
}

// What woke a keeper wakes it once.
func TestKeeperSleeps(t *testing.T) {
	fd, err := unix.Eventfd(3, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	k := new(keeper)
	k.vigil.add(fd)
	k.sleep()
	if ready(fd) {
		t.Error("it would be woken again")
	}
	k.vigil.within(20 * time.Millisecond)
	began := proc.BootTime()
	k.sleep()
	if took := proc.BootTime() - began; took < 20*time.Millisecond {
		t.Errorf("it slept for %s", took)
	}
	k.vigil.close()
}

// A ticket that was never handed over whole is given up, if it is still there.
func TestKeeperGives(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	k := &keeper{hold: h}
	k.give()
	w.want(Free)
	// Another's in its place is not touched.
	h = w.actor().gets()
	if err := errors.Join(h.d.remove(h.entry), h.d.replaceFile(h.entry.name()+lockSuffix, nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	(&keeper{hold: h}).give()
	if _, err := os.Stat(w.file(h.entry.name() + lockSuffix)); err != nil {
		t.Errorf("it took away what was not its own: %v", err)
	}
}

// A keeper that is told nothing that it can keep says so.
func TestKeeperOrders(t *testing.T) {
	good := string(encoded(t, &Record{Format: Format, Seq: 7, ID: anID}, nil))
	name := entry{kindExclusive, 7}.name()
	for _, tt := range []struct {
		said string
		args []string
	}{
		{"", []string{"/x", name}}, {good, []string{"/x", name}}, {"{}\n", []string{"/x", name}}, {"{\n", []string{"/x", name}},
		{good + "\n", []string{"/x", "x7"}}, {good + "\n", []string{"/x", entry{kindExclusive, 8}.name()}}, {good + "\n", []string{"/x"}}, {good + "\n", nil},
	} {
		if k, err := newKeeper(strings.NewReader(tt.said), -1, tt.args); err == nil || !strings.Contains(err.Error(), "was not told") {
			t.Errorf("%q, %q: %+v, %v", tt.said, tt.args, k, err)
		}
	}
}

// What wakes a keeper: the end of its anchor and a change of its ticket; only for what
// cannot be watched it has a clock.
func TestKeeperWatches(t *testing.T) {
	h := newHost(t)
	hold, err := h.acquire()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		set   func(told *Record, ticket *string, anchor *helper)
		fds   int
		limit time.Duration
		err   error
	}{
		{"both", func(*Record, *string, *helper) {}, 2, 0, nil},
		{"no ticket", func(told *Record, ticket *string, _ *helper) {
			told.Seq, *ticket = 99, entry{kindExclusive, 99}.name()
		}, 1, 5 * time.Second, nil},
		{"an anchor out of sight", func(told *Record, _ *string, _ *helper) { told.Anchor.PIDNS++ }, 1, 5 * time.Second, nil},
		{"an anchor that has died", func(_ *Record, _ *string, anchor *helper) { anchor.killed(t) }, 0, 0, ErrAnchorGone},
	} {
		anchor := plain(t, "idle")
		told, ticket := hold.Record, hold.entry.name()
		told.Anchor = Party{Identity: h.identity(anchor.Process.Pid)}
		tt.set(&told, &ticket, anchor)
		k, err := newKeeper(strings.NewReader(string(encoded(t, &told, nil))+"\n"+keeperCommit+"\n"), hold.d.fd, []string{h.path, ticket})
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil {
			continue
		}
		if word := k.lastWord(); word != keeperCommit {
			t.Errorf("%s: heard %q", tt.name, word)
		}
		if len(k.vigil.fds) != tt.fds || k.limit() != tt.limit {
			t.Errorf("%s: %d descriptors, %s; want %d, %s", tt.name, len(k.vigil.fds), k.limit(), tt.fds, tt.limit)
		}
		if tt.name == "both" {
			if ready(k.anchorFD) {
				t.Error("its anchor lives, and it takes it for dead")
			}
			anchor.killed(t)
			// Whatever its number says by now: the descriptor names the one that died.
			k.hold.d.host.look = func(proc.Identity) proc.Liveness { return proc.Running }
			if !ready(k.anchorFD) || !k.over() {
				t.Error("its anchor has died, and it keeps on")
			}
		}
		k.vigil.close()
	}
}

// A keeper must inherit nothing that its taker's caller left open, also where the kernel
// cannot mark all descriptors at once.
func TestCloseOnExec(t *testing.T) {
	for name, mark := range map[string]func(fd int){
		"by /proc":  func(int) { closeOnExec() },
		"by number": func(fd int) { closeOnExecBelow(fd + 1) },
	} {
		fd, err := unix.Dup(1) // not close-on-exec
		if err != nil {
			t.Fatal(err)
		}
		std, err := unix.FcntlInt(2, unix.F_GETFD, 0)
		if err != nil {
			t.Fatal(err)
		}
		mark(fd)
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: flags %x, %v", name, flags, err)
		}
		if flags, err := unix.FcntlInt(2, unix.F_GETFD, 0); err != nil || flags != std {
			t.Errorf("%s: stderr has flags %x, %v", name, flags, err)
		}
		unix.Close(fd)
	}
	fd, err := unix.Dup(1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	closeOnExecBelow(fd)
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Errorf("what is not below: flags %x, %v", flags, err)
	}
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
	unharmed(t, anchor.Process.Pid)
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
			if _, err := ours.Write(append(encoded(t, &told, nil), '\n')); err != nil {
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
				continue
			}
			// Without its pipe and with its ticket: who exits loses both at once.
			fd := "/proc/" + strconv.Itoa(keeper) + "/fd/"
			if _, err := os.Readlink(fd + strconv.Itoa(keeperPipeFD)); errors.Is(err, os.ErrNotExist) {
				if _, err := os.Readlink(fd + strconv.Itoa(keeperLockFD)); err == nil {
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
