//go:build linux

package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/org/hostlock-action/proc"
)

// A runner's job hooks are named by two variables of its .env file, one path
// each. Installing writes two scripts and names them there, and keeps what was
// there before, so that uninstalling can put it back to the byte.

// hookDir is the directory of ours in a runner's. The runner's own update
// replaces bin and externals and leaves the rest.
const hookDir = "hostlock"

const installedFile = "installed.json"

// An installation is what install changed in one runner's directory.
type installation struct {
	Binary string `json:"binary"` // that the hooks start
	// EnvExisted and AddedNewline are of .env as a whole: its last line may
	// have had no line feed.
	EnvExisted   bool              `json:"env_existed"`
	AddedNewline bool              `json:"added_newline"`
	Hooks        map[string]*prior `json:"hooks"` // by variable
}

// prior is what a variable was before.
type prior struct {
	HadLine bool   `json:"had_line"`
	Line    string `json:"line,omitempty"` // whole, without its line feed
}

// jobHooks are the two hooks.
var jobHooks = []struct{ variable, command string }{
	{"ACTIONS_RUNNER_HOOK_JOB_STARTED", "job-started"},
	{"ACTIONS_RUNNER_HOOK_JOB_COMPLETED", "job-completed"},
}

// A Runner is one runner's directory on this host.
type Runner struct {
	Dir       string
	Listeners []Listener // that run from it now
}

// A Listener is a runner's process that waits for jobs. It reads .env when it
// starts.
type Listener struct {
	proc.Process
	Busy    bool   // a job runs
	Service string // its systemd unit, if it has one
}

// FindRunner looks at a runner's directory.
func FindRunner(dir string) (*Runner, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "bin", "Runner.Listener")); err != nil {
		if _, err := os.Stat(filepath.Join(dir, ".runner")); err != nil {
			return nil, fmt.Errorf("%s is no directory of a runner: it has neither bin/Runner.Listener nor .runner", dir)
		}
	}
	r := &Runner{Dir: dir}
	service, _, _ := readSmall(filepath.Join(dir, ".service"))
	for _, p := range proc.Descendants(0) { // all there are
		if p.Comm != "Runner.Listener" {
			continue
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
		if err != nil || !strings.HasPrefix(exe, dir+"/bin") {
			continue // bin may be a link to bin.VERSION
		}
		l := Listener{Process: p, Service: strings.TrimSpace(string(service))}
		for _, c := range proc.Descendants(p.PID) {
			l.Busy = l.Busy || c.Comm == "Runner.Worker"
		}
		r.Listeners = append(r.Listeners, l)
	}
	return r, nil
}

// Hooked reports whether both job hooks of the runner are ours.
func (r *Runner) Hooked() bool {
	env, _, err := readSmall(r.env())
	if err != nil {
		return false
	}
	for _, h := range jobHooks {
		if _, value, ok := lastLine(env, h.variable); !ok || value != r.script(h.command) {
			return false
		}
	}
	return true
}

func (r *Runner) env() string                  { return filepath.Join(r.Dir, ".env") }
func (r *Runner) script(command string) string { return filepath.Join(r.Dir, hookDir, command+".sh") }
func (r *Runner) state() string                { return filepath.Join(r.Dir, hookDir, installedFile) }

// Install has the runner call binary around every job, and chains hooks that
// are already there. changed: the runner must be restarted to hear of it.
func (r *Runner) Install(binary string) (changed bool, err error) {
	for _, path := range []string{r.Dir, binary} {
		if strings.ContainsAny(path, "\n\r") {
			return false, fmt.Errorf("%q has a line break in it, which a hook's path cannot have", path)
		}
	}
	env, info, err := r.readEnv()
	if err != nil {
		return false, err
	}
	in, err := r.installed()
	if err != nil {
		return false, err
	}
	if in == nil {
		in = &installation{EnvExisted: info != nil, Hooks: make(map[string]*prior)}
	}
	in.Binary = binary
	out := env
	for _, h := range jobHooks {
		line, value, had := lastLine(out, h.variable)
		if had && value == r.script(h.command) {
			continue
		}
		// Somebody else's, perhaps set after we were installed: chained.
		in.Hooks[h.variable] = &prior{HadLine: had, Line: line}
		ours := h.variable + "=" + r.script(h.command)
		if had {
			out = replaceLine(out, line, ours+strings.TrimPrefix(line, strings.TrimSuffix(line, "\r")))
			continue
		}
		if len(out) > 0 && out[len(out)-1] != '\n' {
			out, in.AddedNewline = append(bytes.Clone(out), '\n'), true
		}
		out = append(bytes.Clone(out), ours+"\n"...)
	}
	// First what .env will name, then what is needed to take it back, then
	// .env: at every moment each of its paths exists.
	if err := os.Mkdir(filepath.Join(r.Dir, hookDir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	if info, err := os.Lstat(filepath.Join(r.Dir, hookDir)); err != nil || !info.IsDir() {
		return false, fmt.Errorf("%s is no directory", filepath.Join(r.Dir, hookDir))
	}
	for _, h := range jobHooks {
		text, err := r.scriptText(binary, h.command, in.Hooks[h.variable])
		if err == nil {
			err = replace(r.script(h.command), text, 0o755, nil)
		}
		if err != nil {
			return false, err
		}
	}
	state, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return false, err
	}
	if err := replace(r.state(), append(state, '\n'), 0o644, nil); err != nil {
		return false, err
	}
	if bytes.Equal(env, out) {
		return false, nil
	}
	return true, replaceEnv(r.env(), out, info)
}

// Uninstall puts the runner's .env back as it was, but for what others changed
// in it since, and takes the scripts away.
func (r *Runner) Uninstall() (changed bool, err error) {
	in, err := r.installed()
	if err != nil || in == nil {
		return false, err
	}
	env, info, err := r.readEnv()
	if err != nil {
		return false, err
	}
	out := env
	for _, h := range jobHooks {
		line, value, had := lastLine(out, h.variable)
		if !had || value != r.script(h.command) {
			continue // somebody has set it since: theirs
		}
		if was := in.Hooks[h.variable]; was != nil && was.HadLine {
			out = replaceLine(out, line, was.Line)
		} else {
			out = removeLine(out, line)
		}
	}
	// The line feed that we had to add goes too, unless lines came after ours.
	if n := len(out); in.AddedNewline && n > 0 && out[n-1] == '\n' && n < len(env) && bytes.HasPrefix(env, out) {
		out = out[:n-1]
	}
	switch {
	case bytes.Equal(env, out):
	case len(out) == 0 && !in.EnvExisted:
		changed, err = true, os.Remove(r.env())
	default:
		changed, err = true, replaceEnv(r.env(), out, info)
	}
	if err != nil {
		return false, err
	}
	for _, h := range jobHooks {
		if err := os.Remove(r.script(h.command)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return changed, err
		}
	}
	if err := os.Remove(r.state()); err != nil {
		return changed, err
	}
	_ = os.Remove(filepath.Join(r.Dir, hookDir)) // unless somebody keeps something there
	return changed, nil
}

func (r *Runner) installed() (*installation, error) {
	text, _, err := readSmall(r.state())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var in installation
	if err == nil {
		err = json.Unmarshal(text, &in)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.state(), err)
	}
	if in.Hooks == nil {
		in.Hooks = make(map[string]*prior)
	}
	return &in, nil
}

// scriptText is the script of a hook. The runner starts it as `bash -e`, or
// with sh where there is no bash.
func (r *Runner) scriptText(binary, command string, was *prior) ([]byte, error) {
	call := quote(binary) + " hook " + command
	var chained string
	if was != nil && was.HadLine {
		_, path, _ := strings.Cut(strings.TrimSuffix(was.Line, "\r"), "=")
		var err error
		if chained, err = r.start(path); err != nil {
			return nil, err
		}
	}
	text := "#!/bin/sh\n# Written by `hostlock hook install`; `hostlock hook uninstall` takes it away.\n"
	switch {
	case chained == "":
		text += "exec " + call + "\n"
	case command == "job-started":
		// What the host already had in its hook may load it: under the lock.
		text += call + "\nexec " + chained + "\n"
	default:
		// The host is given back whatever becomes of the other hook.
		text += "status=0\n" + chained + " || status=$?\n" + call + " || :\nexit \"$status\"\n"
	}
	return []byte(text), nil
}

// start is how the runner itself would start a hook
// (Runner.Worker/JobHookProvider.cs).
func (r *Runner) start(path string) (string, error) {
	switch filepath.Ext(path) {
	case "":
		if path == "" {
			return "", nil
		}
	case ".sh":
		return "bash -e " + quote(path), nil
	case ".ps1":
		return "pwsh -command " + quote(". '"+strings.ReplaceAll(path, "'", "''")+"'"), nil
	case ".js":
		nodes, _ := filepath.Glob(filepath.Join(escapeGlob(r.Dir), "externals", "node*", "bin", "node"))
		node := "node"
		if len(nodes) > 0 {
			node = quote(nodes[len(nodes)-1])
		}
		return node + " " + quote(path), nil
	}
	return "", fmt.Errorf("the hook that is already there, %s, is none that a runner starts (.sh, .ps1, .js)", path)
}

func escapeGlob(s string) string {
	return strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, `\`, `\\`).Replace(s)
}

// quote is a word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// lastLine finds the line of .env that sets a variable; of several the last
// one counts (Runner.Listener/Program.cs sets them in order).
func lastLine(env []byte, variable string) (line, value string, ok bool) {
	for l := range strings.SplitSeq(string(env), "\n") {
		if v, found := strings.CutPrefix(l, variable+"="); found {
			line, value, ok = l, strings.TrimSuffix(v, "\r"), true
		}
	}
	return line, value, ok
}

// replaceLine replaces the last line that is exactly line.
func replaceLine(env []byte, line, by string) []byte {
	lines := strings.Split(string(env), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if lines[i] == line {
			lines[i] = by
			break
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// removeLine removes the last line that is exactly line, with its line feed.
func removeLine(env []byte, line string) []byte {
	lines := strings.Split(string(env), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if lines[i] == line {
			lines = append(lines[:i], lines[i+1:]...)
			break
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// maxEnv bounds a file of a runner's directory, in bytes.
const maxEnv = 1 << 20

// readSmall reads a file of a runner's directory. That is writable to every job
// of the runner, and who installs there may be root: a FIFO in a file's place must
// not hold that up, nor a huge one fill the memory.
func readSmall(path string) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxEnv {
		return nil, nil, fmt.Errorf("%s is no regular file of at most 1 MiB", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEnv))
	return text, info, err
}

// readEnv reads .env, which may be missing; its info is then nil.
func (r *Runner) readEnv() ([]byte, fs.FileInfo, error) {
	text, info, err := readSmall(r.env())
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(r.env()); err == nil {
			return nil, nil, fmt.Errorf("%s is a link to nothing: make what it names, or remove it", r.env())
		}
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	// A job may have made it a link, and root must not edit what that names.
	if dir, derr := os.Stat(r.Dir); derr == nil && uidOf(info) != uidOf(dir) && uidOf(info) != os.Geteuid() {
		return nil, nil, fmt.Errorf("%s belongs to uid %d and the runner's directory to uid %d: it is not changed", r.env(), uidOf(info), uidOf(dir))
	}
	return text, info, nil
}

func uidOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// replaceEnv replaces a file that may hold secrets: mode and owner stay. A new
// one is the runner's, who must read it.
func replaceEnv(path string, text []byte, old fs.FileInfo) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	mode := fs.FileMode(0o600)
	if old != nil {
		mode = old.Mode().Perm()
	} else if info, err := os.Stat(filepath.Dir(path)); err == nil {
		old = info
	}
	var owner *syscall.Stat_t
	if old != nil {
		owner, _ = old.Sys().(*syscall.Stat_t)
	}
	return replace(path, text, mode, owner)
}

// replace writes a file whole or not at all: a job may start meanwhile.
func replace(path string, text []byte, mode fs.FileMode, owner *syscall.Stat_t) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".hostlock-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if owner != nil && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
		err = f.Chown(int(owner.Uid), int(owner.Gid))
	}
	err = errors.Join(err, f.Chmod(mode))
	_, werr := f.Write(text)
	if err = errors.Join(err, werr, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// InstallBinary puts this program at path, by rename: jobs that run the old one
// go on with it.
func InstallBinary(path string) error {
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return replace(path, text, 0o755, nil)
}

// LayOut writes the configuration and the tmpfiles.d line of a host whose lock
// is at /run/hostlock, below root (normally /), and makes the directory. With a
// group, whose gid must be given, only its members can take the lock. What is
// there already is kept. It tells what it did.
func LayOut(root, group string, gid int, tell func(string)) error {
	mode, owner := "1777", "root root"
	if group != "" {
		// Set-gid, so that the files of one member are the group's.
		mode, owner = "3770", "root "+group
	}
	for _, f := range []struct{ path, text string }{
		{"/etc/hostlock.conf", `# The lock of this host.
lock_dir = /run/hostlock

# What a job gets before its first step. The first line that matches decides.
#job repository=acme/db event=push runner=bench-* mode=exclusive wait=20m gate-cpu=0.5
#job repository=acme/docs mode=none
#default mode=shared wait=1h
`},
		{"/etc/tmpfiles.d/hostlock.conf", "d /run/hostlock " + mode + " " + owner + " -\n"},
	} {
		path := filepath.Join(root, f.path)
		if _, err := os.Lstat(path); err == nil {
			tell(path + " is there already and was kept")
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := replace(path, []byte(f.text), 0o644, nil); err != nil {
			return err
		}
		tell("wrote " + path)
	}
	dir := filepath.Join(root, "/run/hostlock")
	if _, err := os.Lstat(dir); err == nil {
		tell(dir + " is there already and was kept")
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	perm := fs.ModeSticky | 0o777
	if group != "" {
		perm = fs.ModeSticky | fs.ModeSetgid | 0o770
	}
	// Under another name until it has its owner and mode.
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".hostlock-*")
	if err != nil {
		return err
	}
	if group != "" {
		err = os.Chown(tmp, 0, gid)
	}
	if err = errors.Join(err, os.Chmod(tmp, perm)); err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	tell("made " + dir)
	return nil
}
