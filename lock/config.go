package lock

import (
	"fmt"
	"path/filepath"
	"strings"
)

const (
	// DefaultDir is one constant for the whole host: a lock that two users
	// resolve differently coordinates nothing.
	DefaultDir = "/tmp/hostlock"
	// ConfigFile is the host's configuration; $HOSTLOCK_CONF moves it.
	ConfigFile = "/etc/hostlock.conf"
)

// A ConfigLine is one line of the configuration that is neither blank nor a
// comment.
type ConfigLine struct {
	Number int // from 1
	Text   string
}

// A Config is /etc/hostlock.conf: where the lock is, and lines of policy that
// only the job hooks read.
type Config struct {
	Path    string
	LockDir string // empty: not set
	Policy  []ConfigLine
}

// ParseConfig reads a configuration. path is for its messages.
func ParseConfig(path string, text []byte) (*Config, error) {
	c := &Config{Path: path}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		word, _, _ := strings.Cut(line, " ")
		if word == "job" || word == "default" {
			c.Policy = append(c.Policy, ConfigLine{i + 1, line})
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok || key != "lock_dir":
			return nil, fmt.Errorf("%s:%d: not understood: %q (expected lock_dir = PATH, job …, default … or a # comment)", path, i+1, Flatten(line, 80))
		case c.LockDir != "":
			return nil, fmt.Errorf("%s:%d: lock_dir is set twice", path, i+1)
		case !filepath.IsAbs(value):
			return nil, fmt.Errorf("%s:%d: lock_dir %q is not an absolute path", path, i+1, Flatten(value, 80))
		}
		c.LockDir = filepath.Clean(value)
	}
	return c, nil
}
