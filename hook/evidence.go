//go:build linux

package hook

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// judged is the evidence of a hold. One whose window was never measured is judged
// by what its record says; lost is how it ended before its time, if it did.
func judged(r *lock.Record, lost string) lock.Evidence {
	var e lock.Evidence
	if r.Evidence != nil {
		e = *r.Evidence
	} else {
		f := lock.FactsOf(r)
		f.TakenOver = lost != ""
		e.Verdict, e.Reasons = lock.Judge(e.Measures, e.Bounds, f)
	}
	if lost == "" {
		return e
	}
	// How it was lost says more than that it was.
	reasons := []lock.Finding{{Reason: lock.TakenOver, Text: lost + "."}}
	for _, f := range e.Reasons {
		if f.Reason != lock.TakenOver {
			reasons = append(reasons, f)
		}
	}
	e.Verdict, e.Reasons = lock.Suspect, reasons
	return e
}

// headline is the verdict, and for each reason what to do about it.
func headline(e lock.Evidence) string {
	if e.Verdict == lock.Clean {
		return "**clean**: the host was ours throughout, and everything that was bounded stayed within its bound.\n\n"
	}
	what := "nobody can say whether the numbers are any good."
	if e.Verdict == lock.Suspect {
		what = "do not publish these numbers."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**: %s\n\n", e.Verdict, what)
	for _, f := range e.Reasons {
		fmt.Fprintf(&b, "- %s %s\n", plain(f.Text), advice(f.Reason))
	}
	b.WriteByte('\n')
	return b.String()
}

// advice is what to do about a reason.
func advice(r lock.Reason) string {
	switch r {
	case lock.ForeignCores:
		return "Find out what else ran on the host, put it under the lock, and run this again."
	case lock.StolenCores:
		return "That load is outside of this machine, and only who runs its hypervisor can move it. Run this again."
	case lock.LowEfficiency:
		return "If others used the cores, run this again when they are gone. If nobody did, the command waited for a disk, a lock or itself: then expect fewer cores of it."
	case lock.TookOver:
		return "Make sure that the last holder has ended, and run this again."
	case lock.TakenOver:
		return "Run this again."
	case lock.SurvivorsBusy:
		return "Stop them on the host, and run this again."
	case lock.GateProceeded:
		return "Find out what loads the host, and run this again. With on-gate-timeout fail it would not have started."
	case lock.CPUsChanged:
		return "Keep the host's CPUs as they are, and run this again."
	case lock.NoBound:
		return "In a workflow max-foreign-cores is an input of the action, in /etc/hostlock.conf a word of the job's line."
	case lock.TooShort:
		return "Measure longer."
	case lock.Unmeasurable:
		return "Run this again."
	case lock.ChildrenLost:
		return "Have the program wait for its children."
	case lock.OwnUnknown:
		return "It is measured of a command that runs under hostlock run, or by the job hooks of a GitHub runner."
	case lock.HostUnknown, lock.HostImplausible:
		return "Run hostlock where /proc is the kernel's own, not in a system container."
	case lock.TooClose:
		return "Measure longer, or leave more room in the bound."
	case lock.SurvivorsUnknown:
		return "Other users' processes can be seen by root only."
	case lock.TakeoverUnknown:
		return ""
	case lock.NotWholeHost:
		return "Name one lock directory for all in /etc/hostlock.conf, and mount it into containers."
	case lock.SharedHold:
		return "Take the host exclusively for what is measured."
	case lock.ReasonUnknown:
	}
	return ""
}

// barWidth is in characters. The names and numbers stand before the bars, where a
// narrow page shows them.
const barWidth = 30

// picture shows where the time went and who used the cores, as text: that is the
// same on every page that shows Markdown, in a light and in a dark theme. Nothing that
// anybody typed is in it.
func picture(r *lock.Record, m lock.Measures) string {
	var b strings.Builder
	if r.HeldAt != nil && r.Window != nil && m.WindowSeconds != nil {
		wait := max(0, r.HeldAt.Boot-r.RequestedAt.Boot).Seconds()
		settle := max(0, r.Window.At.Boot-r.HeldAt.Boot).Seconds()
		total := wait + settle + *m.WindowSeconds
		from := 0.0
		for _, row := range []struct {
			name    string
			seconds float64
		}{{"waited", wait}, {"gate", settle}, {"measured", *m.WindowSeconds}} {
			fmt.Fprintf(&b, "%-9s%11s  %s\n", row.name, span(time.Duration(row.seconds*float64(time.Second))), strings.TrimRight(bar(from, row.seconds, total, ' '), " "))
			from += row.seconds
		}
	}
	if m.OwnCores != nil && m.ForeignCores != nil && m.OnlineCores != nil {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		n := float64(*m.OnlineCores)
		for _, row := range []struct {
			name  string
			cores *float64
		}{{"own", m.OwnCores}, {"others", m.ForeignCores}, {"stolen", m.StealCores}, {"idle", m.IdleCores}} {
			if row.cores != nil && (row.name != "stolen" || *row.cores > 0) {
				fmt.Fprintf(&b, "%-9s%5.2f cores  %s\n", row.name, *row.cores, bar(0, *row.cores, n, '·'))
			}
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "```text\n" + b.String() + "```\n\n"
}

// bar is a part of a whole. What is not nothing shows.
func bar(from, part, whole float64, rest rune) string {
	if !(whole > 0) {
		whole = 1
	}
	if !(part > 0) { // a peer may have written it
		part = 0
	}
	cell := func(v float64) int { return int(math.Round(max(0, min(v/whole, 1)) * barWidth)) }
	begin, end := cell(from), cell(from+part)
	if part > 0 && begin == end {
		if end < barWidth {
			end++
		} else {
			begin--
		}
	}
	return strings.Repeat(string(rest), begin) + strings.Repeat("▇", end-begin) + strings.Repeat(string(rest), barWidth-end)
}

// measured are the measures in rows of a table.
func measured(e lock.Evidence) (rows table) {
	m := e.Measures
	row := func(name string, v *float64, format string) {
		if v != nil {
			rows = append(rows, [2]string{name, fmt.Sprintf(format, *v)})
		}
	}
	row("own CPU", m.OwnCPUSeconds, "%.2f s")
	row("cores of others", m.ForeignCores, "%.2f"+bound(e.Bounds.MaxForeignCores, "at most"))
	row("efficiency", m.Efficiency, "%.2f"+bound(e.Bounds.MinEfficiency, "at least")+fmt.Sprintf(" of %s cores", short(e.Bounds.ExpectCores)))
	row("waiting for a CPU", m.PressureShare, "somebody, in %.2f of the time")
	if m.ThrottleEvents != nil && *m.ThrottleEvents > 0 {
		rows = append(rows, [2]string{"throttled for heat", fmt.Sprintf("%d times", *m.ThrottleEvents)})
	}
	return rows
}

func bound(v float64, how string) string {
	if v <= 0 {
		return ""
	}
	return " (" + how + " " + short(v) + ")"
}

func short(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// believe fills the outputs that say whether to believe the step's command.
func believe(out map[string]string, s *Step) {
	if s.Past == nil || s.Past.Evidence == nil {
		out["verdict"] = lock.VerdictUnknown.String()
		return
	}
	e := s.Past.Evidence
	m := e.Measures
	for name, v := range map[string]*float64{"foreign-cores": m.ForeignCores, "own-cores": m.OwnCores, "efficiency": m.Efficiency, "pressure": m.PressureShare} {
		if v != nil {
			out[name] = strconv.FormatFloat(*v, 'f', 3, 64)
		}
	}
	out["verdict"] = e.Verdict.String()
	if e.Verdict == lock.Clean {
		out["reasons"] = "none"
	}
	known := e.Bounds.MaxForeignCores > 0 && m.ForeignCores != nil && m.StealCores != nil
	out["contended"] = map[bool]string{true: "no"}[known]
	for i, f := range e.Reasons {
		if i > 0 {
			out["reasons"] += " "
		}
		out["reasons"] += f.Reason.String()
		switch f.Reason {
		case lock.ForeignCores, lock.StolenCores:
			out["contended"] = "yes"
		case lock.TooClose:
			out["contended"] = ""
		}
	}
}

// provenance is the documented result of the hold as one line of JSON that means
// nothing to a shell, a log or Markdown. Of a hold that goes on it says what is known
// until now; where nothing is held it is an empty object.
func (c *Call) provenance(s *Step) string {
	p := lock.Past{UID: -1}
	switch {
	case s.Past != nil:
		p = *s.Past
	case s.Hold != nil:
		p.Record, p.UID = *s.Hold, c.Caller.UID
	case s.Joined != nil && s.Joined.Record != nil:
		p.Record, p.UID = *s.Joined.Record, s.Joined.UID
	default:
		return "{}"
	}
	return jsonOf(lock.NewResult(p, proc.ReadMachine()))
}
