//go:build linux

package hook

import (
	"strings"
	"testing"

	"github.com/org/hostlock-action/lock"
)

// FuzzPolicy: whatever an administrator writes and a workflow's author names,
// the answer is one grant that a line gives, or one line that says what is wrong.
func FuzzPolicy(f *testing.F) {
	f.Add(hostPolicy, "acme/db", "refs/heads/main")
	f.Add("job job=x mode=none", "x", "")
	f.Fuzz(func(t *testing.T, text, repository, ref string) {
		c, err := lock.ParseConfig("/c", []byte(text))
		if err != nil {
			return
		}
		p, err := ParsePolicy(c)
		if err != nil {
			if s := err.Error(); !strings.HasPrefix(s, "/c:") || s != lock.Flatten(s, len(s)) {
				t.Errorf("%q: error %q", text, s)
			}
			return
		}
		if p == nil {
			return
		}
		g := p.Decide(environment("GITHUB_REPOSITORY", repository, "GITHUB_REF", ref, "GITHUB_JOB", repository, "RUNNER_NAME", ref))
		switch {
		case g.None && !strings.Contains(text, "mode=none"):
			t.Errorf("%q lets %q go without a lock", text, repository)
		case g.Mode != lock.Exclusive && g.Mode != lock.Shared, !g.None && g.Wait <= 0, g.Gate.Runnable < 0, !(g.Gate.CPU >= 0):
			t.Errorf("%q gives %+v", text, g)
		}
	})
}
