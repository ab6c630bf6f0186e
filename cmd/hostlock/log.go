//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/org/hostlock-action/lock"
	"github.com/org/hostlock-action/proc"
)

// defaultLog is how many finished holds log shows.
const defaultLog = 20

// history shows the holds that have ended, the newest last.
func history(args []string) error {
	fs := flagSet("log")
	n := defaultLog
	fs.VarP(whole{&n}, "number", "n", "")
	form := fs.Bool("json", false, "")
	lockDir := addLockDir(fs)
	if err := parseAll("log", fs, args); err != nil {
		return err
	}
	if n < 1 {
		return usageError("log", "-n must be at least 1")
	}
	d, err := openToLook(*lockDir)
	if err != nil {
		return err
	}
	defer d.Close()
	all, err := d.History()
	if err != nil {
		return err
	}
	all = all[max(0, len(all)-n):]
	if *form {
		var b strings.Builder
		for i := range all {
			line, err := asJSON(lock.NewResult(all[i], proc.Machine{Host: machine()}))
			if err != nil {
				return err
			}
			b.WriteString(line)
		}
		return put(b.String())
	}
	if len(all) == 0 {
		return put(plain("no hold has ended in "+d.Path+" yet") + "\n")
	}
	return put(table(all))
}

// table is for a person who scans it: when, how long, whether to believe it, how
// it ended, whose.
func table(all []lock.Past) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENDED\tHELD\tWAITED\tVERDICT\tMODE\tEND\tTAKEOVER\tUID\tOWNER\tREASON")
	for i := range all {
		p := &all[i]
		owner := p.Owner
		if !p.OwnerDeclared && owner != "" {
			owner += " [not declared]"
		}
		row := []string{
			p.EndedAt.Local().Format("2006-01-02 15:04:05"), secondsSpan(p.HeldSecs), secondsSpan(p.WaitSecs), verdictOf(p), p.Mode.String(), p.End,
			takeoverOf(&p.Record), strconv.Itoa(p.UID), owner, lock.Flatten(p.Reason, 120),
		}
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
			row[i] = plain(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return b.String()
}

// verdictOf is a verdict, and what speaks against the run.
func verdictOf(p *lock.Past) string {
	if p.Evidence == nil {
		return lock.VerdictUnknown.String()
	}
	var why []string
	for _, f := range p.Evidence.Reasons {
		if f.Reason.Verdict() == lock.Suspect {
			why = append(why, f.Reason.String())
		}
	}
	if p.Evidence.Verdict != lock.Suspect || len(why) == 0 {
		return p.Evidence.Verdict.String()
	}
	return p.Evidence.Verdict.String() + " (" + strings.Join(why, ",") + ")"
}

func secondsSpan(s float64) string {
	if s < 0 || s > 1e9 {
		return "-"
	}
	return span(time.Duration(s * float64(time.Second)))
}
