//go:build linux

package lock

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/org/hostlock-action/proc"
)

// carrier begins a process that carries a job's mark.
func carrier(t *testing.T, id string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", envTrackingID + "=" + id}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// keeperAfter is the keeper of a hold whose job has ended so long ago. It lives in the
// real world: what it waits for are processes.
func keeperAfter(t *testing.T, id string, ago time.Duration) *keeper {
	t.Helper()
	w := newWorld(t)
	h := w.actor().gets()
	h.d.host.now, h.d.host.open, h.d.host.look = now, proc.Open, proc.Look
	at := now().Add(-ago)
	h.d.host.here = proc.Here()
	h.Record.Body.BootID, h.Record.Body.TimeNS = h.d.host.here.BootID, h.d.host.here.TimeNS
	h.Record.Job, h.Record.JobEndedAt = map[string]string{jobTrackingID: id}, &at
	return &keeper{hold: h}
}

func (k *keeper) past(t *testing.T) Past {
	t.Helper()
	past, err := k.hold.d.History()
	if err != nil || len(past) != 1 {
		t.Fatalf("history: %v, %v", past, err)
	}
	return past[0]
}

func TestHoldOutlastsItsJob(t *testing.T) {
	id := "github_" + randomHex(8)
	// The child is started while its parent is waited for, and is not the
	// parent's name or group: only the mark tells.
	cmd := carrier(t, id, "sh", "-c", "sleep 0.3; setsid sleep 0.4 & sleep 0.1")
	k := keeperAfter(t, id, 0)
	began := time.Now()
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		cmd.Wait()
	}()
	k.outlast()
	<-waited // before the cleanup looks at cmd
	if took := time.Since(began); took < 600*time.Millisecond || took > 10*time.Second {
		t.Errorf("released after %s, while or long after processes of the job ran", took)
	}
	if p := k.past(t); p.End != endReleased || p.LeftRunning != nil {
		t.Errorf("ended %q, left running %v", p.End, p.LeftRunning)
	}
}

func TestJobThatNeverEndsIsNamed(t *testing.T) {
	for name, ago := range map[string]time.Duration{"waited for": 59500 * time.Millisecond, "long over": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			id := "github_" + randomHex(8)
			cmd := carrier(t, id, "sleep", "30")
			k := keeperAfter(t, id, ago)
			began := time.Now()
			k.outlast()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("released after %s", took)
			}
			p := k.past(t)
			if p.LeftRunning == nil || *p.LeftRunning != 1 || !strings.Contains(p.LeftNames, strconv.Itoa(cmd.Process.Pid)) {
				t.Errorf("left running: %v %q", p.LeftRunning, p.LeftNames)
			}
			if l := proc.Look(mustIdentify(t, cmd.Process.Pid)); l != proc.Alive {
				t.Errorf("what was left running is %s: a keeper kills nobody", l)
			}
		})
	}
}

func mustIdentify(t *testing.T, pid int) proc.Identity {
	t.Helper()
	id, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestJobWithoutMarkWaitsForNobody(t *testing.T) {
	carrier(t, "", "sleep", "30")
	k := keeperAfter(t, "", 0)
	began := time.Now()
	k.outlast()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("released after %s", took)
	}
}

// A note is anybody's to write. It wakes a keeper and ends no job.
func TestNoteEndsNoJob(t *testing.T) {
	w := newWorld(t)
	h := w.actor().gets()
	if err := h.d.writeNote(h.entry, func(*note) {}); err != nil {
		t.Fatal(err)
	}
	k := &keeper{hold: h}
	if k.jobEnded() {
		t.Error("the job has ended by a note")
	}
	if err := h.update(func(r *Record) { at := w.clock; r.JobEndedAt = &at }); err != nil {
		t.Fatal(err)
	}
	if !k.jobEnded() {
		t.Error("the record says that the job has ended")
	}
}
