//go:build linux

package hook_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/org/hostlock-action/lock"
)

// document reads a result, and holds it to the schema.
func document(t *testing.T, text string) lock.Result {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile("../testdata/result.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		err = schema.Validate(doc)
	}
	var r lock.Result
	if err == nil {
		err = json.Unmarshal([]byte(text), &r)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return r
}

func reasons(r lock.Result) string {
	var words []string
	for _, f := range r.Reasons {
		if f.Reason != lock.NotWholeHost { // a test's lock is its own
			words = append(words, f.Reason.String())
		}
	}
	return strings.Join(words, " ")
}

// burning is a step's script that uses MS of CPU, in a child of a child, and
// says how much it was.
func burning(ms string) string {
	return `python3 -c 'import subprocess, sys; subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < ` + ms + `/1e3: pass\nprint(\"used\", time.process_time(), flush=True)"], check=True)'`
}

func used(t *testing.T, log string) float64 {
	t.Helper()
	_, text, _ := strings.Cut(log, "used ")
	text, _, _ = strings.Cut(text, "\n")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("log %q: %v", log, err)
	}
	return v
}

// What a job's steps use is the job's, and what others use during it is judged
// by the host's bound.
func TestJobIsJudgedByItsWholeWindow(t *testing.T) {
	h := newHost(t)
	h.policy("default mode=exclusive wait=60 max-foreign-cores=0.02")
	// A shell that asks again and again uses CPU too, and the more of it the longer
	// the stranger takes: this one sleeps until it is told.
	over := filepath.Join(t.TempDir(), "over")
	if err := syscall.Mkfifo(over, 0o600); err != nil {
		t.Fatal(err)
	}
	w := startJob(t, h.bin, job{RunnerEnv: h.hooked(), Steps: []step{
		{Name: "bench", Run: burning("800") + "\necho go; read -r told <" + over},
	}})
	w.lines.await(t, "go")
	stranger := exec.Command("python3", "-c", "import time\nwhile time.process_time() < 0.8: pass")
	if err := stranger.Run(); err != nil {
		t.Fatal(err)
	}
	ru := stranger.ProcessState.SysUsage().(*syscall.Rusage)
	burst := float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
	writeFile(t, over, "over\n", 0o600)
	r := w.result(t)
	h.await("state", "FREE")
	out, err := h.command("log", "--json", "-n", "1").Output()
	if err != nil {
		t.Fatal(err)
	}
	doc := document(t, string(out))
	own := used(t, r.step(t, "bench").log())
	m := doc.Measures
	if m.OwnCPUSeconds == nil || m.ForeignCores == nil || m.WindowSeconds == nil {
		t.Fatalf("%s", out)
	}
	// Beside the burning: interpreters, shells, the hooks, the stand-in of the worker.
	if *m.OwnCPUSeconds < 0.95*own || *m.OwnCPUSeconds > own+1 {
		t.Errorf("own %.3f s, the step says %.3f s", *m.OwnCPUSeconds, own)
	}
	if foreign := *m.ForeignCores * *m.WindowSeconds; foreign < 0.9*burst-0.05 {
		t.Errorf("foreign %.3f s, the stranger alone used %.3f s", foreign, burst)
	}
	if doc.Verdict != lock.Suspect || !strings.Contains(reasons(doc), "foreign_cores") {
		t.Errorf("verdict %v (%s)", doc.Verdict, reasons(doc))
	}
	if s := r.step(t, "Complete runner").Summary; !strings.Contains(s, "**suspect**") || !strings.Contains(s, "\nothers ") || !strings.Contains(s, "above the bound of 0.02") {
		t.Errorf("summary %q", s)
	}
	if doc.Job["repository"] == "" || doc.Times.WindowOpenedAt == nil || doc.Hold.Mode != lock.Exclusive {
		t.Errorf("%s", out)
	}
}

func TestActionTellsWhetherToBelieveItsRun(t *testing.T) {
	h := newHost(t)
	with := func(id string, pairs ...string) step {
		in := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			in[pairs[i]] = pairs[i+1]
		}
		s := actionStep(t, in)
		s.Name, s.ID, s.If = id, id, "always()"
		return s
	}
	r := runJob(t, h.bin, job{RunnerEnv: h.env(), Steps: []step{
		with("good", "run", burning("300"), "max-foreign-cores", "1000", "expect-cores", "1"),
		with("lazy", "run", "sleep 0.2", "expect-cores", "2", "min-efficiency", "0.9"),
		with("plain", "run", "sleep 0.2"),
		with("refused", "run", "true", "min-efficiency", "0.9"),
		with("nothing to judge", "max-foreign-cores", "1"),
		with("take"),
		{Name: "bench", If: "always()", Run: burning("300")},
	}})
	for id, want := range map[string]struct {
		exit                        int
		verdict, reasons, contended string
	}{
		"good":             {0, "unknown", "scope", "no"}, // it would be clean if the lock were the host's
		"lazy":             {6, "suspect", "efficiency scope", "unknown"},
		"plain":            {0, "unknown", "no_bound scope", "unknown"},
		"refused":          {1, "unknown", "unknown", "unknown"},
		"nothing to judge": {1, "unknown", "unknown", "unknown"},
		"take":             {0, "unknown", "unknown", "unknown"},
	} {
		s := r.step(t, id)
		out := s.Outputs
		if s.Exit != want.exit || out["verdict"] != want.verdict || out["reasons"] != want.reasons || out["contended"] != want.contended {
			t.Errorf("%s: exit %d, verdict %q, reasons %q, contended %q; log %q", id, s.Exit, out["verdict"], out["reasons"], out["contended"], s.log())
		}
		if want.exit == 1 {
			if out["provenance"] != "{}" {
				t.Errorf("%s: provenance %q where nothing was held", id, out["provenance"])
			}
			continue
		}
		if doc := document(t, out["provenance"]); doc.Hold.ID != out["hold-id"] || doc.Verdict.String() != want.verdict || doc.Host.Kernel == nil {
			t.Errorf("%s: hold-id %q, provenance %s", id, out["hold-id"], out["provenance"])
		}
	}
	good := r.step(t, "good")
	own, err := strconv.ParseFloat(good.Outputs["own-cores"], 64)
	if err != nil || own <= 0 || own > 1.2 || good.Outputs["efficiency"] != good.Outputs["own-cores"] {
		t.Errorf("own-cores %q, efficiency %q", good.Outputs["own-cores"], good.Outputs["efficiency"])
	}
	if doc := document(t, good.Outputs["provenance"]); doc.Measures.OwnCPUSeconds == nil || *doc.Measures.OwnCPUSeconds < 0.95*used(t, good.log()) {
		t.Errorf("own %v s, the run says %s", doc.Measures.OwnCPUSeconds, good.log())
	}
	for _, v := range []string{"efficiency"} {
		if got := r.step(t, "plain").Outputs[v]; got != "unknown" {
			t.Errorf("%s without an expectation is %q", v, got)
		}
	}
	if s := r.step(t, "lazy").Summary; !strings.HasPrefix(s, "### hostlock\n\n**suspect**") {
		t.Errorf("summary %q", s)
	}
	// What is held until the end of the job is measured until then.
	h.await("state", "FREE")
	time.Sleep(10 * time.Millisecond)
	out, err := h.command("log", "--json", "-n", "1").Output()
	if err != nil {
		t.Fatal(err)
	}
	doc := document(t, string(out))
	if m := doc.Measures; doc.Hold.ID != r.step(t, "take").Outputs["hold-id"] || m.OwnCPUSeconds == nil || *m.OwnCPUSeconds < 0.95*used(t, r.step(t, "bench").log()) {
		t.Errorf("%s", out)
	}
}
