//go:build linux

package lock

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/org/hostlock-action/proc"
)

func schemaFile(t *testing.T) (any, *jsonschema.Schema) {
	t.Helper()
	f, err := os.Open("../testdata/result.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("result.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("result.json")
	if err != nil {
		t.Fatal(err)
	}
	return doc, s
}

func parsed(t *testing.T, text string) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// fullPast is a hold of which everything is known.
func fullPast() Past {
	r := *fullRecord()
	r.Window.At = r.HeldAt.Add(2 * time.Second)
	return Past{Record: r, UID: 1000, End: endReleased, EndedAt: r.HeldAt.UTC.Add(time.Minute), WaitSecs: 1, HeldSecs: 60}
}

func fullMachine() proc.Machine {
	return proc.Machine{Host: "bench-1", Kernel: "6.18.0", CPUModel: "A CPU", Governor: "performance", Turbo: new(false), OnlineCores: new(8), UsableCores: new(1.5)}
}

// A document of every shape is valid.
func TestResultSchema(t *testing.T) {
	_, s := schemaFile(t)
	bare := Past{Record: Record{Seq: 1, ID: anID, Mode: Exclusive, Phase: Held}, UID: -1}
	with := func(change func(p *Past)) Past {
		p := fullPast()
		change(&p)
		return p
	}
	judged := func(change func(m *Measures, b *Bounds, f *Facts)) Past {
		return with(func(p *Past) {
			m, b, f := good()
			change(&m, &b, &f)
			v, reasons := Judge(m, b, f)
			p.Evidence = &Evidence{m, b, v, reasons}
		})
	}
	tests := map[string]struct {
		p Past
		m proc.Machine
	}{
		"everything known": {fullPast(), fullMachine()},
		"nothing known":    {bare, proc.Machine{}},
		"never judged":     {with(func(p *Past) { p.Evidence, p.Window = nil, nil }), fullMachine()},
		"held still":       {with(func(p *Past) { p.EndedAt, p.End = time.Time{}, "" }), fullMachine()},
		"waiting still":    {with(func(p *Past) { p.HeldAt, p.EndedAt, p.End = nil, time.Time{}, "" }), fullMachine()},
		"clean":            {judged(func(*Measures, *Bounds, *Facts) {}), fullMachine()},
		"suspect":          {judged(func(m *Measures, _ *Bounds, f *Facts) { *m.ForeignCores, f.TakenOver = 3, true }), fullMachine()},
		"unmeasurable":     {judged(func(m *Measures, _ *Bounds, _ *Facts) { *m = Measures{} }), fullMachine()},
		"no bound":         {judged(func(_ *Measures, b *Bounds, _ *Facts) { *b = Bounds{} }), fullMachine()},
		"a later hostlock's": {with(func(p *Past) {
			p.Evidence = &Evidence{Reasons: []Finding{{ReasonUnknown, "the moon was full"}}}
		}), fullMachine()},
		"a peer's nonsense": {with(func(p *Past) {
			p.EndedAt = time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC)
			p.HeldSecs, p.Evidence.Bounds.MinEfficiency = -5, -1
		}), fullMachine()},
	}
	for name, tt := range tests {
		b, err := json.Marshal(NewResult(tt.p, tt.m))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := s.Validate(parsed(t, string(b))); err != nil {
			t.Errorf("%s: %v\n%s", name, err, b)
		}
	}
}

// The schema describes every key that is written, requires it, and says what it
// is.
func TestResultSchemaIsWhole(t *testing.T) {
	schema, _ := schemaFile(t)
	b, err := json.Marshal(NewResult(fullPast(), fullMachine()))
	if err != nil {
		t.Fatal(err)
	}
	var walk func(path string, doc, schema any)
	walk = func(path string, doc, schema any) {
		s := schema.(map[string]any)
		if list, ok := doc.([]any); ok {
			for _, d := range list {
				walk(path+"[]", d, s["items"])
			}
			return
		}
		d, ok := doc.(map[string]any)
		props, ok2 := s["properties"].(map[string]any)
		if !ok || !ok2 {
			if doc == nil && s["const"] == nil {
				t.Errorf("%s is null in a document of which everything is known", path)
			}
			return
		}
		var required []string
		for _, r := range s["required"].([]any) {
			required = append(required, r.(string))
		}
		slices.Sort(required)
		keys := slices.Sorted(maps.Keys(d))
		if described := slices.Sorted(maps.Keys(props)); !slices.Equal(keys, described) || !slices.Equal(keys, required) {
			t.Errorf("%s: written %v\ndescribed %v\nrequired %v", path, keys, described, required)
		}
		for _, k := range keys {
			if props[k] != nil {
				walk(path+"."+k, d[k], props[k])
			}
		}
	}
	doc := parsed(t, string(b))
	// One of the two is null in every document.
	measures := doc.(map[string]any)["measures"].(map[string]any)
	measures["efficiency_cores"] = measures["efficiency"]
	walk("", doc, schema)

	words := schema.(map[string]any)["properties"].(map[string]any)["reasons"].(map[string]any)["items"].(map[string]any)["properties"].(map[string]any)["reason"].(map[string]any)["description"].(string)
	for _, r := range reasonText {
		if !strings.Contains(words, " "+r+",") && !strings.Contains(words, " "+r+";") {
			t.Errorf("reason %s is not in the schema", r)
		}
	}
}

// What the schema must refuse, so that it is no rubber stamp.
func TestResultSchemaRefuses(t *testing.T) {
	_, s := schemaFile(t)
	b, err := json.Marshal(NewResult(fullPast(), fullMachine()))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, group, key, value string }{
		{"another document", "", "schema", `"x"`},
		{"another version", "", "version", `2`},
		{"no verdict", "", "verdict", ``},
		{"a verdict of no kind", "", "verdict", `"fine"`},
		{"unknown as null", "", "verdict", `null`},
		{"a reason without a text", "", "reasons", `[{"reason":"steal"}]`},
		{"reasons absent", "", "reasons", `null`},
		{"negative cores", "measures", "foreign_cores", `-0.1`},
		{"unknown as a word", "measures", "foreign_cores", `"unknown"`},
		{"a measure left out", "measures", "foreign_cores", ``},
		{"pressure above all", "measures", "pressure_share", `1.2`},
		{"a bound of none", "bounds", "max_foreign_cores", `0`},
		{"no time", "times", "held_at", `"yesterday"`},
		{"no id", "hold", "id", `null`},
		{"an id of no kind", "hold", "id", `"x"`},
		{"no mode", "hold", "mode", `"both"`},
	} {
		var doc map[string]any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		in := doc
		if tt.group != "" {
			in = doc[tt.group].(map[string]any)
		}
		if tt.value == "" {
			delete(in, tt.key)
		} else {
			in[tt.key] = parsed(t, tt.value)
		}
		changed, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if s.Validate(parsed(t, string(changed))) == nil {
			t.Errorf("%s is accepted", tt.name)
		}
	}
}

func TestResult(t *testing.T) {
	got := NewResult(fullPast(), fullMachine())
	if *got.Times.WaitSeconds != 3600 || *got.Times.SettleSeconds != 2 || *got.Times.HeldSeconds != 60 || got.Verdict != Suspect || got.Reasons[0].Reason != LowEfficiency {
		t.Errorf("%+v", got)
	}
	// Root's uid is a uid, and a moment is one in UTC that RFC 3339 can say.
	root := fullPast()
	root.UID = 0
	if uid := NewResult(root, proc.Machine{}).Hold.UID; uid == nil || *uid != 0 {
		t.Errorf("root's hold is of uid %v", uid)
	}
	west, east := time.FixedZone("", -5*3600), time.FixedZone("", 5*3600)
	for _, tt := range []struct {
		in   time.Time
		want string
	}{
		{time.Date(2026, 3, 4, 1, 0, 0, 0, east), "2026-03-03T20:00:00Z"},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), "9999-12-31T23:59:59Z"},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, west), "null"},
		{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), "null"},
		{time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), "0000-01-01T00:00:00Z"},
		{time.Date(0, 1, 1, 0, 0, 0, 0, east), "null"},
		{time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC), "null"},
		{time.Time{}, "null"},
	} {
		if b, err := json.Marshal(moment(tt.in)); err != nil || strings.Trim(string(b), `"`) != tt.want {
			t.Errorf("%v: %s, %v, want %s", tt.in, b, err, tt.want)
		}
	}
	// What nobody recorded is null.
	b, err := json.Marshal(NewResult(Past{Record: Record{Seq: 1, ID: anID, Mode: Shared}, UID: -1}, proc.Machine{}))
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]map[string]any
	_ = json.Unmarshal(b, &doc)
	for _, group := range []string{"measures", "bounds", "times", "command", "host"} {
		for k, v := range doc[group] {
			if v != nil {
				t.Errorf("%s.%s is %v where nothing is known", group, k, v)
			}
		}
	}
	if r := reflect.ValueOf(doc["hold"]["takeover"]); r.IsValid() {
		t.Errorf("takeover %v was never recorded", r)
	}
}
