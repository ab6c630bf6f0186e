//go:build linux

package hook

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/org/hostlock-action/lock"
)

// A Grant is what a job gets from the host before its first step.
type Grant struct {
	None       bool // nothing is taken
	Mode       lock.Mode
	Wait       time.Duration
	Gate       lock.Gate
	StrictReap bool
	// MaxForeignCores is what others may use, on average over the whole job,
	// before what it measured is suspect; 0 is no bound.
	MaxForeignCores float64
	// From is where that is said, for people: "line 3 of /etc/hostlock.conf".
	From string
}

const (
	defaultWait        = time.Hour
	defaultGateTimeout = 15 * time.Minute
)

// A Policy is the host's word on which job gets what: the job and default lines
// of its configuration. Nothing that a job brings along is asked.
//
//	job KEY=GLOB… KEY=VALUE…     the first line whose globs all match decides
//	default KEY=VALUE…           decides for jobs that no line matches
//
// Globs, on what the runner says of the job: repository (OWNER/NAME), workflow
// (OWNER/NAME/.github/workflows/FILE@REF), job, event, ref, runner. In a glob *
// is any text without a slash, ** any text, ? one character. That * stops at a
// slash matters: the author of a workflow chooses the names of branches, and
// "*@refs/heads/main" must not match a branch called x@refs/heads/main.
//
// Values: mode=exclusive|shared|none, wait, gate, gate-cpu, gate-timeout,
// on-gate-timeout=fail|proceed, strict-reap=true|false, max-foreign-cores.
// Durations are seconds, or like 20m.
//
// The id of a job is chosen by whoever writes its workflow: a line that is to
// hold for one repository only must name that.
type Policy struct {
	rules    []rule
	fallback *Grant
}

type rule struct {
	globs []glob
	grant Grant
}

type glob struct{ key, pattern string }

// globKeys are what a line can match on, and where the runner says it.
var globKeys = map[string]string{
	"repository": "GITHUB_REPOSITORY",
	"workflow":   "GITHUB_WORKFLOW_REF",
	"job":        "GITHUB_JOB",
	"event":      "GITHUB_EVENT_NAME",
	"ref":        "GITHUB_REF",
	"runner":     "RUNNER_NAME",
}

// A PolicyError is a policy that cannot be read. No job gets anything by it.
type PolicyError struct {
	Where   string // file and line, or the variable
	Problem string
}

func (e *PolicyError) Error() string { return e.Where + ": " + e.Problem }

// ParsePolicy reads the policy of a configuration; nil without an error is a
// configuration that has none.
func ParsePolicy(c *lock.Config) (*Policy, error) {
	if c == nil || len(c.Policy) == 0 {
		return nil, nil
	}
	p := new(Policy)
	for _, line := range c.Policy {
		r, isDefault, err := parseLine(line.Text)
		if err != nil {
			return nil, &PolicyError{fmt.Sprintf("%s:%d", c.Path, line.Number), err.Error()}
		}
		r.grant.From = fmt.Sprintf("line %d of %s", line.Number, c.Path)
		switch {
		case !isDefault:
			p.rules = append(p.rules, r)
		case p.fallback != nil:
			return nil, &PolicyError{fmt.Sprintf("%s:%d", c.Path, line.Number), "there are two default lines"}
		default:
			p.fallback = &r.grant
		}
	}
	return p, nil
}

// parseLine reads one line. A comment may end it.
func parseLine(text string) (r rule, isDefault bool, err error) {
	words := strings.Fields(text)
	isDefault = words[0] == "default"
	values := make(map[string]string)
	for _, w := range words[1:] {
		if w[0] == '#' {
			break
		}
		key, v, ok := strings.Cut(w, "=")
		_, matches := globKeys[key]
		switch {
		case !ok:
			return r, false, fmt.Errorf("%q is not KEY=VALUE", lock.Flatten(w, 60))
		case v == "":
			return r, false, fmt.Errorf("%s= has no value", lock.Flatten(key, 60))
		case values[key] != "":
			return r, false, fmt.Errorf("%s= is given twice", lock.Flatten(key, 60))
		case matches && isDefault:
			return r, false, fmt.Errorf("%s= in a default line, which is for every job that no line matches", key)
		case matches && strings.ContainsAny(v, `[]{}\`):
			return r, false, fmt.Errorf("%s=%s: a glob knows *, ** and ? and nothing else", key, lock.Flatten(v, 60))
		case matches:
			r.globs = append(r.globs, glob{key, v})
		}
		values[key] = v
	}
	for _, g := range r.globs {
		delete(values, g.key)
	}
	r.grant, err = parseGrant(values, func(key string) string { return key + "=" })
	if err == nil && !isDefault && len(r.globs) == 0 {
		err = errors.New("a job line needs something to match on (repository=, workflow=, job=, event=, ref=, runner=)")
	}
	return r, isDefault, err
}

// parseGrant reads the values of a grant. name is what a message calls a key.
func parseGrant(values map[string]string, name func(key string) string) (g Grant, err error) {
	g = Grant{Mode: lock.Exclusive, Wait: defaultWait, Gate: lock.Gate{Timeout: defaultGateTimeout}}
	for key, v := range values {
		bad := ""
		switch key {
		case "mode":
			switch v {
			case "exclusive":
			case "shared":
				g.Mode = lock.Shared
			case "none":
				g.None = true
			default:
				bad = "is exclusive, shared or none"
			}
		case "wait":
			if g.Wait, bad = duration(v); bad == "" && g.Wait == 0 {
				bad = "must be above 0"
			}
		case "gate":
			n, err := strconv.Atoi(v)
			switch {
			case err != nil || n < 0:
				bad = "is a number of runnable tasks"
			case n == 0:
				bad = "can never be met: whoever reads the count is runnable itself; use 1 or more"
			}
			g.Gate.Runnable = n
		case "gate-cpu":
			cpu, err := strconv.ParseFloat(v, 64)
			if err != nil || !(cpu > 0) || math.IsInf(cpu, 0) {
				bad = "is a number of cores above 0"
			}
			g.Gate.CPU = cpu
		case "max-foreign-cores":
			n, err := strconv.ParseFloat(v, 64)
			if err != nil || !(n > 0) || math.IsInf(n, 0) {
				bad = "is a number of cores above 0"
			}
			g.MaxForeignCores = n
		case "gate-timeout":
			if g.Gate.Timeout, bad = duration(v); bad == "" && g.Gate.Timeout == 0 {
				bad = "must be above 0"
			}
		case "on-gate-timeout":
			if v != "fail" && v != "proceed" {
				bad = "is fail or proceed"
			}
			g.Gate.Proceed = v == "proceed"
		case "strict-reap":
			if v != "true" && v != "false" {
				bad = "is true or false"
			}
			g.StrictReap = v == "true"
		default:
			return g, fmt.Errorf("%s is not known", lock.Flatten(name(key), 60))
		}
		if bad != "" {
			return g, fmt.Errorf("%s%s %s", name(key), lock.Flatten(v, 60), bad)
		}
	}
	gated := g.Gate.Runnable > 0 || g.Gate.CPU > 0
	switch {
	case g.Gate.Runnable > 0 && g.Gate.CPU > 0:
		return g, fmt.Errorf("%s and %s exclude each other", name("gate"), name("gate-cpu"))
	case !gated && (values["gate-timeout"] != "" || values["on-gate-timeout"] != ""):
		return g, fmt.Errorf("a gate time-out does nothing without %s or %s", name("gate"), name("gate-cpu"))
	case g.None && len(values) > 1:
		return g, fmt.Errorf("%snone takes nothing, so nothing else can be asked beside it", name("mode"))
	}
	if !gated {
		g.Gate = lock.Gate{}
	}
	return g, nil
}

// duration reads seconds, or a Go duration.
func duration(s string) (_ time.Duration, bad string) {
	d, err := time.ParseDuration(s)
	if n, nerr := strconv.ParseFloat(s, 64); nerr == nil && n >= 0 && n <= 1e9 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < 0 || d > 1e9*time.Second {
		return 0, "is neither a number of seconds nor a duration like 20m"
	}
	return d, ""
}

// Decide is what a job gets. The answer depends on what the runner says of the
// job, and on nothing that the job can set.
func (p *Policy) Decide(getenv func(string) string) Grant {
	for _, r := range p.rules {
		if r.matches(getenv) {
			return r.grant
		}
	}
	if p.fallback != nil {
		return *p.fallback
	}
	return Grant{Mode: lock.Exclusive, Wait: defaultWait, From: "the built-in default, as no line of the policy matches"}
}

func (r rule) matches(getenv func(string) string) bool {
	for _, g := range r.globs {
		if !match(g.pattern, getenv(globKeys[g.key])) {
			return false
		}
	}
	return true
}

// match reports whether a glob matches the whole of s.
func match(pattern, s string) bool {
	for pattern != "" {
		switch rest, deep := strings.CutPrefix(pattern, "**"); {
		case pattern[0] == '*':
			if !deep {
				rest = pattern[1:]
			}
			for i := 0; ; i++ {
				if match(rest, s[i:]) {
					return true
				}
				if i == len(s) || !deep && s[i] == '/' {
					return false
				}
			}
		case s == "", pattern[0] != '?' && pattern[0] != s[0], pattern[0] == '?' && s[0] == '/':
			return false
		}
		pattern, s = pattern[1:], s[1:]
	}
	return s == ""
}

// hookVariables are the runner's own settings, for hosts without a policy. The
// prefix is another than that of the defaults of `run`, because a runner's .env
// reaches every step.
var hookVariables = map[string]string{
	"mode": "HOSTLOCK_HOOK_MODE", "wait": "HOSTLOCK_HOOK_TIMEOUT", "gate": "HOSTLOCK_HOOK_GATE", "gate-cpu": "HOSTLOCK_HOOK_GATE_CPU",
	"gate-timeout": "HOSTLOCK_HOOK_GATE_TIMEOUT", "on-gate-timeout": "HOSTLOCK_HOOK_ON_GATE_TIMEOUT", "strict-reap": "HOSTLOCK_HOOK_STRICT_REAP",
	"max-foreign-cores": "HOSTLOCK_HOOK_MAX_FOREIGN_CORES",
}

// grantFromEnv is what a job gets on a host without a policy.
func grantFromEnv(getenv func(string) string) (Grant, error) {
	values := make(map[string]string)
	for key, variable := range hookVariables {
		if v := getenv(variable); v != "" {
			values[key] = v
		}
	}
	g, err := parseGrant(values, func(key string) string { return "$" + hookVariables[key] + " " })
	if err != nil {
		return g, &PolicyError{"the runner's environment", err.Error()}
	}
	g.From = "the runner's environment (HOSTLOCK_HOOK_…)"
	if len(values) == 0 {
		g.From = "the default, as the host has no policy"
	}
	return g, nil
}
