//go:build linux

package lock

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A trade that ends after its job gives nothing back: the shared hold would
// have nobody left who releases it, and read STALE.
func TestTradeOfAnEndedJobIsReleased(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *world, Party){
		"its process is gone": func(_ *testing.T, w *world, job Party) { delete(w.life, job.PID) },
		"its last hook has run": func(t *testing.T, w *world, job Party) {
			d, _ := w.process()
			ended, err := d.EndJob(job.Identity, func(*Record) { t.Error("the trade is no hold of the job's") })
			if err != nil || len(ended) > 0 {
				t.Errorf("ended %v, %v", ended, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, writes := range []bool{true, false} {
				w := newWorld(t)
				job := w.job()
				h := w.actor(within(job.id)).gets()
				d, _ := w.process()
				if _, err := d.EndJob(w.identity(7), func(*Record) {}); err != nil { // another
					t.Fatal(err)
				}
				if h.hearOfJobEnd(); h.Record.JobEndedAt != nil {
					t.Error("it hears of the end of another job")
				}
				end(t, w, *h.Record.ResumesAnchor)
				// What the trade itself writes does not undo it.
				if writes {
					if err := h.amend(func(r *Record) { r.Gate = "satisfied" }); err != nil {
						t.Fatal(err)
					}
				}
				if err := h.Release(); err != nil || len(h.d.Warnings) > 0 {
					t.Errorf("writes %v: %v, %q", writes, err, h.d.Warnings)
				}
				w.want(Free)
				if n := w.pasts(); n[endReleased] != 1 || len(n) != 1 {
					t.Errorf("writes %v: history %v", writes, n)
				}
			}
			for _, waiting := range []bool{false, true} {
				w := newWorld(t)
				job := w.job()
				other := w.actor(shared)
				other.gets()
				trader := w.actor(within(job.id)).waits()
				if waiting {
					end(t, w, *trader.hold.Record.ResumesAnchor)
				}
				if err := other.hold.Release(); err != nil {
					t.Fatal(err)
				}
				h := trader.gets()
				if !waiting {
					end(t, w, *h.Record.ResumesAnchor)
				}
				// What the trade itself writes does not undo it.
				if err := h.amend(func(r *Record) { r.Gate = "satisfied" }); err != nil {
					t.Fatal(err)
				}
				if err := h.Release(); err != nil || len(h.d.Warnings) > 0 {
					t.Errorf("%v, %q", err, h.d.Warnings)
				}
				if v := w.view(); v.State != Free {
					t.Errorf("while it waited %v: state %v", waiting, v.State)
				}
				if n := w.pasts(); n[endReleased] != 2 || len(n) != 1 {
					t.Errorf("history %v", n)
				}
			}
		})
	}
}

// What a trade hears of its job's end is in its own record, written by its own user or by
// root: anybody may put a file there in its place.
func TestTradeHearsOfItsJobsEnd(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(w *world, h *Hold)
		want bool
	}{
		{"nothing", func(*world, *Hold) {}, false},
		{"its end", func(w *world, h *Hold) {
			w.editRecord(h.entry, func(m map[string]any) { m["job_ended_at"] = w.clock })
		}, true},
		{"the end of another's", func(w *world, h *Hold) {
			w.editRecord(h.entry, func(m map[string]any) { m["job_ended_at"], m["id"] = w.clock, anID })
		}, false},
		{"half of it", func(w *world, h *Hold) { w.write(h.entry.name()+recordSuffix, "{") }, false},
		{"its record has gone", func(w *world, h *Hold) { _ = os.Remove(w.file(h.entry.name() + recordSuffix)) }, false},
		{"another user's word", func(w *world, h *Hold) {
			w.editRecord(h.entry, func(m map[string]any) { m["job_ended_at"] = w.clock })
			if os.Getuid() != 0 {
				h.d.uid++
			} else if err := os.Chown(w.file(h.entry.name()+recordSuffix), 65534, -1); err != nil {
				w.t.Fatal(err)
			}
		}, false},
		{"root's word", func(w *world, h *Hold) {
			w.editRecord(h.entry, func(m map[string]any) { m["job_ended_at"] = w.clock })
			if os.Getuid() != 0 {
				w.t.Skip("needs root")
			}
			h.d.uid = 65534
		}, true},
		{"its own user's word", func(w *world, h *Hold) {
			w.editRecord(h.entry, func(m map[string]any) { m["job_ended_at"] = w.clock })
			if os.Getuid() != 0 {
				return
			}
			h.d.uid = 65534
			if err := os.Chown(w.file(h.entry.name()+recordSuffix), 65534, -1); err != nil {
				w.t.Fatal(err)
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			job := w.job()
			h := w.actor(within(job.id)).gets()
			tt.set(w, h)
			h.hearOfJobEnd()
			if got := h.Record.JobEndedAt; (got != nil) != tt.want || got != nil && !got.UTC.Equal(w.clock.UTC) {
				t.Errorf("%v", got)
			}
			// Once heard it stands.
			at := w.clock.Add(-time.Second)
			h.Record.JobEndedAt = &at
			h.hearOfJobEnd()
			_ = os.Remove(w.file(h.entry.name() + recordSuffix))
			h.hearOfJobEnd()
			if h.Record.JobEndedAt == nil {
				t.Error("it is forgotten")
			}
			unix.Close(h.lockFD)
			h.lockFD = -1
		})
	}
}
