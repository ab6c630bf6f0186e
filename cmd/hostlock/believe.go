//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// checkBounds refuses bounds that could never be kept, or would do nothing.
func (r *running) checkBounds() error {
	b := r.bounds
	switch {
	case r.given("expect-cores") && b.ExpectCores <= 0:
		return r.wrong("--expect-cores must be above 0")
	case r.given("min-efficiency") && !(b.MinEfficiency > 0 && b.MinEfficiency <= 1):
		return r.wrong("--min-efficiency is a share of the expected cores: above 0 and at most 1")
	case r.given("min-efficiency") && !r.given("expect-cores"):
		return r.wrong("--min-efficiency does nothing without --expect-cores, of which it is a share")
	case r.given("max-foreign-cores") && b.MaxForeignCores <= 0:
		return r.wrong("--max-foreign-cores must be above 0: a host that runs anything at all, this program included, is never at 0")
	case r.given("result") && r.result == "":
		return r.wrong("--result is empty")
	}
	return nil
}

// tellVerdict says on stderr what is known against the run. That nobody asked
// to have it judged is no news.
func tellVerdict(e *lock.Evidence) {
	for _, f := range e.Reasons {
		if e.Bounds.Given() || f.Reason.Verdict() == lock.Suspect {
			say("%s: %s", f.Reason.Verdict(), f.Text)
		}
	}
}

// resultPlace is where a result can be written: a regular file or a place for
// one, in a directory where we may rename. It is asked before anything is taken, so
// that nothing is measured in vain.
func resultPlace(path string) (string, error) {
	st, err := os.Lstat(path)
	if err == nil && st.Mode()&os.ModeSymlink != 0 {
		// The rename would replace the link.
		real, evalErr := filepath.EvalSymlinks(path)
		if evalErr != nil {
			return "", fault(path, evalErr)
		}
		path = real
		st, err = os.Lstat(path)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		if strings.HasSuffix(path, "/") {
			return "", fmt.Errorf("%s is a directory's name: name a file", path)
		}
	case err != nil:
		return "", fault(path, err)
	case st.IsDir():
		return "", fmt.Errorf("%s is a directory: name a file in it", path)
	case !st.Mode().IsRegular():
		return "", fmt.Errorf("%s is no regular file, and would be replaced by one", path)
	}
	dir := filepath.Dir(path)
	// Tried, not asked: access(2) says nothing of /proc, of a full disk or of quotas.
	try, err := os.CreateTemp(dir, temporary(path))
	if err != nil {
		return "", fault(path, err)
	}
	try.Close()
	if err := os.Remove(try.Name()); err != nil {
		return "", fault(path, err)
	}
	var in, old unix.Stat_t
	if unix.Stat(dir, &in) == nil && in.Mode&unix.S_ISVTX != 0 && unix.Lstat(path, &old) == nil {
		if me := uint32(unix.Geteuid()); me != 0 && me != old.Uid && me != in.Uid {
			return "", fmt.Errorf("%s is another user's, and nobody else may replace it in %s", path, dir)
		}
	}
	return path, nil
}

// removeOld takes an older result away, so that where no command is run nobody takes that
// for this run's.
func removeOld(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fault(path, err)
	}
	return nil
}

// temporary is the pattern of a temporary name beside path.
func temporary(path string) string { return "." + filepath.Base(path) + ".*" }

// fault is what is wrong with a path, told once.
func fault(path string, err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// writeResult puts the result in its place whole, so that nobody ever reads
// half of it.
func writeResult(path string, p lock.Past) error {
	b, err := json.Marshal(lock.NewResult(p, proc.ReadMachine()))
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, b, "", "  "); err != nil {
		return err
	}
	text.WriteByte('\n')
	tmp, err := os.CreateTemp(filepath.Dir(path), temporary(path))
	if err != nil {
		return err
	}
	_, err = tmp.Write(text.Bytes())
	if err == nil {
		err = tmp.Chmod(0o644) // whatever the umask: others read it
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
