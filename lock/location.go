//go:build linux

package lock

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A Location is a lock directory and how it came to be chosen.
type Location struct {
	Path   string
	Source Source
	Scope  Scope  // Box until Open has looked at the directory
	Common string // what everybody else on the host resolves
	// configured: the host's own configuration names this directory.
	configured bool
}

// Resolve chooses the lock directory: the flag, else $HOSTLOCK_DIR, else
// lock_dir of the configuration, else DefaultDir. It opens nothing but the
// configuration. A configuration that exists and cannot be used is an error,
// never a reason to fall back to another directory.
func Resolve(flag string, getenv func(string) string) (Location, error) {
	return resolve(ConfigFile, flag, getenv)
}

func resolve(config, flag string, getenv func(string) string) (Location, error) {
	common, configured, err := commonDir(config)
	if err != nil {
		return Location{}, err
	}
	l := Location{Path: common, Source: FromDefault, Common: common, configured: configured}
	if configured {
		l.Source = FromConfig
	}
	if moved := getenv("HOSTLOCK_CONF"); moved != "" && flag == "" && getenv("HOSTLOCK_DIR") == "" {
		l.Path, configured, err = commonDir(moved)
		if err != nil {
			return Location{}, err
		}
		if c, _ := ReadConfig(moved); c == nil {
			return Location{}, &UnusableError{Path: moved, Problem: "$HOSTLOCK_CONF names it and it does not exist"}
		}
		l.configured = configured
		if configured {
			l.Source = FromConfig
		}
	}
	for _, choice := range []struct {
		path   string
		source Source
	}{{flag, FromFlag}, {getenv("HOSTLOCK_DIR"), FromEnv}} {
		if choice.path == "" {
			continue
		}
		if !filepath.IsAbs(choice.path) {
			return Location{}, &UnusableError{Path: choice.path, Problem: "it is not an absolute path"}
		}
		l.Path, l.Source = filepath.Clean(choice.path), choice.source
		if l.Path == "/" {
			return Location{}, &UnusableError{Path: l.Path, Problem: "it is the root directory: name one for the lock alone"}
		}
		l.configured = configured && l.Path == common
		break
	}
	if l.Path != common && !sameFile(l.Path, common) {
		l.Scope = Private
	}
	return l, nil
}

// commonDir is what a configuration file, or its absence, resolves to.
func commonDir(config string) (dir string, configured bool, err error) {
	c, err := ReadConfig(config)
	switch {
	case err != nil:
		return "", false, err
	case c == nil || c.LockDir == "":
		return DefaultDir, false, nil
	}
	return c.LockDir, true, nil
}

// maxConfig is the size in bytes past which a configuration is not read.
const maxConfig = 1 << 20

// ReadConfig reads a configuration file; nil without an error is a file that
// does not exist, which is no configuration.
func ReadConfig(path string) (*Config, error) {
	if !filepath.IsAbs(path) {
		return nil, &UnusableError{Path: path, Problem: "$HOSTLOCK_CONF is not an absolute path"}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &UnusableError{Path: path, Problem: "the configuration cannot be read", Err: err}
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxConfig {
		return nil, &UnusableError{Path: path, Problem: "the configuration is no regular file of at most 1 MiB", Err: err}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = errors.New("it grew while it was read")
	}
	if err != nil {
		return nil, &UnusableError{Path: path, Problem: "the configuration cannot be read", Err: err}
	}
	c, err := ParseConfig(path, text)
	if err != nil {
		return nil, &UnusableError{Path: path, Problem: "the configuration is wrong", Err: err}
	}
	return c, nil
}

func sameFile(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Lstat(a, &x) == nil && unix.Lstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}
