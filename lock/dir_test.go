//go:build linux

package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

func TestCreateDir(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077, 0o777} {
		path := filepath.Join(t.TempDir(), "lock")
		old := unix.Umask(mask)
		d, err := Open(Location{Path: path})
		if err == nil {
			if _, err = d.Acquire(context.Background(), Request{Owner: "x"}); err != nil {
				t.Error(err)
			}
		}
		if got := unix.Umask(old); got != mask {
			t.Errorf("umask %o became %o", mask, got)
		}
		if err != nil {
			t.Fatalf("umask %o: %v", mask, err)
		}
		defer d.Close()
		for name, want := range map[string]uint32{".": unix.S_IFDIR | 0o1777, guardFile: unix.S_IFREG | 0o666,
			"t00000000000000000001.lock": unix.S_IFREG | 0o666, "t00000000000000000001.json": unix.S_IFREG | 0o644} {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(path, name), &st); err != nil || st.Mode != want {
				t.Errorf("umask %o: %s has mode %o, want %o (%v)", mask, name, st.Mode, want, err)
			}
		}
		if left, _ := filepath.Glob(filepath.Dir(path) + "/.lock-*"); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	}
}

// Two may make it at once; and what is closed twice closes nothing else.
func TestDirMadeByAnother(t *testing.T) {
	path := t.TempDir()
	if err := createDir(path); err != nil {
		t.Error(err)
	}
	d, err := Open(Location{Path: path, Scope: Private})
	if err != nil {
		t.Fatal(err)
	}
	old := d.fd
	d.Close()
	if err := unix.Dup3(2, old, unix.O_CLOEXEC); err != nil { // another's by now
		t.Fatal(err)
	}
	d.Close()
	if err := unix.Close(old); err != nil {
		t.Errorf("another's descriptor is closed: %v", err)
	}
}

func TestUnusableDir(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "file")
	link := filepath.Join(base, "link")
	dangling := filepath.Join(base, "dangling")
	for _, err := range []error{os.WriteFile(file, nil, 0o666), os.Symlink(base, link), os.Symlink("/nowhere/at/all", dangling), os.Symlink("loop", base+"/loop"), unix.Mkfifo(base+"/fifo", 0o666)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		l       Location
		problem string
	}{
		{"a file", Location{Path: file}, "not a directory"},
		{"a FIFO", Location{Path: base + "/fifo"}, "not a directory"},
		{"a link to a directory", Location{Path: link}, "not a directory"},
		{"a dangling link", Location{Path: dangling}, "not a directory"},
		{"below a link to itself", Location{Path: base + "/loop/lock"}, "not a directory"},
		{"below a file", Location{Path: file + "/lock"}, "not a directory"},
		{"missing, and named by the configuration", Location{Path: base + "/none", configured: true}, "the configuration names it and it does not exist"},
		// What acquire cannot create is not free.
		{"two levels missing", Location{Path: base + "/a/b"}, "cannot be created"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var u *UnusableError
			if _, err := Open(tt.l); !errors.As(err, &u) || !strings.Contains(u.Error(), tt.problem) {
				t.Errorf("Open: %v, want %q", err, tt.problem)
			}
			if _, err := OpenToLook(tt.l); !errors.As(err, &u) {
				t.Errorf("OpenToLook: %v", err)
			}
			if _, err := os.Lstat(base + "/none"); err == nil {
				t.Error("it was created")
			}
		})
	}
	none := func(string) string { return "" }
	if _, err := Resolve("relative", none); !errors.As(err, new(*UnusableError)) {
		t.Errorf("a relative path: %v", err)
	}
}

// Nobody can take the host by a directory that is not writable, so for who only looks
// it is not free either.
func TestUnwritableDir(t *testing.T) {
	h := newHost(t)
	uid, mode := 65534, os.FileMode(0o755)
	if os.Getuid() != 0 {
		uid, mode = 0, 0o555 // as ourselves
	}
	if err := os.Chmod(h.path, mode); err != nil {
		t.Fatal(err)
	}
	who := cmp.Or(uid, os.Getuid())
	for _, look := range []bool{false, true} {
		c := errandCmd(t, "hold", errand{Dir: h.path, UID: uid, Look: look})
		c.Stderr = nil
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "not writable for uid "+strconv.Itoa(who)) {
			t.Errorf("look %t: %s, %v", look, out, err)
		}
	}
	if err := os.Chmod(h.path, 0o777); err != nil {
		t.Fatal(err)
	}
	if out, err := errandCmd(t, "hold", errand{Dir: h.path, UID: uid, Look: true}).Output(); err != nil {
		t.Errorf("writable: %s, %v", out, err)
	}
}

func TestForeignDirIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	h := newHost(t)
	for _, tt := range []struct {
		uid  int
		mode os.FileMode
		want string
	}{{0, 0o1777, ""}, {65534, 0o1777, "uid 65534"}, {0, 0o777, "not sticky"}, {0, 0o755, ""}} {
		mode := tt.mode & 0o777
		if tt.mode&0o1000 != 0 {
			mode |= os.ModeSticky
		}
		if err := errors.Join(os.Chown(h.path, tt.uid, 0), os.Chmod(h.path, mode)); err != nil {
			t.Fatal(err)
		}
		if got := h.dir().Problem; (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("uid %d, mode %o: problem %q, want %q", tt.uid, tt.mode, got, tt.want)
		}
	}
}

// Root may delete anybody's ticket anyway; any other owner is named, but to itself.
func TestOwnerOfDir(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	owners := []int{d.uid}
	if d.uid == 0 {
		owners = append(owners, 65534)
	}
	for _, owner := range owners {
		if err := os.Chown(w.path, owner, -1); err != nil {
			t.Fatal(err)
		}
		for _, uid := range []int{owner, owner + 1} {
			want := ""
			if uid != owner && owner != 0 {
				want = fmt.Sprintf("the directory belongs to uid %d, who can delete anybody's ticket", owner)
			}
			d.uid, d.Problem = uid, ""
			if err := d.check(); err != nil || d.Problem != want {
				t.Errorf("uid %d's, for uid %d: %q, %v, want %q", owner, uid, d.Problem, err, want)
			}
		}
	}
}

// What is no plain file is not kept open.
func TestTrapIsClosed(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	if err := traps["fifo"](w.file(guardFile)); err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	for range 5 {
		if _, _, err := d.openFile(guardFile, unix.O_RDWR); !errors.Is(err, errNotRegular) {
			t.Fatal(err)
		}
	}
	if after := openFDs(t); after >= before+5 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// What a peer may put under a name, in place of a plain file.
var traps = map[string]func(path string) error{
	"fifo":      func(p string) error { return unix.Mkfifo(p, 0o666) },
	"link":      func(p string) error { return os.Symlink(filepath.Dir(p)+"/../bait", p) },
	"dangling":  func(p string) error { return os.Symlink("/nowhere/at/all", p) },
	"directory": func(p string) error { return os.Mkdir(p, 0o777) },
	"hard link": func(p string) error { return os.Link(filepath.Dir(p)+"/../bait", p) },
	"huge":      func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o666), os.Truncate(p, 1<<40)) },
	"garbage":   func(p string) error { return os.WriteFile(p, []byte("\x00\xff{]"), 0o666) },
	"empty":     func(p string) error { return os.WriteFile(p, nil, 0o666) },
	"null":      func(p string) error { return os.WriteFile(p, []byte("null\n"), 0o666) },
	"socket":    func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o666, 0) },
	"device null": func(p string) error {
		if err := unix.Mknod(p, unix.S_IFCHR|0o666, 1<<8|3); err != nil {
			return err
		}
		fd, err := unix.Open(p, unix.O_RDWR|unix.O_CLOEXEC, 0) // refused where the mount is nodev
		unix.Close(fd)
		return err
	},
}

func bait(t *testing.T, w *world) (path string) {
	t.Helper()
	// Outside the lock directory, where a followed link would do harm.
	sub := w.path + "/lock"
	if err := os.Mkdir(sub, 0o1777); err != nil {
		t.Fatal(err)
	}
	path = w.path + "/bait"
	if err := os.WriteFile(path, []byte("bait"), 0o666); err != nil {
		t.Fatal(err)
	}
	w.path = sub
	return path
}

// bounded fails the test if do hangs.
func bounded(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs")
	}
}

// Under every name, every trap: nothing is followed, nothing hangs, and a held
// lock never reads FREE.
func TestTraps(t *testing.T) {
	for name, set := range traps {
		for _, target := range []string{guardFile, historyFile, hostMark, ".lock", ".json"} {
			t.Run(name+" as "+target, func(t *testing.T) {
				w := newWorld(t)
				b := bait(t, w)
				holder := w.actor()
				hold := holder.gets()
				file := target
				if target[0] == '.' {
					file = holder.hold.entry.name() + target
				}
				os.Remove(w.file(file))
				if err := set(w.file(file)); err != nil {
					t.Skip(err)
				}
				bounded(t, func() {
					v := w.view()
					if v.State != HeldNow {
						t.Errorf("state %v, and it is held", v.State)
					}
					d, _ := w.process()
					d.resolveScope(true)
					d.History()
					_, err := w.actor(noWait, letBe).step()
					var u *UnusableError
					if !errors.As(err, new(*BusyError)) && !errors.As(err, &u) {
						t.Errorf("beside the holder: %v", err)
					}
					if u != nil && target != guardFile {
						t.Errorf("unusable for %s: %v", target, err)
					}
					plain := name == "huge" || name == "garbage" || name == "empty" || name == "null"
					if target == guardFile && !plain && (u == nil || !strings.Contains(u.Problem, "its guard file is none: remove it")) {
						t.Errorf("for a guard that is none: %v", err)
					}
					a := w.actor()
					if ok, _ := a.step(); ok {
						t.Error("admitted beside the holder")
					}
					a.abandonIfAny()
					err = hold.Release()
					if target == guardFile || target == historyFile || target == hostMark {
						if err != nil && !errors.As(err, &u) {
							t.Errorf("release: %v", err)
						}
					}
					if target == historyFile && (name == "fifo" || name == "link" || name == "hard link" || name == "directory") && len(hold.d.Warnings) == 0 {
						t.Error("no warning that the history could not be written")
					}
				})
				if text, err := os.ReadFile(b); err != nil || string(text) != "bait" {
					t.Errorf("the bait was taken: %q, %v", text, err)
				}
			})
		}
	}
}

func (a *actor) abandonIfAny() {
	if a.hold != nil {
		a.abandon()
	}
}

// A record that cannot be read is BUSY, and recoverable past the grace once
// nobody has the kernel lock.
func TestUnreadableRecord(t *testing.T) {
	for name, set := range traps {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			bait(t, w)
			holder := w.actor()
			holder.gets()
			path := w.file(holder.hold.entry.name() + recordSuffix)
			os.Remove(path)
			if err := set(path); err != nil {
				t.Skip(err)
			}
			w.pass(time.Hour)
			w.want(HeldNow) // the kernel lock is held
			holder.dies()
			visitor := w.actor(letBe).waits()
			for _, s := range []time.Duration{0, 200 * time.Second, 99 * time.Second} {
				w.pass(s)
				w.want(HeldNow)
				visitor.waits()
			}
			w.pass(101 * time.Second) // 400 s
			if d := visitor.gets(); name != "directory" && d.Record.Outcome != "acquired_after_reap (unverifiable)" {
				t.Errorf("%s", d.Record.Outcome)
			}
		})
	}
}

// The same for visitors that come and go: each leaves a note of the time.
func TestGraceAcrossVisitors(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	h := holder.gets()
	w.lives(7, proc.Unknown)
	if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
		t.Fatal(err)
	}
	holder.dies()
	visit := func() error {
		_, err := w.actor(noWait, letBe).step()
		w.stamp()
		return err
	}
	busy := func() {
		t.Helper()
		if err := visit(); !errors.As(err, new(*BusyError)) {
			t.Fatalf("%v, want busy", err)
		}
	}
	w.pass(time.Hour) // nobody came: the grace begins when somebody does
	busy()
	w.pass(200 * time.Second)
	busy()
	w.lives(7, proc.Alive) // one who can see it comes by
	busy()
	w.lives(7, proc.Unknown)
	w.pass(99 * time.Second)
	busy() // and the grace begins anew
	w.clock.UTC = w.clock.UTC.Add(1000 * time.Hour)
	busy() // the wall clock hastens nothing
	w.clock.UTC = w.clock.UTC.Add(-1000 * time.Hour)
	w.pass(299 * time.Second)
	busy()
	w.pass(time.Second)
	w.want(Stale)
	a := w.actor(noWait, letBe)
	if h := a.gets(); h.Record.Outcome != "acquired_after_reap (unverifiable)" {
		t.Error(h.Record.Outcome)
	}
}

// One who waits remembers for itself since when, and begins anew when it was wrong.
func TestGraceOfOneWhoWaits(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	h := holder.gets()
	w.lives(7, proc.Unknown)
	if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
		t.Fatal(err)
	}
	holder.dies()
	visitor := w.actor(letBe, timeout(24*time.Hour)).waits()
	w.pass(200 * time.Second)
	w.lives(7, proc.Alive)
	visitor.waits().waits()
	w.pass(200 * time.Second)
	w.lives(7, proc.Unknown)
	visitor.waits()
	w.pass(grace - 1)
	visitor.waits()
	w.pass(1)
	if h := visitor.gets(); h.Record.Outcome != "acquired_after_reap (unverifiable)" {
		t.Error(h.Record.Outcome)
	}
}

// The wall clock was set back after a note: it counts from the next visit, not from a time
// that is still to come.
func TestNoteFromTheFuture(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	h := holder.gets()
	w.lives(7, proc.Unknown)
	if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
		t.Fatal(err)
	}
	holder.dies()
	busy := func() {
		t.Helper()
		if _, err := w.actor(noWait, letBe).step(); !errors.As(err, new(*BusyError)) {
			t.Fatalf("%v, want busy", err)
		}
		w.stamp()
	}
	busy()
	w.clock.UTC = w.clock.UTC.Add(-1000 * time.Hour)
	busy()
	w.pass(grace - 1)
	busy()
	w.pass(1)
	if h := w.actor(noWait, letBe).gets(); h.Record.Outcome != "acquired_after_reap (unverifiable)" {
		t.Error(h.Record.Outcome)
	}
}

// A forged note claims that a holder has been unseen for years: it counts from
// when it was forged, for which the kernel vouches.
func TestForgedUnseen(t *testing.T) {
	w := newWorld(t)
	holder := w.actor()
	h := holder.gets()
	w.lives(7, proc.Unknown)
	if err := h.amend(func(r *Record) { r.Anchor = Party{Identity: w.identity(7)} }); err != nil {
		t.Fatal(err)
	}
	entry := h.entry
	holder.dies()
	w.pass(time.Hour)
	for _, at := range []string{`"2001-01-01T00:00:00Z","boot_ns":1`, `"9999-01-01T00:00:00Z","boot_ns":9000000000000000000`} {
		w.write(entry.name()+lockSuffix, `{"unseen":{"utc":`+at+`,"boot_id":"`+worldBoot+`","time_ns":4026531834}}`)
		w.stamp()
		if _, err := w.actor(noWait, letBe).step(); !errors.As(err, new(*BusyError)) {
			t.Fatalf("%s: %v, want busy", at, err)
		}
	}
	w.stamp()
	w.pass(grace - time.Second)
	w.want(HeldNow)
}

// Steps of the wall clock neither free nor extend a lock.
func TestWallClockSteps(t *testing.T) {
	w := newWorld(t)
	holder := w.actor(ttl(time.Hour))
	holder.gets()
	waiter := w.actor(timeout(30 * time.Minute)).waits()
	for _, step := range []time.Duration{10000 * time.Hour, -20000 * time.Hour} {
		w.clock.UTC = w.clock.UTC.Add(step)
		if v := w.want(HeldNow); len(v.Waiting) != 1 {
			t.Errorf("%d wait", len(v.Waiting))
		}
	}
	w.pass(30*time.Minute + deadlineSlack)
	if v := w.want(HeldNow); len(v.Waiting) != 1 {
		t.Errorf("%d wait", len(v.Waiting))
	}
	w.pass(time.Millisecond)
	if v := w.want(HeldNow); len(v.Waiting) != 0 {
		t.Errorf("%d wait", len(v.Waiting))
	}
	if err := waiter.over(context.Background()); !errors.As(err, new(*TimeoutError)) {
		t.Error(err)
	}
	w.pass(30*time.Minute - deadlineSlack - 2*time.Millisecond)
	w.want(HeldNow)
	w.pass(time.Millisecond)
	w.want(Expired)
}

// The guard is deleted, cut, filled with garbage or replaced while somebody
// holds: nobody is admitted beside the holder, and no number is used twice.
func TestGuardDamaged(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"deleted":     os.Remove,
		"cut":         func(p string) error { return os.Truncate(p, 0) },
		"cut short":   func(p string) error { return os.Truncate(p, 15) },
		"garbage":     func(p string) error { return os.WriteFile(p, []byte("\xff\x00 x"), 0o666) },
		"huge":        func(p string) error { return os.Truncate(p, 1<<30) },
		"turned back": func(p string) error { return os.WriteFile(p, fmt.Appendf(nil, guardLine, Format, 0), 0o666) },
		"replaced": func(p string) error {
			return errors.Join(os.WriteFile(p+"2", fmt.Appendf(nil, guardLine, Format, 1), 0o666), os.Rename(p+"2", p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for range 5 {
				if err := w.actor().gets().Release(); err != nil {
					t.Fatal(err)
				}
			}
			h := w.actor().gets()
			second := w.actor().waits()
			if err := harm(w.file(guardFile)); err != nil {
				t.Fatal(err)
			}
			third := w.actor().waits()
			if n := third.hold.entry.seq; n <= second.hold.entry.seq {
				t.Errorf("number %d after %d", n, second.hold.entry.seq)
			}
			if err := h.Release(); err != nil {
				t.Error(err)
			}
			third.waits()
			if err := second.gets().Release(); err != nil {
				t.Error(err)
			}
			last := third.gets()
			if err := last.Release(); err != nil {
				t.Error(err)
			}
			// Mended, the guard alone carries the count on.
			if h := w.actor().gets(); h.entry.seq <= last.entry.seq {
				t.Errorf("number %d after %d", h.entry.seq, last.entry.seq)
			}
		})
	}
}

// Two that have the guard at once would be a theft: one who waits for a guard
// that was replaced meanwhile must take the new one.
func TestGuardReplacedWhileWaited(t *testing.T) {
	for name, replace := range map[string]func(guard string) error{
		"removed":    os.Remove,
		"moved away": func(guard string) error { return os.Rename(guard, guard+"-2") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d, _ := w.process()
			s, err := d.enter()
			if err != nil {
				t.Fatal(err)
			}
			got := w.entersLater(t)
			if err := replace(w.file(guardFile)); err != nil {
				t.Fatal(err)
			}
			d3, _ := w.process()
			s3, err := d3.enter()
			if err != nil {
				t.Fatal(err)
			}
			s.leave()
			// It has the old one now, and must go on to wait for the new one.
			for !w.guardIsWaitedFor(t) {
				select {
				case <-got:
					t.Fatal("two have the guard")
				case <-time.After(time.Millisecond):
				}
			}
			s3.leave()
			in := <-got
			if in.err != nil {
				t.Fatal(in.err)
			}
			in.leave()
		})
	}
}

// A guard that got a second name while it was waited for may be somebody's trap.
func TestGuardLinkedWhileWaited(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	s, err := d.enter()
	if err != nil {
		t.Fatal(err)
	}
	got := w.entersLater(t)
	if err := os.Link(w.file(guardFile), w.file("another-name")); err != nil {
		t.Fatal(err)
	}
	s.leave()
	if in := <-got; !errors.As(in.err, new(*UnusableError)) || !strings.HasSuffix(in.err.Error(), "its guard file is none: remove it when no process uses the directory: it is not a plain file of this directory") {
		t.Errorf("%v", in.err)
	}
}

type entered struct {
	*session
	err error
}

// entersLater begins to take a guard that another has, and returns when it waits.
func (w *world) entersLater(t *testing.T) <-chan entered {
	t.Helper()
	got := make(chan entered, 1)
	d, _ := w.process()
	go func() {
		s, err := d.enter()
		got <- entered{s, err}
	}()
	for !w.guardIsWaitedFor(t) {
		time.Sleep(time.Millisecond)
	}
	return got
}

// guardIsWaitedFor reports whether somebody waits for the guard that is there now.
func (w *world) guardIsWaitedFor(t *testing.T) bool {
	t.Helper()
	return strings.Contains(waitingFor(t), ":"+strconv.FormatUint(inodeOf(t, w.file(guardFile)), 10)+" ")
}

// A guard that this user may not write is no guard to it.
func TestGuardNotOurs(t *testing.T) {
	h := newHost(t)
	h.take()
	uid, mode := 65534, os.FileMode(0o644)
	if os.Getuid() != 0 {
		uid, mode = 0, 0o444 // our own
	}
	if err := os.Chmod(h.path+"/"+guardFile, mode); err != nil {
		t.Fatal(err)
	}
	if r := send(t, errand{Dir: h.path, UID: uid}).hears(t, "error"); !strings.HasSuffix(r.Text, "its guard file cannot be opened: permission denied") {
		t.Errorf("%+v", r)
	}
}

// To make a guard where there is one leaves it as it is.
func TestGuardMadeByAnother(t *testing.T) {
	w := newWorld(t)
	w.write(guardFile, "another's")
	d, _ := w.process()
	if err := d.createGuard(); err != nil {
		t.Error(err)
	}
	names, _ := os.ReadDir(w.path)
	if b, err := os.ReadFile(w.file(guardFile)); string(b) != "another's" || err != nil || len(names) != 1 {
		t.Errorf("%q, %v, left %v", b, err, names)
	}
}

func TestNumbersGrowInASession(t *testing.T) {
	w := newWorld(t)
	w.write(guardFile, "hostlock 1 4611686018427387900\n and more")
	d, _ := w.process()
	s, err := d.enter()
	if err != nil {
		t.Fatal(err)
	}
	defer s.leave()
	// Of a damaged guard nothing is believed; tickets are.
	for i, tt := range []struct {
		entries []entry
		want    uint64
	}{{nil, 1}, {nil, 2}, {[]entry{{kindExclusive, 1}}, 3}, {[]entry{{kindExclusive, 1}, {kindShared, maxSeq - 1}}, maxSeq}} {
		if got, err := s.next(tt.entries); got != tt.want || err != nil {
			t.Errorf("%d: number %d, %v, want %d", i, got, err, tt.want)
		}
		if b, _ := os.ReadFile(w.file(guardFile)); string(b) != fmt.Sprintf("hostlock 1 %020d\n", tt.want) {
			t.Errorf("%d: the guard says %q", i, b)
		}
	}
	if n, err := s.next(nil); !errors.As(err, new(*UnusableError)) {
		t.Errorf("number %d, %v", n, err)
	}
}

// Who has the guard is named as far as it can be told.
func TestGuardHolder(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if got := guardHolder(int(f.Fd())); got != "a process that cannot be seen from here" {
		t.Errorf("nobody: %s", got)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got, want := guardHolder(int(f.Fd())), fmt.Sprintf("pid %d (%s)", os.Getpid(), strings.TrimSpace(string(comm))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := guardHolder(-1); got != "a process that cannot be seen from here" {
		t.Errorf("of no file: %s", got)
	}
}

// Somebody removes the guard while one who has it is stopped, and another takes the
// host under a new one: what the first one found out before counts for nothing, it
// changes nothing and asks again.
func TestGuardRemovedWhileStopped(t *testing.T) {
	for _, queued := range []bool{false, true} {
		w := newWorld(t)
		holder := w.actor()
		holder.gets()
		a := w.actor(noWait, letBe)
		if queued {
			a = w.actor(letBe).waits()
		}
		holder.dies()
		var other *actor
		a.d.host.look = func(id proc.Identity) proc.Liveness {
			if other == nil { // here it is stopped
				other = w.actor(letBe)
				w.pass(2 * time.Hour) // past the first one's patience
				if err := os.Remove(w.file(guardFile)); err != nil {
					t.Error(err)
				}
				other.gets()
			}
			if id.PID == holder.pid {
				return proc.Gone
			}
			return w.look(id)
		}
		var err error
		var busy *BusyError
		if queued {
			_, err = a.step()
		} else {
			_, err = a.d.Acquire(t.Context(), a.req)
		}
		if queued && !errors.Is(err, errGuardLost) || !queued && (!errors.As(err, &busy) || busy.Blocker.ID() != other.id) {
			t.Errorf("queued %t: %v", queued, err)
		}
		v := w.want(HeldNow)
		if len(v.Holders) != 1 || v.Holders[0].ID() != other.id || len(v.Waiting) != 0 {
			t.Errorf("queued %t: %d hold, %d wait", queued, len(v.Holders), len(v.Waiting))
		}
		if names, _ := filepath.Glob(w.file("*[0-9].*")); len(names) != 2 {
			t.Errorf("queued %t: left %v", queued, names)
		}
	}
}

func inodeOf(t *testing.T, path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func waitingFor(t *testing.T) string {
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Skip(err)
	}
	var lines []string
	for l := range strings.SplitSeq(string(b), "\n") {
		if strings.Contains(l, "->") {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "\n")
}

// A stopped process has the guard: an end, and its name. Nothing is taken, and
// those who only look need no guard.
func TestGuardStuck(t *testing.T) {
	old := guardPatience
	guardPatience = 100 * time.Millisecond
	defer func() { guardPatience = old }()
	h := newHost(t)
	stuck := start(t, helperCmd("guard", "LOCK_TEST_DIR="+h.path))
	if line, err := stuck.out.ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	stuck.stopped(t)
	_, err := h.acquire()
	var u *UnusableError
	if !errors.As(err, &u) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(stuck.Process.Pid)+" (") {
		t.Errorf("%v, want the name of pid %d", err, stuck.Process.Pid)
	}
	h.want(Free)
	guardPatience = old // from here it is free in the end, however slow the machine
	stuck.signal(t, unix.SIGCONT)
	stuck.in.Close()
	stuck.Wait()
	if o := h.take(); o != "acquired" {
		t.Error(o)
	}
	if names, _ := os.ReadDir(h.path); len(names) > 3 {
		t.Errorf("left %v", names)
	}
}

// A guard that goes from hand to hand is not stuck, however long the queue before it; but
// even that ends.
func TestGuardOfACrowd(t *testing.T) {
	const patience = 20 * time.Millisecond
	for _, tt := range []struct {
		name  string
		owner func(asked int) int
		free  int // when asked so often
		looks int // until it is given up
		err   error
	}{
		{"one", func(int) int { return 7 }, 0, 4, os.ErrDeadlineExceeded},
		{"one that cannot be seen", func(int) int { return 0 }, 0, 4, os.ErrDeadlineExceeded},
		{"many", func(asked int) int { return asked }, 10, 0, nil},
		{"many, and then one", func(asked int) int { return min(asked, 9) }, 0, 9 + 4, os.ErrDeadlineExceeded},
		{"many without end", func(asked int) int { return asked }, 0, guardCrowd * 4, errCrowd},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "guard")
			open := func() *os.File {
				f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				return f
			}
			has := open()
			if err := unix.Flock(int(has.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			asked := 0
			err := flockWithin(int(open().Fd()), patience, func() int {
				if asked++; asked == tt.free {
					has.Close()
				}
				return tt.owner(asked)
			})
			if !errors.Is(err, tt.err) || tt.err == nil && err != nil {
				t.Errorf("%v after %d looks, want %v", err, asked, tt.err)
			}
			if tt.err != nil && asked != tt.looks {
				t.Errorf("%d looks, want %d", asked, tt.looks)
			}
			has.Close()
		})
	}
}

func TestFutureFormat(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	w.write(guardFile, "hostlock 2 something else\n")
	_, err := w.actor().step()
	var u *UnusableError
	if !errors.As(err, &u) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("%v", err)
	}
	if b, _ := os.ReadFile(w.file(guardFile)); string(b) != "hostlock 2 something else\n" {
		t.Errorf("the guard was changed to %q", b)
	}
}

// What a crash left half made goes away.
func TestLeavings(t *testing.T) {
	w := newWorld(t)
	w.write(tmpPrefix+"0123", "x")
	w.write("t00000000000000000005.json", "{}") // a release that was killed half way
	w.write("notes.txt", "somebody's")
	w.want(Free)
	h := w.actor().gets()
	if h.entry.seq != 6 || h.Record.Outcome != "acquired" {
		t.Errorf("number %d, %s", h.entry.seq, h.Record.Outcome)
	}
	var names []string
	all, _ := os.ReadDir(w.path)
	for _, n := range all {
		names = append(names, n.Name())
	}
	if got := strings.Join(names, " "); got != "guard notes.txt t00000000000000000006.json t00000000000000000006.lock" {
		t.Errorf("in the directory: %s", got)
	}
}

// A record of one user under another's lock, and a name that says other than
// the record, count as what cannot be read.
func TestForgedTickets(t *testing.T) {
	w := newWorld(t)
	h := w.actor(shared).gets()
	w.editRecord(h.entry, func(m map[string]any) { m["mode"] = "exclusive" })
	if v := w.want(HeldNow); v.Holders[0].Record != nil {
		t.Error("an exclusive record under a shared name is believed")
	}
	w.editRecord(h.entry, func(m map[string]any) { m["mode"] = "shared"; m["joins"] = anID })
	if v := w.want(HeldNow); v.Holders[0].Record != nil {
		t.Error("a joined record under another name is believed")
	}
	w.editRecord(h.entry, func(m map[string]any) { delete(m, "joins") })
	if v := w.want(HeldNow); v.Holders[0].Record == nil {
		t.Error("the control is not believed: " + v.Holders[0].Problem)
	}
	if os.Getuid() != 0 {
		return
	}
	if err := os.Chown(w.file(h.entry.name()+recordSuffix), 65534, -1); err != nil {
		t.Fatal(err)
	}
	if v := w.want(HeldNow); v.Holders[0].Record != nil || v.Holders[0].UID != 0 {
		t.Error("another user's record is believed")
	}
}

// The age of a record without a time is unknown: that lapses nobody.
func TestAgeUnknown(t *testing.T) {
	w := newWorld(t)
	h := w.actor(ttl(time.Hour)).gets()
	w.editRecord(h.entry, func(m map[string]any) { delete(m, "held_at"); delete(m, "requested_at") })
	v := w.want(HeldNow)
	if _, ok := v.HeldFor(v.Holders[0]); ok {
		t.Error("its age is known")
	}
}

// A peer who gives a .lock a second name hides nothing: the kernel lock on it
// still says that somebody lives who cannot be seen from here.
func TestHardLinkedLockIsStillHeard(t *testing.T) {
	w := newWorld(t)
	a := w.actor()
	a.gets()
	w.lives(a.pid, proc.Unknown)
	if err := os.Link(w.file(a.hold.entry.name()+lockSuffix), w.file("another-name")); err != nil {
		t.Fatal(err)
	}
	w.want(HeldNow)
	w.actor().waits()
	w.pass(2 * grace)
	w.actor().waits()
	w.want(HeldNow)
	a.forget() // its kernel lock goes with it
	w.want(Stale)
}

// To look at a directory of a newer format is refused like to take a ticket in
// it: whatever is there, FREE would be a guess.
func TestLookAtFutureFormat(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, guardFile), []byte("hostlock 1 00000000000000000007\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	d, err := OpenToLook(Location{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if err := os.WriteFile(filepath.Join(dir, guardFile), []byte("hostlock 2 and whatever follows\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenToLook(Location{Path: dir}); !errors.As(err, new(*UnusableError)) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("%v", err)
	}
}
