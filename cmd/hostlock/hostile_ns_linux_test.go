package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pod is how a command is started in namespaces of its own: its processes
// cannot be seen from here, nor ours from there.
func pod(t *testing.T, flags ...string) []string {
	t.Helper()
	needRoot(t)
	return append([]string{need(t, "unshare"), "--fork", "--kill-child"}, flags...)
}

// ownProc is a pod whose /proc shows what is in it.
var ownProc = []string{"--pid", "--mount-proc"}

// Holder and waiter in every two of: the host, a pod, a pod beside it, one that
// sees a /proc of somebody else's, one whose clock since boot is shifted, one with
// IPC objects of its own. The second is refused while the first lives, and has the
// host once the first has let go, or was killed with all its pod.
func TestHostileNamespaces(t *testing.T) {
	s := newStage(t)
	places := map[string][]string{
		"host":         nil,
		"pod":          pod(t, ownProc...),
		"another pod":  pod(t, ownProc...),
		"foreign proc": pod(t, "--pid"),
		"shifted boot": pod(t, "--time", "--boottime", "100000", "--pid", "--mount-proc"),
		"only shifted": pod(t, "--time", "--boottime", "100000"),
		"ipc":          pod(t, "--ipc", "--uts", "--net", "--cgroup"),
	}
	n := 0
	for from, holder := range places {
		for to, next := range places {
			if from == to {
				continue
			}
			n++
			a := s.arena(t)
			// A pod without a /proc of its own cannot tell its pid namespace to
			// others: it must say so, and not hold.
			if from == "foreign proc" {
				r := a.ends(a.as(0, holder, "run", "--reason", "x", "--", "true"))
				if r.code != 0 && r.code != 7 {
					t.Errorf("in a pod without its own /proc: %s", r)
				}
				if r.code == 7 {
					if strings.Count(r.stderr, "\n") != 2 || !strings.Contains(r.stderr, "/proc") {
						t.Errorf("in a pod without its own /proc: %s", r)
					}
					continue
				}
			}
			for _, killed := range either() {
				h := a.holds(a.as(0, holder, holding()...))
				if got := a.ends(a.as(0, next, "status", "--porcelain")); got.field("state") != "HELD" {
					t.Errorf("held in %s, and in %s it is %s", from, to, got)
				}
				if r := a.ends(a.as(0, next, "run", "--reason", "x", "--no-wait", "--", "true")); r.code != 2 && !(to == "foreign proc" && r.code == 7) {
					t.Errorf("held in %s, and in %s: %s", from, to, r)
				}
				if !killed {
					h.letGo(t)
				} else {
					h.killed() // and all of the pod with it
				}
				r := a.ends(a.as(0, next, "run", "--reason", "x", "--timeout", "30", "--", "true"))
				if to == "foreign proc" && r.code == 7 {
					r = a.run("run", "--reason", "x", "--timeout", "30", "--", "true")
				}
				want := "outcome=acquired hold_id="
				if killed {
					want = "outcome=acquired_after_reap (stale_pid)"
				}
				if r.code != 0 || !strings.Contains(r.stderr, want) {
					t.Errorf("from %s to %s, killed=%v: %s", from, to, killed, r)
				}
				if r := a.run("run", "--reason", "x", "--no-wait", "--", "true"); r.code != 0 || !strings.Contains(r.stderr, "outcome=acquired hold_id=") {
					t.Errorf("after %s and %s, killed=%v: %s", from, to, killed, r)
				}
			}
		}
	}
	t.Logf("%d ways from one place to another", n)
}

// A hold that a keeper has, in a pod that is killed as a whole: nobody outside
// can see that its anchor is dead, so it counts as held for the grace, and its
// owner can take it away.
func TestHostileKeeperInPod(t *testing.T) {
	s := newStage(t)
	a := s.arena(t)
	c := a.as(0, pod(t, ownProc...))
	c.Args = append(c.Args[:len(c.Args)-1], "sh", "-c", a.hostlock+" acquire --reason pod --pid $$ >&2 && echo ready && cat")
	h := a.holds(c)
	st := a.run("status", "--porcelain")
	if st.field("state") != "HELD" || st.field("evidence") != "anchor_unseen" {
		t.Errorf("held in a pod: %s", st)
	}
	h.killed()
	if st := a.run("status", "--porcelain"); st.field("state") != "HELD" {
		t.Errorf("nothing vouches for it any more, within the grace: %s", st)
	}
	if r := a.run("run", "--reason", "x", "--no-wait", "--", "true"); r.code != 2 {
		t.Errorf("within the grace: %s", r)
	}
	if r := a.run("release", "--force"); r.code != 0 {
		t.Errorf("release: %s", r)
	}
	if r := a.run("run", "--reason", "x", "--no-wait", "--", "true"); r.code != 0 {
		t.Errorf("after that: %s", r)
	}
}

// A lock directory that only a container has is not the host's, and no run
// there is clean; the host's, mounted into it, is.
func TestHostileContainer(t *testing.T) {
	s := newStage(t)
	a := s.arena(t)
	measure := []string{"run", "--reason", "x", "--result", a.root + "/result.json", "--expect-cores", "1", "--min-efficiency", "0.01", "--max-foreign-cores", "1000", "--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"}
	own := func(mounts string, unshare ...string) (scope, verdict string, r answer) {
		t.Helper()
		_ = os.Remove(a.root + "/result.json")
		c := a.as(0, append(pod(t, unshare...), "sh", "-c", mounts+` && exec "$0" "$@"`), measure...)
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOSTLOCK_CONF=" + a.root + "/conf"}
		r = a.ends(c)
		b, err := os.ReadFile(a.root + "/result.json")
		if err != nil {
			t.Fatalf("%v: %s", err, r)
		}
		var result struct {
			Verdict string
			Hold    struct {
				Scope string `json:"lock_scope"`
			}
		}
		if err := json.Unmarshal(b, &result); err != nil {
			t.Fatal(err)
		}
		return result.Hold.Scope, result.Verdict, r
	}
	if err := os.WriteFile(a.root+"/conf", nil, 0o644); err != nil { // one that names nothing
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.dir, "/tmp/") {
		t.Skipf("the temporary directory is %s", s.dir)
	}
	// /tmp must not hide what this test is run from. Two gates may run at once.
	aside, err := os.MkdirTemp("/run", "hostile-")
	if err != nil {
		t.Fatal(err)
	}
	kept, tmp := aside+"/keep", aside+"/tmp"
	t.Cleanup(func() { os.RemoveAll(tmp); os.Remove(kept); os.Remove(aside) })
	if err := os.Mkdir(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	around := func(mount string) string {
		return "mount --bind " + s.dir + " " + kept + " && " + mount + " && mkdir -p " + s.dir + " && mount --bind " + kept + " " + s.dir
	}
	keep := around("mount -t tmpfs tmpfs /tmp")
	private := around("mkdir " + tmp + " && mount --bind " + tmp + " /tmp")
	for name, tt := range map[string]struct {
		mounts  string
		unshare []string
	}{
		"container with its own /tmp": {keep, append([]string{"--mount"}, ownProc...)},
		"service with PrivateTmp":     {private, []string{"--mount"}},
	} {
		_ = os.RemoveAll(tmp)
		scope, verdict, r := own(tt.mounts, tt.unshare...)
		if r.code != 0 && r.code != 6 || scope != "container" || verdict == "clean" || verdict == "" || !strings.Contains(r.stderr, "WARNING") {
			t.Errorf("%s: scope %q, verdict %q: %s", name, scope, verdict, r)
		}
	}
	// The host's own directory, named by the configuration, in a container.
	conf := filepath.Join(a.root, "conf")
	if err := os.WriteFile(conf, []byte("lock_dir = "+a.root+"/shared\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(a.root+"/shared", 0o1777); err != nil {
		t.Fatal(err)
	}
	if scope, _, r := own("true", append([]string{"--mount"}, ownProc...)...); scope == "container" || strings.Contains(r.stderr, "container") {
		t.Errorf("the host's directory in a container: scope %q: %s", scope, r)
	}
}

// A file system that is full, for real: of bytes, and of inodes.
func TestHostileFullDisk(t *testing.T) {
	s := newStage(t)
	for name, script := range map[string]string{
		"bytes": `mount -t tmpfs -o size=64k tmpfs "$ROOT/full" && mkdir -m 1777 "$HOSTLOCK_DIR"`,
		// Two for the root and the directory, one for what fills it.
		"inodes": `mount -t tmpfs -o nr_inodes=9 tmpfs "$ROOT/full" && mkdir -m 1777 "$HOSTLOCK_DIR"`,
	} {
		a := s.arena(t)
		if err := os.Mkdir(a.root+"/full", 0o755); err != nil {
			t.Fatal(err)
		}
		a.dir = a.root + "/full/lock"
		fill := map[string]string{"bytes": `cat /dev/zero >"$ROOT/full/fill" 2>/dev/null`, "inodes": `i=0; while touch "$ROOT/full/$i" 2>/dev/null; do i=$((i+1)); done`}[name]
		empty := `rm -f "$ROOT"/full/fill "$ROOT"/full/[0-9]*`
		// Each line: what happens, and what must come of it.
		full := `set -u; fail() { echo "FAILED: $*: exit $rc: $(cat "$ROOT/said")"; }
says() { "$@" >"$ROOT/said" 2>&1; rc=$?; }
` + script + ` || exit 99
` + fill + `
says "$H" run --reason full -- true
[ $rc = 7 ] || fail "a full disk"
[ "$(grep -c "no space left on device" "$ROOT/said")" = 1 ] || fail "not one clear line"
says "$H" status --porcelain
grep -q state=FREE "$ROOT/said" || fail "nothing is held"
[ -z "$(ls -A "$HOSTLOCK_DIR" | grep -v -e '^guard$' -e '^host$')" ] || { rc=0; ls -A "$HOSTLOCK_DIR" >"$ROOT/said"; fail "something is left"; }
` + empty + `
says "$H" run --reason empty -- true
[ $rc = 0 ] || fail "with room again"
# And now that there is a guard, so that it is the ticket that finds no room.
` + fill + `
says "$H" run --reason full -- true
[ $rc = 7 ] || fail "a full disk with a guard"
[ -z "$(ls -A "$HOSTLOCK_DIR" | grep -v -e '^guard$' -e '^host$' -e '^history.jsonl$')" ] || { rc=0; ls -A "$HOSTLOCK_DIR" >"$ROOT/said"; fail "something is left beside the guard"; }
` + empty + `
# It fills up while the host is held: the holder keeps it, and gives it back.
cat >"$ROOT/inside" <<'END'
` + fill + `
"$H" status --porcelain | grep -q state=HELD || echo "FAILED: not held on a full disk"
"$H" run --reason other --lock-dir "$HOSTLOCK_DIR" -- true; [ $? = 7 ] || echo "FAILED: a nested run on a full disk"
END
says "$H" run --reason held -- sh "$ROOT/inside"
[ $rc = 0 ] && ! grep -q FAILED "$ROOT/said" || fail "a holder on a full disk"
says "$H" status --porcelain
grep -q state=FREE "$ROOT/said" || fail "it was not given back"
` + empty + `
says "$H" acquire --reason keeper --pid $$
[ $rc = 0 ] || fail "acquire"
` + fill + `
says "$H" release
[ $rc = 0 ] || fail "release on a full disk"
` + empty + `
says "$H" run --reason end -- true
[ $rc = 0 ] || fail "at the end"
umount "$ROOT/full"; echo done
`
		c := a.as(0, append(pod(t, "--mount"), "sh", "-c", full))
		c.Args = c.Args[:len(c.Args)-1]
		c.Env = append(c.Env, "ROOT="+a.root, "H="+a.hostlock)
		if r := a.ends(c); r.out != "done\n" {
			t.Errorf("%s: %s", name, r)
		}
	}
}
