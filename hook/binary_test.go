//go:build linux

package hook_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// releases is where releases are fetched from, on the loopback.
type releases struct {
	url   string
	mu    sync.Mutex
	files map[string]string
	asked []string
	hangs chan struct{} // closed when a download that never ends has begun
}

func newReleases(t *testing.T, files map[string]string) *releases {
	r := &releases{files: files, hangs: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.asked = append(r.asked, req.URL.Path)
		text, ok := r.files[req.URL.Path]
		r.mu.Unlock()
		switch {
		case !ok:
			http.NotFound(w, req)
		case text == "hang":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			close(r.hangs)
			<-req.Context().Done()
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// release is the files of one release: what release.yml uploads.
func release(version, program string) map[string]string {
	name := "hostlock_" + version + "_linux_" + runtime.GOARCH
	return map[string]string{
		"/" + version + "/SHA256SUMS": fmt.Sprintf("%064d  hostlock_%s_linux_mips\n%x  %s\n", 0, version, sha256.Sum256([]byte(program)), name),
		"/" + version + "/" + name:    program,
	}
}

const fetchedProgram = `#!/bin/bash
echo "fetched $*"
[[ $2 == post ]] || echo hold=1 >>"$GITHUB_STATE"
`

// bare is a PATH that has what a runner needs, and no hostlock.
func bare(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range append([]string{"bash", "node", "tr", "grep"}, programs...) {
		if err := os.Symlink(need(t, p), filepath.Join(dir, p)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// bareJob runs the action where no hostlock is installed.
func bareJob(t *testing.T, path string, env, with map[string]string) (*result, string) {
	t.Helper()
	cache := filepath.Join(t.TempDir(), "tool cache")
	all := map[string]string{"PATH": path, "RUNNER_TOOL_CACHE": cache, "HOME": t.TempDir()}
	for name, value := range env {
		all[name] = value
	}
	return runJob(t, "", job{RunnerEnv: all, Steps: []step{actionStep(t, with)}}), cache
}

func cached(cache, version string) string {
	return filepath.Join(cache, "hostlock", version, map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH], "hostlock")
}

func TestBinaryIsFetchedOnceAndVerified(t *testing.T) {
	r := newReleases(t, release("v1.2.3", fetchedProgram))
	path, cache := bare(t), t.TempDir()
	env := map[string]string{"HOSTLOCK_RELEASES": r.url, "GITHUB_ACTION_REF": "v1.2.3", "RUNNER_TOOL_CACHE": cache}
	for range 2 {
		res, _ := bareJob(t, path, env, nil)
		main, post := res.step(t, "action"), res.step(t, "Post action")
		if main.Exit != 0 || !strings.Contains(main.log(), "fetched action main") || post.log() != "fetched action post" {
			t.Errorf("main: exit %d, %q; post: %q", main.Exit, main.log(), post.log())
		}
	}
	if len(r.asked) != 2 {
		t.Errorf("asked for %q: the second job has the cache", r.asked)
	}
	info, err := os.Stat(cached(cache, "v1.2.3"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("in the cache: %v, %v", info, err)
	}
	if files := tree(t, filepath.Dir(cached(cache, "v1.2.3"))); len(files) != 2 { // itself and one file
		t.Errorf("the cache has %v", files)
	}
}

// The tag v1 moves on: its checksums name the release that it is now.
func TestMovingTagIsThatOfItsNewestRelease(t *testing.T) {
	files := release("v1.10.0", fetchedProgram)
	files["/v1/SHA256SUMS"] = files["/v1.10.0/SHA256SUMS"]
	r := newReleases(t, files)
	env := map[string]string{"HOSTLOCK_RELEASES": r.url, "GITHUB_ACTION_REF": "v1"}
	res, cache := bareJob(t, bare(t), env, nil)
	if s := res.step(t, "action"); s.Exit != 0 {
		t.Errorf("exit %d", s.Exit)
	}
	if _, err := os.Stat(cached(cache, "v1.10.0")); err != nil {
		t.Error(err)
	}
	// An asked-for version comes before the ref, and its checksums must be its own.
	r.files["/v1.1/SHA256SUMS"] = r.files["/v1/SHA256SUMS"]
	res, _ = bareJob(t, bare(t), env, map[string]string{"version": "v1.1"})
	if s := res.step(t, "action"); s.Exit != 127 || !strings.Contains(s.Commands[0].Value, "are those of v1.10.0") {
		t.Errorf("exit %d, %+v", s.Exit, s.Commands)
	}
}

func TestWrongChecksumIsNotUsed(t *testing.T) {
	files := release("v1.2.3", fetchedProgram)
	files["/v1.2.3/hostlock_v1.2.3_linux_"+runtime.GOARCH] += "# and more\n"
	r := newReleases(t, files)
	// Also with build: what was forged is told, not worked around.
	res, cache := bareJob(t, bare(t), map[string]string{"HOSTLOCK_RELEASES": r.url, "GITHUB_ACTION_REF": "v1.2.3"}, map[string]string{"build": "true"})
	s := res.step(t, "action")
	if s.Exit != 127 || len(s.Commands) != 1 || !strings.Contains(s.Commands[0].Value, "checksum") || strings.Contains(s.log(), "fetched") {
		t.Errorf("exit %d, %q", s.Exit, s.log())
	}
	if _, err := os.Stat(cache); err == nil {
		t.Errorf("left: %v", tree(t, cache))
	}
}

func TestDownloadEndsWithItsStep(t *testing.T) {
	files := release("v1.2.3", "hang")
	r := newReleases(t, files)
	cache := filepath.Join(t.TempDir(), "cache")
	w := startJob(t, "", job{
		RunnerEnv: map[string]string{"PATH": bare(t), "HOSTLOCK_RELEASES": r.url, "GITHUB_ACTION_REF": "v1.2.3", "RUNNER_TOOL_CACHE": cache, "HOME": t.TempDir()},
		scale:     patient,
		Steps:     []step{actionStep(t, nil)},
	})
	select {
	case <-r.hangs:
	case <-time.After(patience):
		t.Fatal("nothing was fetched")
	}
	if err := w.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	res := w.result(t)
	if s := res.step(t, "action"); s.Exit != 130 || !slices.Equal(s.Signals, []string{"SIGINT"}) {
		t.Errorf("exit %d after %q", s.Exit, s.Signals)
	}
	if _, err := os.Stat(cache); err == nil {
		t.Errorf("left: %v", tree(t, cache))
	}
}

func TestWithoutBinaryTheWaysToOneAreNamed(t *testing.T) {
	r := newReleases(t, nil)
	plain := map[string]string{"HOSTLOCK_RELEASES": r.url}
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, tc := range map[string]struct {
		ref  string
		with map[string]string
		env  map[string]string
		want []string
	}{
		"a branch":           {ref: "main", want: []string{"main names no release", "`version`", "`build: true`", "`binary`"}},
		"a commit":           {ref: strings.Repeat("4a", 20), want: []string{"names no release"}},
		"a checkout":         {want: []string{"a local checkout of this action names no release"}},
		"no such release":    {ref: "v9.9.9", want: []string{"/v9.9.9/SHA256SUMS cannot be fetched (status 404)"}},
		"a version with a /": {with: map[string]string{"version": "v1/../../x"}, want: []string{"not v1/../../x"}},
		"a forged version":   {with: map[string]string{"version": "v1\n::stop-commands::x"}, want: []string{"not v1%0A::stop"}},
		"plain http":         {ref: "v1.2.3", env: map[string]string{"HOSTLOCK_RELEASES": "http://mirror.invalid"}, want: []string{"not https"}},
		"no server":          {ref: "v1.2.3", env: map[string]string{"HOSTLOCK_RELEASES": gone.URL}, want: []string{"ECONNREFUSED"}},
		"no address":         {ref: "v1.2.3", env: map[string]string{"HOSTLOCK_RELEASES": "mirror"}, want: []string{"Invalid URL"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"GITHUB_ACTION_REF": tc.ref}
			for _, from := range []map[string]string{plain, tc.env} {
				for k, v := range from {
					env[k] = v
				}
			}
			res, cache := bareJob(t, bare(t), env, tc.with)
			s, post := res.step(t, "action"), res.step(t, "Post action")
			if s.Exit != 127 || len(s.Commands) != 1 || s.Commands[0].Name != "error" || post.Exit != 0 {
				t.Fatalf("exit %d, %+v; post %d", s.Exit, s.Commands, post.Exit)
			}
			for _, want := range tc.want {
				if !strings.Contains(s.Commands[0].Value, want) {
					t.Errorf("no %q in %q", want, s.Commands[0].Value)
				}
			}
			if _, err := os.Stat(cache); err == nil {
				t.Errorf("left: %v", tree(t, cache))
			}
		})
	}
}

// Whoever has no tool cache, or may not write there, fetches each time.
func TestBinaryIsFetchedWithoutAToolCache(t *testing.T) {
	r := newReleases(t, release("v1.2.3", fetchedProgram))
	file := filepath.Join(t.TempDir(), "file")
	writeFile(t, file, "", 0o644)
	for _, cache := range []string{"", file} {
		res, _ := bareJob(t, bare(t), map[string]string{"HOSTLOCK_RELEASES": r.url, "RUNNER_TOOL_CACHE": cache}, map[string]string{"version": "v1.2.3"})
		if s := res.step(t, "Post action"); s.log() != "fetched action post" {
			t.Errorf("cache %q: %q", cache, s.log())
		}
	}
}

// The whole way: compiled because that was asked, known to the command and to
// later steps.
func TestBinaryIsBuiltIfAsked(t *testing.T) {
	h := newHost(t)
	env := h.env()
	env["GITHUB_ACTION_REF"], env["PATH"] = "main", bare(t, "go", "gcc", "mkdir", "cat")
	env["GOFLAGS"] = "" // a test's -race needs what a build without cgo has not
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} {
		env[name] = goEnv(t, name)
	}
	use := actionStep(t, map[string]string{"build": "true", "reason": "x", "run": "hostlock status --porcelain | grep ^state="})
	r := runJob(t, "", job{RunnerEnv: env, Steps: []step{use, {Name: "later", Run: "hostlock status --porcelain | grep ^state="}}})
	if s := r.step(t, "action"); s.Exit != 0 || !strings.Contains(s.log(), "compiling") || !strings.Contains(s.log(), "state=HELD") {
		t.Errorf("exit %d, %q", s.Exit, s.log())
	}
	if s := r.step(t, "later"); s.log() != "state=FREE" {
		t.Errorf("later: %q", s.log())
	}
}

// What release.yml publishes is what the action verifies and runs.
func TestReleaseIsWhatTheActionFetches(t *testing.T) {
	h := newHost(t)
	dist := t.TempDir()
	cmd := exec.Command("../.github/build-release", "v0.0.1", filepath.Join(dist, "v0.0.1"), runtime.GOARCH)
	cmd.Env = append(cleanEnv("", nil), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dist)))
	defer server.Close()
	env := h.env()
	env["HOSTLOCK_RELEASES"], env["GITHUB_ACTION_REF"] = server.URL, "v0.0.1"
	res, _ := bareJob(t, bare(t), env, map[string]string{"reason": "x", "run": "hostlock version"})
	if s := res.step(t, "action"); s.Exit != 0 || !strings.Contains(s.log(), "\nhostlock v0.0.1") {
		t.Errorf("exit %d, %q", s.Exit, s.log())
	}
}

// Where hostlock is installed, the PATH of the job stays what it is.
func TestInstalledBinaryLeavesThePathAlone(t *testing.T) {
	h := newHost(t)
	r := runJob(t, h.bin, job{RunnerEnv: h.env(), Steps: []step{actionStep(t, map[string]string{"reason": "x", "run": "true"})}})
	if s := r.step(t, "action"); s.Exit != 0 || len(s.Path) > 0 {
		t.Errorf("exit %d, put in front of PATH: %q", s.Exit, s.Path)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
