//go:build linux && (amd64 || arm64)

package lock

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied does what do does, on a thread on which some system calls fail. It skips the
// test where that cannot be had.
func denied(t *testing.T, calls map[uint32]unix.Errno, do func()) {
	t.Helper()
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the number, by struct seccomp_data
	for nr, errno := range calls {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: nr},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	filter := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its filter
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			_, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(filter)))
			if errno != 0 {
				err = errno
			}
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("no filter of system calls: %v", err)
	}
}

// Whatever the kernel refuses makes the directory unusable, at once and with the reason:
// nothing is taken, nothing is left behind, and no descriptor stays open.
func TestRefusedByTheKernel(t *testing.T) {
	old := guardPatience
	guardPatience = 50 * time.Millisecond
	defer func() { guardPatience = old }()
	for _, tt := range []struct {
		name    string
		calls   map[uint32]unix.Errno
		guard   string // what is in it; empty: there is none
		problem string
	}{
		{"to make the guard", map[uint32]unix.Errno{unix.SYS_FCHMOD: unix.EPERM}, "", "its guard file cannot be created: operation not permitted"},
		{"to fill the guard", map[uint32]unix.Errno{unix.SYS_PWRITE64: unix.ENOSPC}, "", "its guard file cannot be created: no space left on device"},
		{"to name the guard", map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.EPERM}, "", "its guard file cannot be created: operation not permitted"},
		{"to open the guard", map[uint32]unix.Errno{unix.SYS_OPENAT: unix.EMFILE}, "hostlock 1 7\n", "its guard file cannot be opened: too many open files"},
		{"to look into the guard", map[uint32]unix.Errno{unix.SYS_FSTAT: unix.EIO}, "hostlock 1 7\n", "its guard file cannot be opened: input/output error"},
		{"to lock the guard", map[uint32]unix.Errno{unix.SYS_FLOCK: unix.ENOLCK}, "hostlock 1 7\n", "its guard cannot be locked: no locks available"},
		{"to look at the guard", map[uint32]unix.Errno{unix.SYS_NEWFSTATAT: unix.EACCES}, "hostlock 1 7\n", "its guard file cannot be looked at: permission denied"},
		{"a guard that stays", map[uint32]unix.Errno{unix.SYS_NEWFSTATAT: unix.ENOENT}, "hostlock 1 7\n", "its guard file is being replaced again and again"},
		{"a guard that is never seen", map[uint32]unix.Errno{unix.SYS_NEWFSTATAT: unix.EINTR}, "hostlock 1 7\n", "its guard file is being replaced again and again"},
		{"a guard of ours", nil, "hostlock 2 7\n", "it has format 2 and this hostlock knows 1: install the newer version"},
		{"another number", nil, "hostlock 1 4611686018427387903\n", "its numbers are used up: remove it when nobody holds the host"},
		{"to write a number", map[uint32]unix.Errno{unix.SYS_PWRITE64: unix.ENOSPC}, "hostlock 1 7\n", "its guard cannot be written: no space left on device"},
		{"to mend the guard", map[uint32]unix.Errno{unix.SYS_FTRUNCATE: unix.EIO}, "hostlock 1 seven\n", "its guard cannot be written: input/output error"},
		{"to list it", map[uint32]unix.Errno{unix.SYS_GETDENTS64: unix.EIO}, "hostlock 1 7\n", "cannot list it: input/output error"},
		{"to make a ticket", map[uint32]unix.Errno{unix.SYS_FCHMOD: unix.EPERM}, "hostlock 1 7\n", "cannot take a ticket: operation not permitted"},
		{"to name a ticket", map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.EPERM}, "hostlock 1 7\n", "cannot take a ticket: operation not permitted"},
		{"to name a record", map[uint32]unix.Errno{unix.SYS_RENAMEAT: unix.EPERM}, "hostlock 1 7\n", "cannot take a ticket: operation not permitted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			left := ""
			if tt.guard != "" {
				w.write(guardFile, tt.guard)
				left = guardFile
			}
			a := w.actor(noWait)
			tries := func(n int) (err error) {
				for range n {
					var ok bool
					if ok, err = a.step(); ok {
						return errors.New("it is taken")
					}
				}
				return err
			}
			var err error
			denied(t, tt.calls, func() { err = tries(1) })
			before := openFDs(t)
			denied(t, tt.calls, func() { err = tries(5) })
			after := openFDs(t)
			var u *UnusableError
			if !errors.As(err, &u) || !strings.HasSuffix(u.Error(), " is unusable: "+tt.problem) {
				t.Errorf("%v, want %q", err, tt.problem)
			}
			if after >= before+5 {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			names, err := os.ReadDir(w.path)
			if err != nil || left == "" && len(names) > 0 || left != "" && (len(names) != 1 || names[0].Name() != left) {
				t.Errorf("left %v, %v", names, err)
			}
			// It was not left locked either.
			w.write(guardFile, "hostlock 1 00000000000000000007\n")
			if h := w.actor(noWait).gets(); h.entry.seq != 8 {
				t.Errorf("number %d", h.entry.seq)
			}
		})
	}
}

// The same before there is a session, for who acquires and for who looks.
func TestOpenRefusedByTheKernel(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(path+"/conf", []byte("lock_dir = "+path+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	who := strconv.Itoa(os.Getuid())
	dir := func(open func(Location) (*Dir, error)) func() error {
		return func() error {
			d, err := open(Location{Path: path, Scope: Private})
			if err == nil {
				d.Close()
			}
			return err
		}
	}
	conf := func() error {
		_, err := ReadConfig(path + "/conf")
		return err
	}
	for _, tt := range []struct {
		name    string
		do      func() error
		calls   map[uint32]unix.Errno
		problem string // empty: it works
	}{
		{"acquire", dir(Open), nil, ""},
		{"acquire", dir(Open), map[uint32]unix.Errno{unix.SYS_OPENAT: unix.EACCES}, "this user may not open it: permission denied"},
		{"acquire", dir(Open), map[uint32]unix.Errno{unix.SYS_OPENAT: unix.EMFILE}, "it cannot be opened: too many open files"},
		{"acquire", dir(Open), map[uint32]unix.Errno{unix.SYS_FSTATFS: unix.EIO}, "its file system cannot be told: input/output error"},
		{"acquire", dir(Open), map[uint32]unix.Errno{unix.SYS_FSTAT: unix.EIO}, "it cannot be examined: input/output error"},
		{"acquire", dir(Open), map[uint32]unix.Errno{unix.SYS_FACCESSAT2: unix.EROFS}, "it is not writable for uid " + who + ": read-only file system"},
		{"look", dir(OpenToLook), nil, ""},
		{"look", dir(OpenToLook), map[uint32]unix.Errno{unix.SYS_OPENAT: unix.EACCES}, "this user may not open it: permission denied"},
		{"look", dir(OpenToLook), map[uint32]unix.Errno{unix.SYS_FSTATFS: unix.EIO}, "its file system cannot be told: input/output error"},
		{"look", dir(OpenToLook), map[uint32]unix.Errno{unix.SYS_FACCESSAT2: unix.EROFS}, "it is not writable for uid " + who + ": read-only file system"},
		{"configure", conf, nil, ""},
		{"configure", conf, map[uint32]unix.Errno{unix.SYS_OPENAT: unix.EACCES}, "the configuration cannot be read: open " + path + "/conf: permission denied"},
		{"configure", conf, map[uint32]unix.Errno{unix.SYS_FSTAT: unix.EIO}, "the configuration is no regular file of at most 1 MiB: stat " + path + "/conf: input/output error"},
	} {
		t.Run(tt.name+" "+tt.problem, func(t *testing.T) {
			var err error
			denied(t, tt.calls, func() { err = tt.do() })
			before := openFDs(t)
			denied(t, tt.calls, func() {
				for range 5 {
					err = tt.do()
				}
			})
			if after := openFDs(t); after >= before+5 {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			var u *UnusableError
			if tt.problem != "" && (!errors.As(err, &u) || !strings.HasSuffix(u.Error(), " is unusable: "+tt.problem)) || tt.problem == "" && err != nil {
				t.Errorf("%v, want %q", err, tt.problem)
			}
		})
	}
}

// Who has a guard by now may take the one that is being made for a crash's leavings:
// then there is another.
func TestGuardTakenForALeaving(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	var err error
	denied(t, map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.ENOENT}, func() { err = d.createGuard() })
	if names, _ := os.ReadDir(w.path); err != nil || len(names) > 0 {
		t.Errorf("%v, left %v", err, names)
	}
}

// A file system that cannot rename without replacing takes links instead.
func TestRenameWithoutTheFlag(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENOSYS} {
		w := newWorld(t)
		a := w.actor()
		var ok bool
		var err, twice error
		denied(t, map[uint32]unix.Errno{unix.SYS_RENAMEAT2: errno}, func() {
			ok, err = a.step()
			if err = errors.Join(err, os.WriteFile(w.file("other"), nil, 0o666)); err == nil {
				twice = renameNew(a.d.fd, "other", guardFile)
			}
		})
		if !ok || err != nil {
			t.Errorf("%v: admitted %t, %v", errno, ok, err)
		}
		if !errors.Is(twice, unix.EEXIST) {
			t.Errorf("%v: over another file: %v", errno, twice)
		}
		os.Remove(w.file("other"))
		if names, err := os.ReadDir(w.path); len(names) != 3 || err != nil {
			t.Errorf("%v: left %v, %v", errno, names, err)
		}
		w.want(HeldNow)
	}
}

// A history that cannot be written is a warning; what is there stays as far as it can.
func TestHistoryRefusedByTheKernel(t *testing.T) {
	large := strings.Repeat(strings.Repeat("x", 63)+"\n", maxHistory/64) + "y\n"
	for _, tt := range []struct {
		name, old string
		calls     map[uint32]unix.Errno
		problem   string
	}{
		{"to make it", "", map[uint32]unix.Errno{unix.SYS_FCHMOD: unix.EPERM}, "operation not permitted"},
		{"to name it", "", map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.EPERM}, "operation not permitted"},
		{"to write it", "x\n", map[uint32]unix.Errno{unix.SYS_PWRITE64: unix.ENOSPC}, "no space left on device"},
		{"to read its end", large, map[uint32]unix.Errno{unix.SYS_PREAD64: unix.EIO}, "input/output error"},
		{"to cut it", large, map[uint32]unix.Errno{unix.SYS_FTRUNCATE: unix.EPERM}, "operation not permitted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.old != "" {
				w.write(historyFile, tt.old)
			}
			d, _ := w.process()
			now := w.clock
			ends := func() { d.finish(&Record{ID: anID, Phase: Held, HeldAt: &now}, 0, endReleased) }
			denied(t, tt.calls, ends)
			before := openFDs(t)
			denied(t, tt.calls, func() {
				for range 5 {
					ends()
				}
			})
			if after := openFDs(t); after >= before+5 {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			want := "the history of " + w.path + " could not be written: " + tt.problem
			if len(d.Warnings) != 6 || d.Warnings[5] != want {
				t.Errorf("warned %q, want %q", d.Warnings, want)
			}
			if b, _ := os.ReadFile(w.file(historyFile)); string(b) != tt.old {
				t.Errorf("%d bytes, want %d", len(b), len(tt.old))
			}
			names, err := os.ReadDir(w.path)
			if err != nil || len(names) > 1 || len(names) > 0 != (tt.old != "") {
				t.Errorf("left %v, %v", names, err)
			}
		})
	}
}

// What cannot be removed, because it is another user's in a sticky directory, is noted:
// a takeover, and that a waiter was passed. (Defect 49.)
func TestNotedWhereItCannotBeRemoved(t *testing.T) {
	const passed, taken = "{\"left\":true}\n", "{\"takeover\":\"stale_pid\",\"by\":\"" + anID + "\"}\n"
	sticky := map[uint32]unix.Errno{unix.SYS_UNLINKAT: unix.EPERM}
	full := map[uint32]unix.Errno{unix.SYS_PWRITE64: unix.ENOSPC}
	both := map[uint32]unix.Errno{unix.SYS_UNLINKAT: unix.EPERM, unix.SYS_PWRITE64: unix.ENOSPC}
	clear := func(s Standing, n note) func(d *Dir, e entry) error {
		return func(d *Dir, e entry) error {
			d.clear(&Ticket{entry: e, Standing: s, note: n})
			return nil
		}
	}
	mark := func(d *Dir, e entry) error { return d.mark(&Ticket{entry: e, Kind: StalePID}, anID) }
	remove := func(d *Dir, e entry) error { return d.remove(e) }
	for _, tt := range []struct {
		name  string
		do    func(d *Dir, e entry) error
		calls map[uint32]unix.Errno
		want  string // of the .lock; "gone": there is none
		err   string
	}{
		{"clear", clear(Left, note{}), nil, "gone", ""},
		{"clear another's", clear(Left, note{}), sticky, passed, ""},
		{"clear another's, which says so", clear(Left, note{Left: true}), sticky, "", ""},
		{"clear another's that was taken over", clear(Over, note{}), sticky, "", ""},
		{"mark", mark, nil, "gone", ""},
		{"mark another's", mark, sticky, taken, ""},
		{"mark on a full disk", mark, full, "gone", ""},
		{"mark another's on a full disk", mark, both, "", "operation not permitted\nno space left on device"},
		{"remove", remove, nil, "gone", ""},
		{"remove another's", remove, sticky, "", "operation not permitted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			d, _ := w.process()
			e := entry{kindExclusive, 1}
			w.write(e.name()+lockSuffix, "")
			w.write(e.name()+recordSuffix, "")
			var err error
			denied(t, tt.calls, func() { err = tt.do(d, e) })
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || err.Error() != tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			got := "gone"
			if b, err := os.ReadFile(w.file(e.name() + lockSuffix)); err == nil {
				got = string(b)
			}
			if got != tt.want {
				t.Errorf("on it: %q, want %q", got, tt.want)
			}
			names, _ := os.ReadDir(w.path)
			if (len(names) == 0) != (tt.want == "gone") {
				t.Errorf("left %v", names)
			}
			if err := d.remove(e); err != nil { // also what is not there
				t.Errorf("at last: %v", err)
			}
		})
	}
}

// A file is replaced whole, or stays as it is, and nothing is left beside it.
func TestReplaceFile(t *testing.T) {
	for _, tt := range []struct {
		name  string
		there string // "": nothing; "/": a directory
		calls map[uint32]unix.Errno
		fails bool
	}{
		{"nothing is there", "", nil, false},
		{"a file is there", "old", nil, false},
		{"the kernel cannot exchange", "old", map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.ENOSYS}, false},
		{"the file system cannot exchange", "old", map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.EINVAL}, false},
		{"neither can be", "old", map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.EINVAL, unix.SYS_RENAMEAT: unix.EIO}, true},
		{"an exchange is refused", "old", map[uint32]unix.Errno{unix.SYS_RENAMEAT2: unix.EACCES}, true},
		{"a directory is there", "/", nil, true},
	} {
		w := newWorld(t)
		d, _ := w.process()
		file := w.file("file")
		var err error
		switch tt.there {
		case "":
		case "/":
			err = os.Mkdir(file, 0o755)
		default:
			err = os.WriteFile(file, []byte(tt.there), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		denied(t, tt.calls, func() { err = d.replaceFile("file", []byte("new"), 0o640) })
		if (err != nil) != tt.fails {
			t.Errorf("%s: %v", tt.name, err)
		}
		st, serr := os.Lstat(file)
		b, _ := os.ReadFile(file)
		switch {
		case serr != nil:
			t.Errorf("%s: %v", tt.name, serr)
		case !tt.fails && (string(b) != "new" || st.Mode() != 0o640):
			t.Errorf("%s: it is %q, %s", tt.name, b, st.Mode())
		case tt.fails && (tt.there == "/") != st.IsDir(), tt.fails && !st.IsDir() && string(b) != tt.there:
			t.Errorf("%s: it is %q, %s", tt.name, b, st.Mode())
		}
		names, _ := os.ReadDir(w.path)
		if len(names) != 1 {
			t.Errorf("%s: %v", tt.name, names)
		}
	}
}

// Where nothing can be watched, whoever waits is told so, and looks by itself.
func TestNothingCanBeWatched(t *testing.T) {
	w := newWorld(t)
	hold := w.actor().gets()
	before := openFDs(t)
	for _, calls := range []map[uint32]unix.Errno{
		{unix.SYS_INOTIFY_INIT1: unix.EMFILE},
		{unix.SYS_INOTIFY_ADD_WATCH: unix.ENOSPC},
		{unix.SYS_OPENAT: unix.EMFILE},
	} {
		for range 10 {
			var v vigil
			var watched bool
			denied(t, calls, func() { watched = hold.d.watchFile(&v, hold.entry) })
			if watched || len(v.fds) != 0 {
				t.Errorf("%v: watched %t, by %v", calls, watched, v.fds)
			}
		}
	}
	if after := openFDs(t); after >= before+5 {
		t.Errorf("%d descriptors more", after-before)
	}
}
