package hook

import (
	"strings"

	"github.com/org/hostlock-action/lock"
)

// A Job is the CI job that this process is part of, as its runner describes it
// in the environment.
type Job struct {
	// Owner and Reason name the job where nobody typed an owner or a reason.
	// They count as declared: whoever wrote the workflow chose them.
	Owner, Reason string
	// Fields go into the record of the job's hold. The keys are an interface.
	Fields map[string]string
}

// fields are the keys of a record's job, and where the runner says each.
var fields = []struct{ key, variable string }{
	{"repository", "GITHUB_REPOSITORY"},
	{"workflow", "GITHUB_WORKFLOW"},
	{"job", "GITHUB_JOB"},
	{"run_id", "GITHUB_RUN_ID"},
	{"run_attempt", "GITHUB_RUN_ATTEMPT"},
	{"actor", "GITHUB_ACTOR"},
	{"ref", "GITHUB_REF"},
	{"sha", "GITHUB_SHA"},
	{"runner_name", "RUNNER_NAME"},
	{"runner_tracking_id", "RUNNER_TRACKING_ID"},
}

// CurrentJob reads the job from the environment; false outside a CI job.
func CurrentJob(getenv func(string) string) (Job, bool) {
	if getenv("GITHUB_ACTIONS") != "true" || getenv("GITHUB_JOB") == "" {
		return Job{}, false
	}
	j := Job{Fields: make(map[string]string)}
	for _, f := range fields {
		if v := getenv(f.variable); v != "" {
			j.Fields[f.key] = lock.Flatten(v, lock.MaxText)
		}
	}
	if url := runURL(getenv); url != "" {
		j.Fields["run_url"] = url
	}
	owner := getenv("GITHUB_JOB")
	if repository := getenv("GITHUB_REPOSITORY"); repository != "" {
		owner = repository + ":" + owner
	}
	if run := getenv("GITHUB_RUN_ID"); run != "" {
		owner += "#" + run
		if attempt := getenv("GITHUB_RUN_ATTEMPT"); attempt != "" {
			owner += "." + attempt
		}
	}
	j.Owner = lock.SafeOwner(owner)
	j.Reason = getenv("GITHUB_JOB")
	if workflow := getenv("GITHUB_WORKFLOW"); workflow != "" {
		j.Reason = workflow + " / " + j.Reason
	}
	j.Reason = lock.Flatten(j.Reason, lock.MaxText)
	return j, true
}

// runURL is where a person finds the run; empty where there is no such page.
func runURL(getenv func(string) string) string {
	server, repository, run := getenv("GITHUB_SERVER_URL"), getenv("GITHUB_REPOSITORY"), getenv("GITHUB_RUN_ID")
	if getenv("ACT") == "true" {
		return "" // act runs the workflow on this machine and names a server all the same
	}
	attempt := ""
	if getenv("GITEA_ACTIONS") == "true" || getenv("FORGEJO_ACTIONS") == "true" {
		run = getenv("GITHUB_RUN_NUMBER") // their pages go by it, not by the id
	} else if n := getenv("GITHUB_RUN_ATTEMPT"); n != "" {
		attempt = "/attempts/" + n
	}
	if !strings.HasPrefix(server, "https://") && !strings.HasPrefix(server, "http://") || repository == "" || run == "" {
		return ""
	}
	return lock.Flatten(strings.TrimSuffix(server, "/")+"/"+repository+"/actions/runs/"+run+attempt, lock.MaxText)
}
