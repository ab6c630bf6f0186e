//go:build linux

package lock

import "testing"

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
