//go:build linux

package hook

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/org/hostlock-action/lock"
)

func TestLayOutMakesWhatIsMissing(t *testing.T) {
	root := t.TempDir()
	var told []string
	tell := func(s string) { told = append(told, s) }
	if err := LayOut(root, "", 0, tell); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(root, "run/hostlock"))
	if err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(filepath.Join(root, "etc/hostlock.conf"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := lock.ParseConfig("x", text)
	if err != nil || c.LockDir != "/run/hostlock" || len(c.Policy) != 0 {
		t.Errorf("configuration %+v, %v", c, err)
	}
	own := filepath.Join(root, "etc/tmpfiles.d/hostlock.conf")
	if b, err := os.ReadFile(own); err != nil || string(b) != "d /run/hostlock 1777 root root -\n" {
		t.Errorf("tmpfiles.d: %q, %v", b, err)
	}
	if err := os.WriteFile(own, []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := LayOut(root, "bench", os.Getgid(), tell); err != nil || len(told) != 6 {
		t.Errorf("again: %v, %q", err, told)
	}
	if b, _ := os.ReadFile(own); string(b) != "mine\n" {
		t.Errorf("what was there: %q", b)
	}
	if os.Geteuid() == 0 {
		other := t.TempDir()
		if err := LayOut(other, "bench", 12345, tell); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(other, "run/hostlock")); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|os.ModeSetgid|0o770 {
			t.Errorf("directory of a group: %v, %v", info.Mode(), err)
		}
	}
}
