package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An arena is a lock directory that several users may use, and hostlock as it
// is shipped.
type arena struct {
	*testing.T
	hostlock  string
	root, dir string
}

func (s *stage) arena(t *testing.T) *arena {
	t.Helper()
	root, err := os.MkdirTemp(s.dir, "arena-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	return &arena{t, s.hostlock, root, filepath.Join(root, "lock")}
}

// as prepares a hostlock command of a user; before is what starts it, if
// anything.
func (a *arena) as(uid int, before []string, args ...string) *exec.Cmd {
	all := append(append([]string{}, before...), append([]string{a.hostlock}, args...)...)
	c := exec.Command(all[0], all[1:]...)
	c.Dir = "/"
	c.Env = []string{"HOSTLOCK_DIR=" + a.dir, "HOSTLOCK_PRIVATE_OK=1", "HOSTLOCK_CONF=" + a.root + "/no.conf", "PATH=" + os.Getenv("PATH")}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if uid != os.Getuid() {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return c
}

// An answer is how a command ended.
type answer struct {
	code        int
	out, stderr string
}

func (r answer) String() string {
	return fmt.Sprintf("exit %d, stdout %q, stderr %q", r.code, r.out, r.stderr)
}

func (r answer) field(key string) string {
	for line := range strings.SplitSeq(r.out, "\n") {
		if k, v, ok := strings.Cut(line, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// ends runs a command to its end, which must come.
func (a *arena) ends(c *exec.Cmd) answer {
	a.Helper()
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	c.WaitDelay = time.Second // a keeper has neither
	if err := c.Start(); err != nil {
		a.Fatal(err)
	}
	late := false
	timer := time.AfterFunc(patience, func() { late = true; _ = c.Process.Kill() })
	err := c.Wait()
	timer.Stop()
	var exit *exec.ExitError
	if late || err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		a.Fatalf("%q does not end: %v, %s", c.Args, err, stderr.String())
	}
	r := answer{c.ProcessState.ExitCode(), out.String(), stderr.String()}
	if strings.Contains(r.stderr, "goroutine ") || r.code < 0 {
		a.Errorf("%q crashed: %s", c.Args, r)
	}
	return r
}

func (a *arena) run(args ...string) answer {
	a.Helper()
	return a.ends(a.as(os.Getuid(), nil, args...))
}

func (a *arena) state() string {
	a.Helper()
	return a.run("status", "--porcelain").field("state")
}

// either is both ways of a case, or in the short form one of them.
func either() []bool { return pick([]bool{rand.IntN(2) == 0}, []bool{false, true}) }

// A holder runs a command in the host until it is killed or let go.
type runs struct {
	*exec.Cmd
	in io.Closer
}

// holds has a user hold the host.
func (a *arena) holds(c *exec.Cmd) *runs {
	a.Helper()
	in, err := c.StdinPipe()
	if err != nil {
		a.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		a.Fatal(err)
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		if c.ProcessState == nil {
			(&runs{c, in}).killed()
		}
	})
	var b [6]byte
	if _, err := io.ReadFull(out, b[:]); err != nil || string(b[:]) != "ready\n" {
		in.Close()
		_ = c.Wait()
		a.Fatalf("%q: %q, %v: %s", c.Args, b, err, stderr.String())
	}
	return &runs{c, in}
}

// holding is a run that says when it has the host, and has it until its stdin
// ends.
func holding(extra ...string) []string {
	return append(append([]string{"run", "--reason", "held", "--timeout", "60"}, extra...), "--", "sh", "-c", "echo ready; cat")
}

// killed kills a holder, and only then ends what it runs.
func (r *runs) killed() {
	_ = r.Process.Kill()
	_, _ = r.Process.Wait() // which closes nothing
	r.in.Close()
	_ = r.Wait()
}

func (r *runs) letGo(t *testing.T) {
	t.Helper()
	r.in.Close()
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, as which .ci/run runs")
		}
		t.Skip("needs root, to be several users")
	}
}

func need(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("needs %s, which .ci/run installs", program)
	default:
		t.Skipf("needs %s, which is not installed", program)
	}
	return path
}

// Whoever made the directory, with whatever umask, the host goes from each user
// to each other: released, and taken over from the dead, once.
func TestHostileUsers(t *testing.T) {
	needRoot(t)
	s := newStage(t)
	const sysctl = "/proc/sys/fs/protected_regular"
	levels := []string{""}
	if old, err := os.ReadFile(sysctl); err == nil && os.WriteFile(sysctl, []byte("2"), 0) == nil {
		t.Cleanup(func() { _ = os.WriteFile(sysctl, old, 0) })
		// As strict as it can be, and as found.
		levels = pick([]string{"2"}, []string{strings.TrimSpace(string(old)), "2"})
	}
	users := []int{0, 65534, 54321}
	umask := []string{"sh", "-c", `umask 077; exec "$0" "$@"`}
	n := 0
	for _, level := range levels {
		if level != "" {
			if err := os.WriteFile(sysctl, []byte(level), 0); err != nil {
				t.Fatal(err)
			}
		}
		for _, maker := range users {
			a := s.arena(t)
			// The first of all makes the directory, the guard and the history.
			if r := a.ends(a.as(maker, umask, "run", "--reason", "first", "--", "true")); r.code != 0 {
				t.Fatal(r)
			}
			if st, err := os.Stat(a.dir); err != nil || st.Mode()&(os.ModePerm|os.ModeSticky) != 0o777|os.ModeSticky {
				t.Errorf("uid %d made %v, %v", maker, st.Mode(), err)
			}
			for _, holder := range users {
				for _, next := range users {
					n++
					h := a.holds(a.as(holder, umask, holding()...))
					st := a.ends(a.as(next, nil, "status", "--porcelain"))
					if st.field("state") != "HELD" || st.field("anchor_uid") != strconv.Itoa(holder) {
						t.Errorf("uid %d looks at uid %d's hold: %s", next, holder, st)
					}
					if r := a.ends(a.as(next, umask, "run", "--reason", "x", "--no-wait", "--", "true")); r.code != 2 {
						t.Errorf("uid %d beside uid %d: %s", next, holder, r)
					}
					if r := a.ends(a.as(next, umask, "release", "--force", "--hold-id", st.field("hold_id"))); next != holder && next != 0 && r.code != 2 {
						t.Errorf("uid %d releases uid %d's hold: %s", next, holder, r)
					} else if next == holder || next == 0 {
						if got := a.state(); r.code != 0 || got != "FREE" {
							t.Errorf("uid %d forces uid %d's hold to be released: %s, and the host is %s", next, holder, r, got)
						}
						h.in.Close()
						if _ = h.Wait(); h.ProcessState.ExitCode() != 6 {
							t.Errorf("a run whose hold was removed ended with %d", h.ProcessState.ExitCode())
						}
						h = a.holds(a.as(holder, umask, holding()...))
					}
					h.killed()
					if got := a.state(); got != "STALE" {
						t.Errorf("uid %d's holder is dead, and the host is %s", holder, got)
					}
					r := a.ends(a.as(next, umask, "run", "--reason", "x", "--", "true"))
					if r.code != 0 || !strings.Contains(r.stderr, "outcome=acquired_after_reap (stale_pid)") {
						t.Errorf("uid %d takes over from uid %d: %s", next, holder, r)
					}
					for _, third := range users {
						if r := a.ends(a.as(third, umask, "run", "--reason", "x", "--no-wait", "--", "true")); r.code != 0 || !strings.Contains(r.stderr, "outcome=acquired hold_id=") {
							t.Errorf("uid %d after uid %d took over from uid %d: %s", third, next, holder, r)
						}
					}
				}
			}
			entries, err := os.ReadDir(a.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() != "guard" && e.Name() != "history.jsonl" {
					t.Errorf("uid %d made the directory: %s is left", maker, e.Name())
				}
			}
		}
	}
	t.Logf("%d hand-overs between users, protected_regular %q", n, levels)
}

// What somebody may put under a name. bait is a file outside the directory.
var decoys = map[string]func(path, bait string) error{
	"link":       func(p, bait string) error { return os.Symlink(bait, p) },
	"dangling":   func(p, bait string) error { return os.Symlink(filepath.Dir(bait)+"/made", p) },
	"hard link":  func(p, bait string) error { return os.Link(bait, p) },
	"fifo":       func(p, _ string) error { return unix.Mkfifo(p, 0o666) },
	"device":     func(p, _ string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) },
	"socket":     func(p, _ string) error { return unix.Mknod(p, unix.S_IFSOCK|0o666, 0) },
	"directory":  func(p, _ string) error { return os.Mkdir(p, 0o777) },
	"huge":       func(p, _ string) error { return errors.Join(os.WriteFile(p, nil, 0o666), os.Truncate(p, 1<<40)) },
	"unreadable": func(p, _ string) error { return os.WriteFile(p, []byte("x"), 0) },
	"garbage":    func(p, _ string) error { return os.WriteFile(p, []byte("\x00\xff{]"), 0o666) },
}

// A root process touches nothing outside the directory, whatever another user
// put into it: each of its calls that name or change a file is looked at.
func TestHostileRootWatched(t *testing.T) {
	needRoot(t)
	strace := need(t, "strace")
	s := newStage(t)
	const ticket = "t00000000000000000007"
	names := []string{"guard", "history.jsonl", "host", ticket + ".lock", ticket + ".json", "s00000000000000000008.lock", "j00000000000000000009.json", ".new-0123456789abcdef"}
	commands := [][]string{
		{"run", "--reason", "x", "--no-wait", "--", "true"}, {"status"}, {"reap"}, {"release", "--force"}, {"log"}, {"provenance"},
	}
	cases, calls := 0, 0
	for kind, set := range decoys {
		a := s.arena(t)
		bait := a.root + "/bait"
		write := func(path, text string, mode os.FileMode) {
			if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
				t.Fatal(err)
			}
		}
		write(bait, "bait", 0o640)
		if r := a.run("run", "--reason", "first", "--", "true"); r.code != 0 {
			t.Fatal(r)
		}
		for _, name := range names {
			for _, i := range rand.Perm(len(commands))[:pick(1, len(commands))] {
				command := commands[i]
				cases++
				path := filepath.Join(a.dir, name)
				_ = os.RemoveAll(path)
				if err := set(path, bait); err != nil {
					t.Fatal(err)
				}
				trace := a.root + "/trace"
				r := a.ends(a.as(0, []string{strace, "-f", "-y", "-s", "256", "-o", trace, "-e", "trace=%file,fchmod,fchown,ftruncate,fallocate,fsetxattr"}, command...))
				if r.code != 0 && r.code != 2 && r.code != 7 {
					t.Errorf("%s under %s, %s: %s", kind, name, command[0], r)
				}
				text, err := os.ReadFile(trace)
				if err != nil {
					t.Fatal(err)
				}
				n, bad := outside(string(text), a.dir)
				calls += n
				for _, line := range bad {
					t.Errorf("%s under %s, %s: %s", kind, name, command[0], line)
				}
				if b, err := os.ReadFile(bait); err != nil || string(b) != "bait" {
					t.Fatalf("%s under %s, %s: the bait is %q, %v", kind, name, command[0], b, err)
				}
				if st, err := os.Stat(bait); err != nil || st.Mode() != 0o640 {
					t.Fatalf("%s under %s, %s: the bait is %v, %v", kind, name, command[0], st.Mode(), err)
				}
				if exists(a.root + "/made") {
					t.Fatalf("%s under %s, %s: a file was made outside", kind, name, command[0])
				}
				// And once it is gone, all is well.
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			_ = a.run("release", "--force")
			if r := a.run("run", "--reason", "after", "--timeout", "20", "--", "true"); r.code != 0 {
				t.Errorf("%s under %s has gone, and the host cannot be had: %s", kind, name, r)
			}
		}
	}
	if calls == 0 {
		t.Error("no call was looked at")
	}
	t.Logf("%d decoys met by root, %d calls looked at", cases, calls)
}

var (
	straceCall = regexp.MustCompile(`^\d+ +(\w+)\((.*)`)
	opened     = regexp.MustCompile(`= \d+<(.*)>$`)
	inDir      = regexp.MustCompile(`^(?:AT_FDCWD|\d+)<([^>]*)>, "([^"]*)"`)
	onFD       = regexp.MustCompile(`^\d+<([^>]*)>`)
)

// outside finds the calls in a trace that change something outside a directory,
// or follow what is in it to somewhere else.
func outside(trace, dir string) (n int, bad []string) {
	ours := func(path string) bool {
		path = strings.TrimSuffix(path, " (deleted)")
		return path == dir || strings.HasPrefix(path, dir+"/")
	}
	for line := range strings.SplitSeq(trace, "\n") {
		m := straceCall.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n++
		call, rest := m[1], m[2]
		named := inDir.FindStringSubmatch(rest)
		switch call {
		case "openat":
			o := opened.FindStringSubmatch(line)
			if o == nil {
				continue // it failed
			}
			writes := strings.Contains(line, "O_RDWR") || strings.Contains(line, "O_WRONLY") || strings.Contains(line, "O_CREAT") || strings.Contains(line, "O_TRUNC")
			within := named != nil && ours(named[1])
			switch {
			case writes && !ours(o[1]) && o[1] != "/dev/null" && !strings.HasPrefix(o[1], "/dev/null<"):
				bad = append(bad, line)
			case within && (!ours(o[1]) || !strings.Contains(line, "O_NOFOLLOW") && named[2] != "."):
				bad = append(bad, line)
			}
		case "unlinkat", "renameat", "renameat2", "linkat", "mkdirat", "mknodat", "symlinkat", "fchmodat", "fchmodat2", "fchownat", "utimensat":
			if named == nil || !ours(named[1]) || strings.Contains(named[2], "/") {
				bad = append(bad, line)
			}
		case "fchmod", "fchown", "ftruncate", "fallocate", "fsetxattr":
			if f := onFD.FindStringSubmatch(rest); f == nil || !ours(f[1]) {
				bad = append(bad, line)
			}
		case "mkdir", "rename", "unlink", "rmdir", "link", "symlink", "chmod", "chown", "lchown", "truncate", "creat", "mknod", "setxattr", "utime", "utimes":
			bad = append(bad, line)
		}
	}
	return n, bad
}

// Records of every shape, in the real directory, before the real commands.
func TestHostileRecords(t *testing.T) {
	s := newStage(t)
	a := s.arena(t)
	if r := a.run("run", "--reason", "first", "--", "true"); r.code != 0 {
		t.Fatal(r)
	}
	// A good one, to be spoiled.
	h := a.holds(a.as(os.Getuid(), nil, holding()...))
	locks, err := filepath.Glob(a.dir + "/t*.json")
	if err != nil || len(locks) != 1 {
		t.Fatal(locks, err)
	}
	good, err := os.ReadFile(locks[0])
	if err != nil {
		t.Fatal(err)
	}
	h.letGo(t)
	name := filepath.Base(strings.TrimSuffix(locks[0], ".json"))
	change := func(edit func(map[string]any)) []byte {
		m := map[string]any{}
		d := json.NewDecoder(bytes.NewReader(good))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			t.Fatal(err)
		}
		edit(m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	shapes := map[string][]byte{
		"empty": {}, "blank": []byte(" \n"), "brace": []byte("{"), "array": []byte("[]"), "null": []byte("null"), "number": []byte("7"),
		"binary": []byte("\x7fELF\x00\x01"), "BOM": append([]byte("\xef\xbb\xbf"), good...), "UTF-16": []byte("\xff\xfe{\x00}\x00"),
		"deep": bytes.Repeat([]byte("["), 60000), "large": append(good, bytes.Repeat([]byte(" "), 1<<20)...), "twice": append(append([]byte{}, good...), good...),
		"foreign": []byte("pid=1\nowner=x\n"), "future": change(func(m map[string]any) { m["format"] = 2 }), "far future": change(func(m map[string]any) { m["format"] = 1 << 40 }),
	}
	for i := range 16 {
		shapes[fmt.Sprintf("cut at %d/16", i)] = good[:len(good)*i/16]
	}
	// Each field away, and each of every other kind.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(good, &fields); err != nil {
		t.Fatal(err)
	}
	for key := range fields {
		shapes["no "+key] = change(func(m map[string]any) { delete(m, key) })
		for kind, v := range map[string]any{"null": nil, "text": "x", "negative": -1, "large": json.Number("18446744073709551615"), "fraction": 0.5, "list": []int{1}, "object": map[string]any{"pid": -1, "start": -1}, "true": true} {
			shapes[key+" is "+kind] = change(func(m map[string]any) { m[key] = v })
		}
	}
	for key, pid := range map[string]int{"pid 0": 0, "pid 1": 1, "pid -1": -1, "pid of nobody": 1 << 22, "pid 2^31": 1 << 31} {
		shapes[key] = change(func(m map[string]any) {
			m["anchor"] = map[string]any{"pid": pid}
			m["body"] = m["anchor"]
		})
	}
	write := func(file string, b []byte) {
		if err := os.WriteFile(filepath.Join(a.dir, file), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	states := map[string]int{}
	if !isLong() {
		for i, shape := range slices.Sorted(maps.Keys(shapes)) {
			if i%2 == rand.IntN(2) {
				delete(shapes, shape)
			}
		}
	}
	for shape, b := range shapes {
		for _, locked := range either() {
			write(name+".json", b)
			write(name+".lock", nil)
			fd, err := unix.Open(filepath.Join(a.dir, name+".lock"), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if locked {
				if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
					t.Fatal(err)
				}
			}
			st := a.run("status", "--porcelain")
			state := st.field("state")
			states[state]++
			unreadable := st.field("evidence") == "unreadable_record"
			switch {
			case st.code != 0 || state == "":
				t.Errorf("%s, locked=%v: %s", shape, locked, st)
			case state == "FREE":
				t.Errorf("%s, locked=%v: FREE, with a ticket there", shape, locked)
			case unreadable && state != "HELD":
				t.Errorf("%s, locked=%v: it cannot be read, and reads %s", shape, locked, state)
			}
			if state == "HELD" {
				if r := a.run("run", "--reason", "x", "--no-wait", "--", "true"); r.code != 2 {
					t.Errorf("%s, locked=%v: HELD, and run says: %s", shape, locked, r)
				}
			}
			// "wait" must not be told that the host is free either.
			if locked && unreadable {
				if r := a.run("wait", "--timeout", "0.01"); r.code != 3 {
					t.Errorf("%s, locked=%v: wait says %s", shape, locked, r)
				}
			}
			unix.Close(fd)
			_ = a.run("release", "--force")
			_ = a.run("reap")
			if r := a.run("run", "--reason", "next", "--no-wait", "--", "true"); r.code != 0 {
				t.Errorf("%s, locked=%v: not recoverable: %s", shape, locked, r)
			}
			for _, f := range []string{name + ".json", name + ".lock"} {
				if exists(filepath.Join(a.dir, f)) {
					t.Errorf("%s, locked=%v: %s is left", shape, locked, f)
					os.Remove(filepath.Join(a.dir, f))
				}
			}
		}
	}
	t.Logf("%d records, with or without a kernel lock: %v", len(shapes), states)
}
