//go:build linux

package hook

import (
	"strings"
	"testing"
	"time"

	"github.com/org/hostlock-action/lock"
)

func policy(t *testing.T, text string) (*Policy, error) {
	t.Helper()
	c, err := lock.ParseConfig("/etc/hostlock.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return ParsePolicy(c)
}

func environment(pairs ...string) func(string) string {
	env := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return env[name] }
}

const hostPolicy = `
# first match decides
lock_dir = /run/hostlock
job repository=acme/db workflow=acme/db/.github/workflows/*.yml@refs/heads/main mode=exclusive wait=20m gate-cpu=0.5 gate-timeout=90 on-gate-timeout=proceed strict-reap=true
job repository=acme/docs mode=none
job runner=build-? event=pull_request mode=shared wait=300   # builds
job ref=refs/tags/** gate=3
default mode=shared wait=1h30m
`

func TestPolicyDecidesByFirstMatch(t *testing.T) {
	p, err := policy(t, hostPolicy)
	if err != nil {
		t.Fatal(err)
	}
	const main = "acme/db/.github/workflows/bench.yml@refs/heads/main"
	for _, tt := range []struct {
		name string
		env  []string
		want Grant
	}{
		{"repository and workflow", []string{"GITHUB_REPOSITORY", "acme/db", "GITHUB_WORKFLOW_REF", main},
			Grant{Mode: lock.Exclusive, Wait: 20 * time.Minute, Gate: lock.Gate{CPU: 0.5, Timeout: 90 * time.Second, Proceed: true}, StrictReap: true, From: "line 4 of /etc/hostlock.conf"}},
		// The author of a workflow names branches.
		{"branch with another's name in its own", []string{"GITHUB_REPOSITORY", "acme/db", "GITHUB_WORKFLOW_REF", "acme/db/.github/workflows/evil.yml@refs/heads/x.yml@refs/heads/main"},
			Grant{Mode: lock.Shared, Wait: 90 * time.Minute, From: "line 8 of /etc/hostlock.conf"}},
		{"none", []string{"GITHUB_REPOSITORY", "acme/docs"}, Grant{None: true, Wait: time.Hour, From: "line 5 of /etc/hostlock.conf"}},
		{"one character", []string{"RUNNER_NAME", "build-7", "GITHUB_EVENT_NAME", "pull_request"}, Grant{Mode: lock.Shared, Wait: 5 * time.Minute, From: "line 6 of /etc/hostlock.conf"}},
		{"not two", []string{"RUNNER_NAME", "build-77", "GITHUB_EVENT_NAME", "pull_request"}, Grant{Mode: lock.Shared, Wait: 90 * time.Minute, From: "line 8 of /etc/hostlock.conf"}},
		{"all conditions", []string{"RUNNER_NAME", "build-7", "GITHUB_EVENT_NAME", "push"}, Grant{Mode: lock.Shared, Wait: 90 * time.Minute, From: "line 8 of /etc/hostlock.conf"}},
		{"across slashes", []string{"GITHUB_REF", "refs/tags/v1/rc"}, Grant{Wait: time.Hour, Gate: lock.Gate{Runnable: 3, Timeout: 15 * time.Minute}, From: "line 7 of /etc/hostlock.conf"}},
		// The runner's own environment is for hosts without a policy.
		{"variables", []string{"HOSTLOCK_HOOK_MODE", "none"}, Grant{Mode: lock.Shared, Wait: 90 * time.Minute, From: "line 8 of /etc/hostlock.conf"}},
	} {
		if got := p.Decide(environment(tt.env...)); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if p, err := policy(t, "job repository=a/b mode=none"); err != nil || p.Decide(environment()).None || p.Decide(environment()).Mode != lock.Exclusive {
		t.Errorf("a job that no line matches: %v", err)
	}
	if p, err := policy(t, "lock_dir = /x"); p != nil || err != nil {
		t.Errorf("a configuration without a policy: %v, %v", p, err)
	}
}

func TestPolicyNamesTheWrongLine(t *testing.T) {
	for line, want := range map[string]string{
		"job mode=shared":                               "match on",
		"job repository=a/b mode=both":                  "mode=both",
		"job repository=a/b wait=0":                     "wait=0",
		"job repository=a/b wait=soon":                  "wait=soon",
		"job repository=a/b wait=-5":                    "wait=-5",
		"job repository=a/b gate=0":                     "never be met",
		"job repository=a/b gate=1 gate-cpu=1":          "exclude",
		"job repository=a/b gate-timeout=5":             "does nothing",
		"job repository=a/b gate-cpu=NaN":               "gate-cpu=NaN",
		"job repository=a/b gate=2 on-gate-timeout=yes": "on-gate-timeout=yes",
		"job repository=a/b strict-reap=1":              "strict-reap=1",
		"job repository=a/b mode=none wait=5":           "beside it",
		"job repository=a/b repository=c/d":             "twice",
		"job repository=":                               "no value",
		"job repository":                                "KEY=VALUE",
		"job repositry=a/b":                             "repositry= is not known",
		"job repository=a/[bc]":                         "a glob knows",
		"default repository=a/b":                        "default line",
		"default mode=shared\ndefault mode=none":        "two default lines",
	} {
		_, err := policy(t, "# comment\n"+line)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "/etc/hostlock.conf:"+map[bool]string{true: "3", false: "2"}[strings.Contains(line, "\n")]+": ") {
			t.Errorf("%q: %v, want %q and the line", line, err, want)
		}
	}
}

func TestGlobs(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "", false}, {"*", "", true}, {"**", "", true}, {"*", "abc", true},
		{"*", "a/b", false}, {"**", "a/b", true}, {"a*c", "abbc", true}, {"a*c", "ab/c", false}, {"a**c", "ab/c", true},
		{"a/*/c", "a/b/c", true}, {"a/*/c", "a/b/b/c", false}, {"?", "/", false}, {"?", "x", true}, {"a?", "a", false},
		{"*@refs/heads/main", "f.yml@refs/heads/main", true}, {"*@refs/heads/main", "f.yml@refs/heads/x@refs/heads/main", false},
		{"*a", "aaa", true}, {"*ab*", "xaabx", true}, {"***", "a/b", true}, {"a", "A", false},
	} {
		if got := match(tt.pattern, tt.text); got != tt.want {
			t.Errorf("match(%q, %q) is %v", tt.pattern, tt.text, got)
		}
	}
}

func TestGrantWithoutPolicy(t *testing.T) {
	g, err := grantFromEnv(environment())
	if err != nil || g.Mode != lock.Exclusive || g.Wait != time.Hour || g.None || g.Gate != (lock.Gate{}) {
		t.Errorf("%+v, %v", g, err)
	}
	g, err = grantFromEnv(environment("HOSTLOCK_HOOK_MODE", "shared", "HOSTLOCK_HOOK_TIMEOUT", "20m", "HOSTLOCK_HOOK_GATE", "2",
		"HOSTLOCK_HOOK_GATE_TIMEOUT", "30", "HOSTLOCK_HOOK_ON_GATE_TIMEOUT", "proceed", "HOSTLOCK_HOOK_STRICT_REAP", "true"))
	want := Grant{Mode: lock.Shared, Wait: 20 * time.Minute, Gate: lock.Gate{Runnable: 2, Timeout: 30 * time.Second, Proceed: true}, StrictReap: true, From: g.From}
	if err != nil || g != want {
		t.Errorf("%+v, %v, want %+v", g, err, want)
	}
	if _, err = grantFromEnv(environment("HOSTLOCK_HOOK_TIMEOUT", "soon")); err == nil || !strings.Contains(err.Error(), "$HOSTLOCK_HOOK_TIMEOUT") {
		t.Errorf("error %v", err)
	}
}
