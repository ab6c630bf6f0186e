//go:build linux

package lock

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// In a container whose directory is its own nobody has the host. (Defect 51.)
func TestScope(t *testing.T) {
	whole := Box // a directory on a mount of a part of a file system may be private to us
	if d, _ := newWorld(t).process(); !d.onWholeFS() {
		whole = Container
	}
	for _, tt := range []struct {
		name       string
		here       proc.Vantage
		configured bool
		private    bool
		mark       bool
		want       Scope
		marks      bool
	}{
		{name: "on the host", here: proc.Vantage{PIDNS: proc.InitialPIDNS, ProcOurs: true}, want: whole, marks: whole == Box},
		{name: "in a container", here: proc.Vantage{PIDNS: 7, ProcOurs: true}, want: Container},
		{name: "behind another's /proc", here: proc.Vantage{PIDNS: proc.InitialPIDNS}, want: Container},
		{name: "in a container, mounted from the host", here: proc.Vantage{PIDNS: 7, ProcOurs: true}, mark: true, want: Box, marks: true},
		{name: "in a container that a configuration vouches for", here: proc.Vantage{PIDNS: 7, ProcOurs: true}, configured: true, want: Box},
		{name: "private, on the host", here: proc.Vantage{PIDNS: proc.InitialPIDNS, ProcOurs: true}, private: true, want: Private},
		{name: "private, with a mark", here: proc.Vantage{PIDNS: 7, ProcOurs: true}, private: true, mark: true, want: Private, marks: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			d, _ := w.process()
			d.host.here, d.configured = tt.here, tt.configured
			if tt.private {
				d.Scope = Private
			}
			if tt.mark {
				w.write(hostMark, "")
			}
			d.resolveScope(false)
			if d.Scope != tt.want {
				t.Errorf("%v, want %v", d.Scope, tt.want)
			}
			if _, err := os.Lstat(w.file(hostMark)); (err == nil) != tt.mark {
				t.Error("a look has left a mark")
			}
			d.resolveScope(true)
			if _, err := os.Lstat(w.file(hostMark)); (err == nil) != tt.marks {
				t.Errorf("marked: %t, want %t", err == nil, tt.marks)
			}
		})
	}
}

// Who opens a directory knows what it covers. Who acquires there marks it as the host's,
// if it is; who looks leaves nothing.
func TestScopeOfAnOpenDir(t *testing.T) {
	dir := t.TempDir()
	here := proc.Here()
	d, _ := newWorld(t).process()
	onHost := here.PIDNS == proc.InitialPIDNS && here.ProcOurs && d.onWholeFS()
	want := Container
	if onHost {
		want = Box
	}
	for _, open := range []func(Location) (*Dir, error){OpenToLook, Open} {
		if _, err := os.Lstat(dir + "/" + hostMark); err == nil {
			t.Error("a look has left a mark")
		}
		d, err := open(Location{Path: dir})
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if d.Scope != want {
			t.Errorf("%v, want %v", d.Scope, want)
		}
	}
	if _, err := os.Lstat(dir + "/" + hostMark); (err == nil) != onHost {
		t.Errorf("marked: %t, want %t", err == nil, onHost)
	}
}

// What is no plain file is no mark.
func TestScopeMarkIsAFile(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	d.host.here = proc.Vantage{PIDNS: 7, ProcOurs: true}
	if err := unix.Symlinkat("/etc/passwd", d.fd, hostMark); err != nil {
		t.Fatal(err)
	}
	if d.resolveScope(false); d.Scope != Container {
		t.Errorf("%v by a link", d.Scope)
	}
}

// A service's private /tmp is a part of a file system, bound to its place.
func TestScopeOfAPartOfAFileSystem(t *testing.T) {
	if d, _ := newWorld(t).process(); !d.onWholeFS() {
		t.Skip("here everything is")
	}
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/part", 0o755), os.Mkdir(dir+"/place", 0o755)); err != nil {
		t.Fatal(err)
	}
	c := helperCmd("bound", "LOCK_TEST_DIR="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if os.Getuid() != 0 {
		c.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	out, err := c.Output()
	if errors.Is(err, unix.EPERM) || strings.HasPrefix(string(out), "no mount") {
		t.Skipf("not allowed here: %s %v", out, err)
	}
	if string(out) != "container\nbox\ncontainer\ncontainer\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := os.Lstat(dir + "/part/" + hostMark); err == nil {
		t.Error("it is marked as the host's")
	}
}

// The mark is closed when it is made.
func TestScopeMarkIsClosed(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	d.host.here = proc.Vantage{PIDNS: proc.InitialPIDNS, ProcOurs: true}
	before := openFDs(t)
	for range 5 {
		d.resolveScope(true)
		os.Remove(w.file(hostMark))
	}
	if after := openFDs(t); after >= before+5 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// Where the mount cannot be told, nothing is known against it.
func TestScopeWithoutAMount(t *testing.T) {
	if !(&Dir{fd: -1}).onWholeFS() {
		t.Error("what cannot be told is told")
	}
}

// A record that does not say that its lock covers the host does not cover it. (Defect 51.)
func TestFactsOfScope(t *testing.T) {
	for said, want := range map[string]Scope{"box": Box, "private": Private, "container": Container, "": Container, "planet": Container} {
		if got := FactsOf(&Record{LockScope: said}).Scope; got != want {
			t.Errorf("%q is %v, want %v", said, got, want)
		}
	}
}

// A flag or a variable that points elsewhere coordinates with nobody; a configuration
// that cannot be used is never a reason to go elsewhere. (Defects 34, 35.)
func TestResolve(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir + "/" + name
	}
	if err := errors.Join(os.MkdirAll(dir+"/real/lock", 0o755), os.Symlink("real", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	none := dir + "/none"
	conf := file("conf", "# ours\nlock_dir = /run/x/../hostlock\ndefault mode=none\n")
	policy := file("policy", "default mode=none\n")
	there := file("there", "lock_dir = "+dir+"/real/lock\n")
	largest := "lock_dir = /run/hostlock\n#" + strings.Repeat("x", 1<<20-27) + "\n"
	for _, tt := range []struct {
		name, flag string
		env        map[string]string
		host       string // its configuration; empty: it has none
		path       string // empty: refused
		source     Source
		scope      Scope
		configured bool
	}{
		{name: "nothing said", path: DefaultDir},
		{name: "flag", flag: "/a/b/../c", path: "/a/c", source: FromFlag, scope: Private},
		{name: "variable", env: map[string]string{"HOSTLOCK_DIR": "/a/b"}, path: "/a/b", source: FromEnv, scope: Private},
		{name: "flag before variable", flag: "/f", env: map[string]string{"HOSTLOCK_DIR": "/a/b"}, path: "/f", source: FromFlag, scope: Private},
		{name: "flag that says what everybody resolves", flag: DefaultDir + "/", path: DefaultDir, source: FromFlag},
		{name: "configuration", env: map[string]string{"HOSTLOCK_CONF": conf}, path: "/run/hostlock", source: FromConfig, scope: Private, configured: true},
		{name: "configuration without a directory", env: map[string]string{"HOSTLOCK_CONF": policy}, path: DefaultDir},
		{name: "no such configuration", env: map[string]string{"HOSTLOCK_CONF": none}},
		{name: "the root directory", flag: "/"},
		{name: "variable before configuration", env: map[string]string{"HOSTLOCK_DIR": "/a", "HOSTLOCK_CONF": conf}, path: "/a", source: FromEnv, scope: Private},
		{name: "variable before no such configuration", env: map[string]string{"HOSTLOCK_DIR": "/a", "HOSTLOCK_CONF": none}, path: "/a", source: FromEnv, scope: Private},
		{name: "flag before no such configuration", flag: "/f", env: map[string]string{"HOSTLOCK_CONF": none}, path: "/f", source: FromFlag, scope: Private},
		{name: "relative flag", flag: "a/b"},
		{name: "relative variable", env: map[string]string{"HOSTLOCK_DIR": "."}},
		{name: "relative configuration", env: map[string]string{"HOSTLOCK_CONF": "conf"}},
		{name: "wrong configuration", env: map[string]string{"HOSTLOCK_CONF": file("wrong", "lockdir = /x\n")}},
		{name: "a directory as configuration", env: map[string]string{"HOSTLOCK_CONF": dir}},
		{name: "no file as configuration", env: map[string]string{"HOSTLOCK_CONF": "/dev/null"}},
		{name: "an endless configuration", env: map[string]string{"HOSTLOCK_CONF": "/dev/zero"}},
		{name: "a configuration that cannot be read", env: map[string]string{"HOSTLOCK_CONF": "/proc/self/mem"}},
		{name: "a large configuration", env: map[string]string{"HOSTLOCK_CONF": file("large", largest)}, path: "/run/hostlock", source: FromConfig, scope: Private, configured: true},
		{name: "a huge configuration", env: map[string]string{"HOSTLOCK_CONF": file("huge", largest+"\n")}},
		{name: "the host's", host: conf, path: "/run/hostlock", source: FromConfig, configured: true},
		{name: "the host's without a directory", host: policy, path: DefaultDir},
		{name: "the host's is wrong", host: dir + "/wrong", flag: "/f"},
		{name: "flag that says what the host's does", host: conf, flag: "/run/hostlock", path: "/run/hostlock", source: FromFlag, configured: true},
		{name: "flag beside the host's", host: conf, flag: DefaultDir, path: DefaultDir, source: FromFlag, scope: Private},
		{name: "the host's directory by another name", host: there, flag: dir + "/link/lock", path: dir + "/link/lock", source: FromFlag},
	} {
		t.Run(tt.name, func(t *testing.T) {
			common := DefaultDir
			switch tt.host {
			case conf:
				common = "/run/hostlock"
			case there:
				common = dir + "/real/lock"
			}
			l, err := resolve(cmp.Or(tt.host, none), tt.flag, func(name string) string { return tt.env[name] })
			if tt.path == "" {
				if !errors.As(err, new(*UnusableError)) {
					t.Errorf("%+v, %v", l, err)
				}
				return
			}
			if err != nil || l.Path != tt.path || l.Source != tt.source || l.Scope != tt.scope || l.Common != common || l.configured != tt.configured {
				t.Errorf("%+v, %v", l, err)
			}
		})
	}
}

// The same directory by another name is not private.
func TestSameFile(t *testing.T) {
	dir := t.TempDir()
	if !sameFile(dir, dir+"/.") || sameFile(dir, "/") || sameFile(dir, dir+"/none") || sameFile(dir+"/none", dir+"/none") ||
		sameFile("/proc", "/sys") { // which are one number on two file systems
		t.Error("takes one file for another, or none for one")
	}
}
