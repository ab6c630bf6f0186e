package proc

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// bare is id as a kernel without pidfs would have recorded it, so that the start
// time has to decide.
func bare(id Identity) Identity {
	id.PIDFSIno = 0
	return id
}

func wantLook(t *testing.T, what string, id Identity, want Liveness) {
	t.Helper()
	if got := Look(id); got != want {
		t.Errorf("%s: Look(%+v) = %v, want %v", what, id, got, want)
	}
}

func TestSelf(t *testing.T) {
	id := Self()
	if id.PID != os.Getpid() || id.PIDNS == 0 || id.Start == 0 || id.BootID == "" {
		t.Errorf("Self() = %+v: something is missing", id)
	}
	wantLook(t, "self", id, Alive)
	wantLook(t, "self by start time", bare(id), Alive)
}

func TestOpen(t *testing.T) {
	h, id := holder(t)
	fd, l := Open(id)
	if fd < 0 || l != Alive {
		t.Fatalf("Open of a live process = %d, %v, want a pidfd, alive", fd, l)
	}
	defer unix.Close(fd)
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("the pidfd is not close-on-exec (flags %#x, %v)", fl, err)
	}
	if exited(fd) != no {
		t.Error("the pidfd is readable before the process exits")
	}
	h.in.Close()
	waitDead(t, id.PID)
	if exited(fd) != yes {
		t.Error("the pidfd is not readable after the process exited")
	}
	for range 100 { // and none is left open for a process that is gone
		if fd, l := Open(id); fd != -1 || l != Gone {
			t.Fatalf("Open of a dead process = %d, %v, want -1, gone", fd, l)
		}
	}
	other := id
	other.PIDNS++
	if fd, l := Open(other); fd != -1 || l != Unknown {
		t.Errorf("Open in another pid namespace = %d, %v, want -1, unknown", fd, l)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestOpenLeaksNothing(t *testing.T) {
	_, id := holder(t)
	recycled := id
	recycled.PIDFSIno++
	Look(id)
	before := countFDs(t)
	for range 50 {
		Look(id)
		Look(recycled)
		Look(bare(id))
		Identify(id.PID)
		Stat(id.PID)
		numbered("/proc/self/task")
	}
	Carrying(func([]byte) bool { return false })
	Descendants(1)
	if after := countFDs(t); after > before+5 { // the runtime may open some of its own
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// A zombie has /proc/PID, and its start time matches: dead all the same. A live
// child of the same parent is the control.
func TestZombie(t *testing.T) {
	h, id := holder(t)
	_, control := holder(t)
	wantLook(t, "before", id, Alive)
	h.Process.Kill()
	waitDead(t, id.PID)
	if s, err := Stat(id.PID); err != nil || s.State != 'Z' || s.Start != id.Start {
		t.Fatalf("Stat = %+v, %v: that is no zombie of the same process", s, err)
	}
	wantLook(t, "zombie", id, Gone)
	wantLook(t, "zombie by start time", bare(id), Gone)
	wantLook(t, "zombie of which only the pid is known", Identity{PID: id.PID}, Gone)
	k := linux
	k.pidfdOpen = func(int) (int, error) { return -1, unix.EMFILE }
	if _, l, _ := look(id, Here(), k); l != Gone {
		t.Errorf("zombie without a pidfd: %v, want gone", l)
	}
	if _, l, _ := look(control, Here(), k); l != Running {
		t.Errorf("live process without a pidfd: %v, want running", l)
	}
	if _, err := Identify(id.PID); !errors.Is(err, ErrGone) {
		t.Errorf("Identify of a zombie: %v, want ErrGone", err)
	}
	wantLook(t, "control", control, Alive)

	h.Wait()
	wantLook(t, "reaped", id, Gone)
	wantLook(t, "reaped, by start time", bare(id), Gone)
	if _, err := Identify(id.PID); !errors.Is(err, ErrGone) {
		t.Errorf("Identify of no process: %v, want ErrGone", err)
	}
}

// A leader that left its threads with pthread_exit is in state Z and alive.
func TestLeaderless(t *testing.T) {
	h := start(t, helperCmd("leaderless"))
	id, err := Identify(h.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.line(t); got != "ready" {
		t.Fatal(got)
	}
	if s, err := Stat(id.PID); err != nil || s.State != 'Z' {
		t.Fatalf("Stat = %+v, %v: the leader is still there", s, err)
	}
	noPidfd := linux
	noPidfd.pidfdOpen = func(int) (int, error) { return -1, unix.EPERM }
	wantLook(t, "leader gone", id, Alive)
	wantLook(t, "leader gone, by start time", bare(id), Alive)
	if _, l, _ := look(id, Here(), noPidfd); l != Running {
		t.Errorf("leader gone, without a pidfd: %v, want running", l)
	}
	if id2, err := Identify(id.PID); err != nil || id2 != id {
		t.Errorf("Identify = %+v, %v, want %+v as before", id2, err, id)
	}
	h.in.Close()
	waitDead(t, id.PID)
	wantLook(t, "last thread gone", id, Gone)
	if _, l, _ := look(id, Here(), noPidfd); l != Gone {
		t.Errorf("last thread gone, without a pidfd: %v, want gone", l)
	}
}

// execve from a thread that is not the leader makes it the leader: other task,
// same process.
func TestExecFromThread(t *testing.T) {
	h := start(t, helperCmd("exec"))
	if got := h.line(t); got != "ready to exec" {
		t.Fatal(got)
	}
	id, err := Identify(h.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fd, l := Open(id)
	if l != Alive {
		t.Fatal(l)
	}
	defer unix.Close(fd)
	h.in.Write([]byte("go\n"))
	if got := h.line(t); got != "ready" {
		t.Fatal(got)
	}
	wantLook(t, "after exec", id, Alive)
	wantLook(t, "after exec, by start time", bare(id), Alive)
	if exited(fd) != no {
		t.Error("the pidfd is readable after exec")
	}
}

func TestProcessIdentify(t *testing.T) {
	h, id := holder(t)
	p, err := Stat(id.PID)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Identify(); err != nil || got != id {
		t.Errorf("%+v, %v, want %+v", got, err, id)
	}
	blind := linux
	blind.stat = func(int) (stat, error) { return stat{}, unix.EIO }
	want := id
	want.Start = 0
	if got, err := p.identify(Here(), blind); err != nil || got != want {
		t.Errorf("start time unreadable: %+v, %v, want %+v", got, err, want)
	}
	p.Start--
	if got, err := p.Identify(); err != ErrGone {
		t.Errorf("earlier process of that pid: %+v, %v, want ErrGone", got, err)
	}
	p.Start++
	h.Process.Kill()
	waitDead(t, id.PID)
	if got, err := p.Identify(); err != ErrGone {
		t.Errorf("zombie: %+v, %v, want ErrGone", got, err)
	}
}

// A thread's id is no process's.
func TestThreadID(t *testing.T) {
	tids, err := numbered("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		if tid == os.Getpid() {
			continue
		}
		if _, _, e := look(Identity{PID: tid}, Here(), linux); e.pidfd == refused {
			t.Skip("this kernel does not tell a thread's id from a bad argument")
		}
		wantLook(t, "thread", Identity{PID: tid}, Gone)
	}
}

func TestOtherThanRecorded(t *testing.T) {
	_, id := holder(t)
	with := func(change func(*Identity)) Identity {
		c := id
		change(&c)
		return c
	}
	wantLook(t, "control", id, Alive)
	if id.PIDFSIno != 0 {
		wantLook(t, "other inode", with(func(id *Identity) { id.PIDFSIno++ }), Gone)
	}
	wantLook(t, "other start", with(func(id *Identity) { id.PIDFSIno = 0; id.Start++ }), Gone)
	wantLook(t, "no start", with(func(id *Identity) { id.PIDFSIno, id.Start = 0, 0 }), Running)
	wantLook(t, "other boot", with(func(id *Identity) { id.BootID = "0c39c0e5-0d53-4c07-9d6b-2f3e1d2f8a11" }), Gone)
	wantLook(t, "other pid namespace", with(func(id *Identity) { id.PIDNS++ }), Unknown)
	wantLook(t, "other time namespace", with(func(id *Identity) { id.PIDFSIno = 0; id.TimeNS++; id.Start++ }), Running)
	wantLook(t, "a pid that wraps to this one", with(func(id *Identity) { id.PID += 1 << 32 }), Unknown)
	for _, pid := range []int{0, -1, -id.PID} {
		wantLook(t, "no pid", with(func(id *Identity) { id.PID = pid }), Unknown)
		if _, err := Identify(pid); !errors.Is(err, unix.EINVAL) {
			t.Errorf("Identify(%d): %v, want EINVAL", pid, err)
		}
	}
}

// Every row for kernels and sandboxes that we are not on, through the seam.
func TestFallbacks(t *testing.T) {
	_, id := holder(t)
	here := Here()
	refuse := func(err error) func(k *kernel) {
		return func(k *kernel) { k.pidfdOpen = func(int) (int, error) { return -1, err } }
	}
	exists := func(a answer) func(k *kernel) {
		return func(k *kernel) { k.exists = func(int) answer { return a } }
	}
	noStat := func(k *kernel) { k.stat = func(int) (stat, error) { return stat{}, unix.EACCES } }
	noInode := func(k *kernel) { k.inode = func(int) uint64 { return 0 } }
	shift := func(k *kernel) {
		k.stat = func(pid int) (stat, error) { s, err := readStat(pid); s.Start++; return s, err }
	}
	// The process dies while its stat is read, after the first poll.
	dies := func(k *kernel) {
		polls := 0
		k.exited = func(int) answer {
			if polls++; polls == 1 {
				return no
			}
			return yes
		}
	}
	foreign := here
	foreign.ProcOurs = false
	tests := []struct {
		name string
		here Vantage
		k    []func(*kernel)
		want Liveness
		fd   bool
	}{
		{"as it is", here, nil, Alive, true},
		{"no pidfs", here, []func(*kernel){noInode}, Alive, true},
		{"no pidfs, recycled", here, []func(*kernel){noInode, shift}, Gone, false},
		{"no pidfs, start unreadable", here, []func(*kernel){noInode, noStat}, Running, true},
		{"no pidfs, dies meanwhile", here, []func(*kernel){noInode, dies}, Gone, false},
		{"no pidfs, /proc foreign", foreign, []func(*kernel){noInode, shift}, Running, true},
		{"pidfs, /proc foreign", foreign, []func(*kernel){shift}, Alive, true},
		{"ENOSYS", here, []func(*kernel){refuse(unix.ENOSYS)}, Running, false},
		{"EPERM", here, []func(*kernel){refuse(unix.EPERM)}, Running, false},
		{"EMFILE", here, []func(*kernel){refuse(unix.EMFILE)}, Running, false},
		{"EINVAL, thread id before 6.15", here, []func(*kernel){refuse(unix.EINVAL), shift}, Gone, false},
		{"EMFILE, recycled", here, []func(*kernel){refuse(unix.EMFILE), shift}, Gone, false},
		{"EMFILE, recycled, /proc foreign", foreign, []func(*kernel){refuse(unix.EMFILE), shift}, Running, false},
		{"EMFILE, start unreadable", here, []func(*kernel){refuse(unix.EMFILE), noStat}, Running, false},
		{"EMFILE, no such process", here, []func(*kernel){refuse(unix.EMFILE), exists(no)}, Gone, false},
		{"EMFILE, kill refused, start unreadable", here, []func(*kernel){refuse(unix.EMFILE), exists(unasked), noStat}, Running, false},
		{"ESRCH", here, []func(*kernel){refuse(unix.ESRCH)}, Gone, false},
		{"ENOENT", here, []func(*kernel){refuse(unix.ENOENT)}, Gone, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := linux
			open := 0
			k.close = func(fd int) { open--; unix.Close(fd) }
			k.pidfdOpen = func(pid int) (int, error) {
				fd, err := pidfdOpen(pid)
				if err == nil {
					open++
				}
				return fd, err
			}
			for _, change := range tt.k {
				change(&k)
			}
			fd, l, _ := look(id, tt.here, k)
			if l != tt.want {
				t.Errorf("%v, want %v", l, tt.want)
			}
			if (fd >= 0) != tt.fd {
				t.Errorf("pidfd %d, want one: %v", fd, tt.fd)
			}
			if fd >= 0 {
				k.close(fd)
			}
			if open != 0 {
				t.Errorf("%d pidfds left open", open)
			}
		})
	}
}

// On pidfs nothing is asked beyond the inode: this is paid before benchmarks.
func TestLookIsLazy(t *testing.T) {
	id := Self()
	if id.PIDFSIno == 0 {
		t.Skip("no pidfs (Linux before 6.9)")
	}
	k := linux
	k.stat = func(int) (stat, error) { t.Error("read stat"); return stat{}, unix.EACCES }
	k.exists = func(int) answer { t.Error("asked kill"); return unasked }
	if fd, l, _ := look(id, Here(), k); l != Alive {
		t.Errorf("%v, want alive", l)
	} else {
		unix.Close(fd)
	}
	k.pidfdOpen = func(int) (int, error) { t.Error("opened a pidfd"); return -1, unix.EMFILE }
	id.BootID = "another"
	if _, l, _ := look(id, Here(), k); l != Gone {
		t.Errorf("other boot: %v, want gone", l)
	}
}

// Before pidfs all pidfds had the inode of one anonymous file.
func TestInodeOnlyOnPidfs(t *testing.T) {
	defer onPidfs.Store(onPidfs.Load())
	onPidfs.Store(uint32(unasked))
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if ino := pidfsInode(fd); ino != 0 {
		t.Errorf("inode %d of a file that is not on pidfs, want 0", ino)
	}
}

func TestRecycledPID(t *testing.T) {
	needRoot(t)
	if _, err := os.Stat("/proc/sys/kernel/ns_last_pid"); err != nil {
		t.Skipf("this kernel lets nobody choose a pid: %v", err) // CONFIG_CHECKPOINT_RESTORE
	}
	c := helperCmd("recycle", mountEnv+"=")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	h := start(t, c)
	line := h.line(t)
	// before, dead, then with the pid taken again: the first by inode, by start
	// time; the second by inode, by start time.
	want := `"Is":["alive","gone","gone","gone","alive","alive"]`
	if !strings.Contains(line, want) {
		t.Errorf("%s\nwant %s", line, want)
	}
}

func TestOtherPIDNamespace(t *testing.T) {
	needRoot(t)
	_, id := holder(t)
	gone := id
	gone.PID = 1 << 22 // beyond pid_max
	c := helperCmd("look", mountEnv+"=")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	h, r := lookFrom(t, c, id, bare(id), gone)
	for i, is := range r.Is {
		if is != "unknown" {
			t.Errorf("identity %d is %s from another pid namespace, want unknown", i, is)
		}
	}
	if r.Here.PIDNS == Here().PIDNS || r.Here.PIDNS == 0 || !r.Here.ProcOurs || r.Self.PID != 1 || r.Self.PIDFSIno != id.PIDFSIno && r.Self.PIDFSIno == 0 {
		t.Errorf("%+v: wrong about itself", r)
	}
	wantLook(t, "process of the other namespace", r.Self, Unknown)
	ours := r.Self // the same process as we see it
	var err error
	if ours, err = Identify(h.Process.Pid); err != nil || ours.PIDFSIno != r.Self.PIDFSIno {
		t.Errorf("Identify = %+v, %v, want the inode of %+v", ours, err, r.Self)
	}
	wantLook(t, "the same as we see it", ours, Alive)
	wantLook(t, "control", id, Alive)
}

// A new pid namespace in which nobody has mounted a new /proc: its pids are the
// parent's.
func TestForeignProc(t *testing.T) {
	needRoot(t)
	_, id := holder(t)
	c := helperCmd("look")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	own := Identity{PID: 1, Start: 1} // itself; /proc/1 is somebody else
	_, r := lookFrom(t, c, id, own)
	if r.Here.ProcOurs || r.Here.PIDNS == Here().PIDNS || r.Here.PIDNS == 0 {
		t.Errorf("%+v: wrong vantage", r.Here)
	}
	if r.Self.Start != 0 {
		t.Errorf("Self() = %+v: a start time out of another's /proc", r.Self)
	}
	if r.Is[0] != "unknown" || r.Is[1] != "running" {
		t.Errorf("%v, want unknown, running", r.Is)
	}
}

func TestTimeNamespace(t *testing.T) {
	needRoot(t)
	if Here().TimeNS == 0 {
		t.Skip("no time namespaces in this kernel")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	_, id := holder(t)
	dead, deadID := holder(t)
	dead.Process.Kill()
	dead.Wait()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := helperCmd("look")
	c.Path, c.Args = unshare, []string{unshare, "--time", "--boottime", "1000000", "--fork", exe}
	_, r := lookFrom(t, c, id, bare(id), deadID)
	if r.Here.TimeNS == Here().TimeNS {
		t.Fatal("the helper is in our time namespace")
	}
	inode := "running"
	if id.PIDFSIno != 0 {
		inode = "alive"
	}
	if r.Is[0] != inode || r.Is[1] != "running" || r.Is[2] != "gone" {
		t.Errorf("%v, want %s, running, gone", r.Is, inode)
	}
}

// The judge is another user, and then one to whom /proc hides our processes.
func TestOtherUser(t *testing.T) {
	needRoot(t)
	_, id := holder(t)
	dead, deadID := holder(t)
	dead.Process.Kill()
	dead.Wait()
	inode := "running"
	if id.PIDFSIno != 0 {
		inode = "alive"
	}
	for _, tt := range []struct {
		name         string
		env          []string
		whole, start string // judged by all of it, by the start time
	}{
		{"plain", nil, "alive", "alive"},
		{"hidepid=1", []string{mountEnv + "=hidepid=1"}, inode, "running"},
		{"hidepid=2", []string{mountEnv + "=hidepid=2"}, inode, "running"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := helperCmd("look", append(tt.env, uidEnv+"=65534")...)
			if tt.env != nil {
				c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
			}
			_, r := lookFrom(t, c, id, bare(id), deadID)
			if r.Is[0] != tt.whole {
				t.Errorf("%s, want %s", r.Is[0], tt.whole)
			}
			if r.Is[1] != tt.start {
				t.Errorf("by start time: %s, want %s", r.Is[1], tt.start)
			}
			if r.Is[2] != "gone" {
				t.Errorf("dead: %s, want gone", r.Is[2])
			}
			if r.Kill[0] != yes || r.Kill[2] != no {
				t.Errorf("exists: %v of the live one, %v of the dead, want yes, no", r.Kill[0], r.Kill[2])
			}
		})
	}
}

// The same without another user, for whom it takes root: what /proc hides is like
// another user's to those of its own. Nothing of it is evidence of death.
func TestHiddenProcess(t *testing.T) {
	if groups, err := os.Getgroups(); err != nil || os.Getgid() == 0 || slices.Contains(groups, 0) {
		t.Skip("from group 0 nothing is hidden; TestOtherUser is for root")
	}
	inode := "running"
	if Self().PIDFSIno != 0 {
		inode = "alive"
	}
	for _, tt := range []struct{ options, whole, start string }{
		{"", "alive", "alive"},
		{"hidepid=1", inode, "running"},
		{"hidepid=2", inode, "running"},
	} {
		t.Run(tt.options, func(t *testing.T) {
			c := helperCmd("hidden", mountEnv+"="+tt.options)
			c.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS,
				// Not root, who would get every capability by its exec; one mounts.
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getgid(), Size: 1}},
				AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
			}
			h := start(t, c)
			var r looked
			if err := json.Unmarshal([]byte(h.line(t)), &r); err != nil {
				t.Fatal(err)
			}
			if want := []string{tt.whole, tt.start, "gone"}; !slices.Equal(r.Is, want) {
				t.Errorf("it, it by its start time, and a dead one: %v, want %v", r.Is, want)
			}
			if r.Kill[0] != yes || r.Kill[2] != no {
				t.Errorf("exists: %v of it, %v of the dead one", r.Kill[0], r.Kill[2])
			}
			var found carried
			if err := json.Unmarshal([]byte(h.line(t)), &found); err != nil {
				t.Fatal(err)
			}
			if found.Found != nil || found.Unreadable == 0 {
				t.Errorf("%+v, want nothing found, some unreadable", found)
			}
		})
	}
}

func BenchmarkLook(b *testing.B) {
	id := Self()
	for b.Loop() {
		Look(id)
	}
}

func BenchmarkLookByStartTime(b *testing.B) {
	id := bare(Self())
	for b.Loop() {
		Look(id)
	}
}
