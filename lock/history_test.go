//go:build linux

package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a hold leaves in the history: how long it waited and held, and who ended it.
func TestPast(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	r := fullRecord()
	r.Body.BootID, r.Body.TimeNS = d.host.here.BootID, d.host.here.TimeNS
	asked, held := w.clock.Add(-90*time.Second), w.clock.Add(-time.Minute)
	r.RequestedAt, r.HeldAt = asked, &held
	opened := r.Window
	p := d.past(r, 7, endReleased)
	want := Past{Record: *r, UID: 7, End: "released", EndedAt: w.clock.UTC, EndedBy: os.Geteuid(), WaitSecs: 30, HeldSecs: 60}
	want.Window = &Window{At: opened.At}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("%+v, want %+v", p, want)
	}
	if r.Window != opened {
		t.Error("the record was changed")
	}
	r.RequestedAt, r.Window = held.Add(time.Second), nil
	if p := d.past(r, 7, endReleased); p.WaitSecs != 0 || p.Window != nil {
		t.Errorf("%+v", p)
	}
	if r.HeldAt = nil; d.past(r, 7, endReleased).HeldSecs != 0 {
		t.Error("it never held")
	}
}

// Only what has held goes into the history.
func TestOnlyHoldsArePast(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	now := w.clock
	for _, r := range []Record{{ID: anID, Phase: Waiting, HeldAt: &now}, {ID: anID, Phase: Held}} {
		d.finish(&r, 0, endReleased)
	}
	if _, err := os.Stat(w.file(historyFile)); !errors.Is(err, os.ErrNotExist) || len(d.Warnings) != 0 {
		t.Errorf("%v, warned %v", err, d.Warnings)
	}
	d.finish(&Record{ID: anID, Phase: Held, HeldAt: &now}, 0, endReleased)
	if n := w.pasts(); n[endReleased] != 1 || len(d.Warnings) != 0 {
		t.Errorf("%v, warned %v", n, d.Warnings)
	}
}

// A line is appended whole. A line that a crash tore is ended, and past 1 MiB the newest
// half stays, from the begin of a line.
func TestAppendHistory(t *testing.T) {
	const line = "{\"new\":1}\n"
	// old has so many bytes: a blank line's end, lines of 64 bytes, and a rest.
	old := func(size int) string {
		s := "\n" + strings.Repeat(strings.Repeat("x", 63)+"\n", size/64+1)
		return s[:size-3] + "yy\n"
	}
	full := strings.Repeat("z", maxHistory+2)
	for _, tt := range []struct{ name, old, want string }{
		{"the first", "", line},
		{"the second", "{\"a\":2}\n", "{\"a\":2}\n" + line},
		{"after a torn one", "{\"a\":2}\n{\"b", "{\"a\":2}\n{\"b\n" + line},
		{"after a byte", "x", "x\n" + line},
		{"to 1 MiB", old(maxHistory), old(maxHistory) + line},
		// Lines begin 1 + 64n bytes from the front; what begins just where it is cut is not
		// known to.
		{"past 1 MiB", old(maxHistory + 1), old(maxHistory + 1)[maxHistory/2+65:] + line},
		{"past 1 MiB and a bit", old(maxHistory + 64), old(maxHistory + 64)[maxHistory/2+65:] + line},
		{"past 2 MiB", old(3 * maxHistory), old(3 * maxHistory)[2*maxHistory+1:] + line},
		{"no line at all", full, full[maxHistory/2+1:] + "\n" + line},
	} {
		w := newWorld(t)
		d, _ := w.process()
		if tt.old != "" {
			w.write(historyFile, tt.old)
		}
		err := d.appendHistory([]byte(line))
		if b, rerr := os.ReadFile(w.file(historyFile)); string(b) != tt.want || err != nil || rerr != nil {
			t.Errorf("%s: %d bytes, want %d (%v, %v); it begins %.70q, want %.70q", tt.name, len(b), len(tt.want), err, rerr, b, tt.want)
		}
		names, err := os.ReadDir(w.path)
		if err != nil || len(names) != 1 {
			t.Errorf("%s: left %v, %v", tt.name, names, err)
		}
	}
}

// Everybody appends to it, whatever the umask of who began it.
func TestHistoryIsEverybodys(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	old := unix.Umask(0o077)
	err := d.appendHistory([]byte("x\n"))
	unix.Umask(old)
	if st, serr := os.Stat(w.file(historyFile)); err != nil || serr != nil || st.Mode() != 0o666 {
		t.Errorf("%v, %v, %v", err, serr, st.Mode())
	}
}

// On a full disk no half of a line stays, and the host is released all the same.
func TestHistoryThatIsFull(t *testing.T) {
	h := newHost(t)
	old := strings.Repeat("{\"a\":2}\n", 1<<14)
	if err := os.WriteFile(h.path+"/"+historyFile, []byte(old), 0o666); err != nil {
		t.Fatal(err)
	}
	// A process of its own, for the limit is on all that it writes.
	out, err := helperCmd("full", "LOCK_TEST_DIR="+h.path).Output()
	if want := "released: <nil>\nthe history of " + h.path + " could not be written: file too large\n"; string(out) != want || err != nil {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
	h.want(Free)
	if b, err := os.ReadFile(h.path + "/" + historyFile); string(b) != old || err != nil {
		t.Errorf("%d bytes, want %d, %v", len(b), len(old), err)
	}
}

// helpFull holds the host, and has room in a file for 100 bytes more of history when it
// releases it.
func helpFull() {
	d := helpOpen(os.Getenv("LOCK_TEST_DIR"))
	h, err := d.Acquire(context.Background(), Request{Owner: "x"})
	must(err)
	_, st, err := d.readFile(historyFile, maxHistory)
	must(err)
	signal.Ignore(unix.SIGXFSZ)
	room := uint64(st.Size + 100)
	must(unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: room, Max: room}))
	fmt.Println("released:", h.Release())
	for _, warning := range d.Warnings {
		fmt.Println(warning)
	}
}

// Peers write the history. Lines that cannot be are passed over, words are made harmless.
func TestReadHistory(t *testing.T) {
	w := newWorld(t)
	const end = `,"state":"held","reason":"a\nb","end":"released"}`
	line := func(id, mode string) string { return `{"id":"` + id + `"` + mode + end }
	good := line(anID, `,"mode":"shared"`)
	of := func(id byte) string { return strings.Repeat(string(id), 32) }
	w.write(historyFile, strings.Join([]string{
		good,
		"",
		"{",
		"[]",
		line("short", `,"mode":"shared"`),
		line(of('b'), ""),
		line(of('b'), `,"mode":"both"`),
		line(of('c'), `,"mode":"shared"`) + strings.Repeat(" ", maxRecord-len(good)),
		line(of('d'), `,"mode":"shared"`) + strings.Repeat(" ", maxRecord-len(good)+1),
		strings.Replace(line(of('e'), `,"mode":"exclusive"`), "released", "let go", 1),
		line(of('f'), `,"mode":"shared"`)[:60],
	}, "\n"))
	d, _ := w.process()
	all, err := d.History()
	var got []string
	for _, p := range all {
		got = append(got, p.ID[:1]+" "+p.Mode.String()+" "+p.End+" "+p.Reason)
	}
	want := "0 shared released a b, c shared released a b, e exclusive  a b"
	if strings.Join(got, ", ") != want || err != nil {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// No history is an empty one; one that is too large is said to be.
func TestNoHistory(t *testing.T) {
	w := newWorld(t)
	d, _ := w.process()
	if all, err := d.History(); len(all) != 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
	if all, err := (&Dir{fd: -1}).History(); len(all) != 0 || err != nil {
		t.Errorf("of no directory: %v, %v", all, err)
	}
	w.write(historyFile, strings.Repeat(strings.Repeat(" ", 1023)+"\n", 4*maxHistory/1024))
	if all, err := d.History(); len(all) != 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
	if err := os.Truncate(w.file(historyFile), 4*maxHistory+1); err != nil {
		t.Fatal(err)
	}
	if _, err := d.History(); !errors.As(err, new(*UnusableError)) || !strings.HasSuffix(err.Error(), "cannot read its history: it is too large") {
		t.Errorf("%v", err)
	}
}
