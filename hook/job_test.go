package hook

import (
	"maps"
	"testing"

	"github.com/org/hostlock-action/lock"
)

func TestCurrentJob(t *testing.T) {
	github := map[string]string{
		"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "acme/db", "GITHUB_WORKFLOW": "nightly", "GITHUB_JOB": "bench",
		"GITHUB_RUN_ID": "77", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_ACTOR": "ann",
		"RUNNER_NAME": "box-3", "RUNNER_TRACKING_ID": "github_1",
	}
	with := func(changes map[string]string) map[string]string {
		env := maps.Clone(github)
		maps.Copy(env, changes)
		return env
	}
	for _, tc := range []struct {
		name               string
		env                map[string]string
		ok                 bool
		owner, reason, url string
	}{
		{"a job of GitHub", github, true, "acme/db:bench#77.2", "nightly / bench", "https://github.com/acme/db/actions/runs/77/attempts/2"},
		{"no job", map[string]string{"GITHUB_JOB": "bench"}, false, "", "", ""},
		{"no job id", map[string]string{"GITHUB_ACTIONS": "true"}, false, "", "", ""},
		{"under act there is no page", with(map[string]string{"ACT": "true"}), true, "acme/db:bench#77.2", "nightly / bench", ""},
		{"Gitea's pages go by number", with(map[string]string{"GITEA_ACTIONS": "true", "GITHUB_SERVER_URL": "https://git.example/", "GITHUB_RUN_NUMBER": "5"}),
			true, "acme/db:bench#77.2", "nightly / bench", "https://git.example/acme/db/actions/runs/5"},
		{"a job id cannot leave its field", with(map[string]string{"GITHUB_JOB": "a b=c::d\n"}), true, "acme/db:a_b_c:_d_#77.2", "nightly / a b=c::d", "https://github.com/acme/db/actions/runs/77/attempts/2"},
		{"a server that is no web page", with(map[string]string{"GITHUB_SERVER_URL": "javascript:alert(1)//"}), true, "acme/db:bench#77.2", "nightly / bench", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j, ok := CurrentJob(func(name string) string { return tc.env[name] })
			if ok != tc.ok || j.Owner != tc.owner || j.Reason != tc.reason || j.Fields["run_url"] != tc.url {
				t.Errorf("got %v, owner %q, reason %q, url %q", ok, j.Owner, j.Reason, j.Fields["run_url"])
			}
			if ok && !lock.ValidOwner(j.Owner) {
				t.Errorf("owner %q is not valid", j.Owner)
			}
		})
	}
}
