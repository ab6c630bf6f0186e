//go:build linux

package hook

import (
	"fmt"
	"strings"

	"github.com/org/hostlock-action/lock"
)

// A table is rows of a name and a value that is already Markdown.
type table [][2]string

func (t table) write(b *strings.Builder, name, value string) {
	fmt.Fprintf(b, "| %s | %s |\n|---|---|\n", name, value)
	for _, row := range t {
		if row[1] != "" {
			fmt.Fprintf(b, "| %s | %s |\n", row[0], row[1])
		}
	}
	b.WriteByte('\n')
}

// folded shows JSON to whoever asks for it.
func folded(title, json string) string {
	return "<details><summary>" + title + "</summary>\n\n```json\n" + json + "\n```\n\n</details>\n"
}

// account is the summary of a hold: first whether to believe the numbers and
// what to do if not, then a picture, then what there is to know of the lock, and last
// the whole record.
func (c *Call) account(t *lock.Ticket, command *int, waiting int, lost string) string {
	r := t.Record
	e := judged(r, lost)
	var b strings.Builder
	b.WriteString("### hostlock\n\n")
	b.WriteString(headline(e))
	b.WriteString(picture(r, e.Measures))
	rows := table{
		{"lock", fmt.Sprintf("%s, %s, as %s", r.Mode, r.Outcome, cell(r.Owner))},
	}
	if r.HeldAt != nil {
		rows = append(rows,
			[2]string{"held", fmt.Sprintf("%s, from %s", span(heldSpan(r)), clock(r.HeldAt.UTC))},
			[2]string{"waited", span(r.HeldAt.Boot - r.RequestedAt.Boot)})
	}
	rows = append(rows, [2]string{"taken over", takeoverText(r)}, [2]string{"gate", cell(orUnknown(r.Gate))})
	if command != nil {
		rows = append(rows, [2]string{"command", "exit " + fmt.Sprint(*command)})
	}
	rows = append(rows, measured(e)...)
	if waiting > 0 {
		rows = append(rows, [2]string{"still in the queue", fmt.Sprint(waiting)})
	}
	rows.write(&b, "host", cell(c.Host))
	b.WriteString(folded("record", page(r)))
	return b.String()
}

func takeoverText(r *lock.Record) string {
	switch {
	case r.Takeover == nil:
		return "unknown"
	case *r.Takeover == lock.NoTakeover:
		return "no"
	}
	s := r.Takeover.String()
	if r.Previous != nil && r.Previous.Owner != "" {
		s += " from " + cell(r.Previous.Owner)
	}
	if r.Survivors != "" && r.Survivors != "none" {
		s += ", survivors " + cell(r.Survivors)
	}
	return s
}

// refusal is the summary of a job or a step that did not get the host.
func (c *Call) refusal(headline string, err error, r reason) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### hostlock: %s\n\n%s\n\n", headline, cell(r.text))
	rows := table{{"outcome", cell(c.Outcome(err))}}
	if t := r.holder; t != nil {
		rows = append(rows, [2]string{"in the way", cell(who(t))}, [2]string{"since", since(t)})
		if t.Record != nil {
			rows = append(rows, [2]string{"for", cell(t.Record.Reason)}, [2]string{"its run", link(t.Record.Job["run_url"])})
		}
	}
	rows = append(rows, [2]string{"what to do", r.advice})
	rows.write(&b, "host", cell(c.Host))
	if r.holder != nil && r.holder.Record != nil {
		b.WriteString(folded("record of the holder", page(r.holder.Record)))
	}
	return b.String()
}

// link is a peer's URL as a link, if it is made of nothing but what URLs of
// runs are made of; else as text.
func link(url string) string {
	if !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "http://") || !strings.Contains(url, "/actions/runs/") {
		return cell(url)
	}
	for i := 0; i < len(url); i++ {
		if !alphanumeric(url[i]) && strings.IndexByte(":/._-", url[i]) < 0 {
			return cell(url)
		}
	}
	return "<" + url + ">"
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
