package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A screenReader collects what a program writes to its terminal.
type screenReader struct {
	t      *testing.T
	seen   bytes.Buffer
	chunks chan []byte
}

// atTerminal starts a program whose three streams are a terminal of its own.
func atTerminal(t *testing.T, c *exec.Cmd, columns uint16) *screenReader {
	t.Helper()
	master, slave := terminal(t)
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, "CI=", "TERM=xterm")
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
	s := &screenReader{t: t, chunks: make(chan []byte, 64)}
	go func() {
		defer close(s.chunks)
		for {
			b := make([]byte, 4096)
			n, err := master.Read(b) // EIO once nobody has the other end open
			if n > 0 {
				s.chunks <- b[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	return s
}

// await reads until a text has come after what was awaited before, and returns
// what came up to its end.
func (s *screenReader) await(text string) string {
	s.t.Helper()
	late := time.After(patience)
	for {
		if i := bytes.Index(s.seen.Bytes(), []byte(text)); i >= 0 {
			return string(s.seen.Next(i + len(text)))
		}
		select {
		case b, ok := <-s.chunks:
			if !ok {
				s.t.Fatalf("%q did not come: %q", text, s.seen.String())
			}
			s.seen.Write(b)
		case <-late:
			s.t.Fatalf("%q did not come: %q", text, s.seen.String())
		}
	}
}

func TestWaitAtATerminalIsOneLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.command("hostlock", "run", "--owner", "one", "--reason", strings.Repeat("\x1b[2J長", 100), "--", "child", "hold")
	first.Env = append(first.Env, "GITHUB_ACTIONS=true", "GITHUB_JOB=b", "GITHUB_RUN_ID=4711", "GITHUB_REPOSITORY=acme/db", "GITHUB_SERVER_URL=https://github.com")
	holder := s.start(first)
	holder.process("ready")
	second := s.start(s.command("hostlock", "run", "--owner", "two", "--reason", "x", "--", "child", "hold"))
	second.says("waiting")

	const columns = 60
	c := s.run("--", "echo", "the command's own")
	screen := atTerminal(t, c, columns)
	shown := screen.await("2nd in the queue, behind two")
	second.signal(unix.SIGTERM)
	second.expect(143)
	shown += screen.await("1st in the queue")
	holder.signal(unix.SIGTERM)
	holder.expect(143)
	shown += screen.await("the command's own")
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	shown, ok := strings.CutSuffix(shown, eraseLine+"the command's own")
	if !ok || strings.Contains(shown, "\n") {
		t.Errorf("not one line, gone when the wait ends: %q", shown)
	}
	for line := range strings.SplitSeq(shown, eraseLine) {
		if strings.Contains(line, "\x1b") || len([]rune(line)) >= columns {
			t.Errorf("drawn: %q", line)
		}
	}
}

func TestWaitAtATerminalTellsAllOnAWideOne(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.command("hostlock", "run", "--owner", "one", "--reason", "nightly", "--", "child", "hold")
	first.Env = append(first.Env, "GITHUB_ACTIONS=true", "GITHUB_JOB=b", "GITHUB_RUN_ID=4711", "GITHUB_REPOSITORY=acme/db", "GITHUB_SERVER_URL=https://github.com")
	holder := s.start(first)
	holder.process("ready")
	c := s.run("--timeout", "1h", "--", "true")
	screen := atTerminal(t, c, 400)
	shown := screen.await("https://github.com/acme/db/actions/runs/4711")
	for _, want := range []string{"1st in the queue, until ", "one (uid ", "holds " + machine() + " since ", "for: nightly"} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in %q", want, shown)
		}
	}
	if err := c.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if rest := screen.await("stopped waiting"); !strings.Contains(rest, eraseLine+"hostlock: ") {
		t.Errorf("what is said next does not replace the line: %q", rest)
	}
}

// A job's log is kept by line.
func TestWaitInAJobTellsLineByLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.start(s.command("hostlock", "run", "--owner", "one", "--reason", "nightly", "--", "child", "hold"))
	first.process("ready")
	second := s.start(s.command("hostlock", "run", "--owner", "two", "--reason", "x", "--", "touch", filepath.Join(s.dir, "ran")))
	second.says("waiting")
	c := s.run("--timeout", "1", "--", "touch", filepath.Join(s.dir, "ran"))
	c.Env = append(c.Env, "CI=true", "GITHUB_ACTIONS=true", "GITHUB_JOB=b")
	l := s.start(c)
	l.expect(3)
	for _, want := range []string{
		"hostlock: waiting: one (uid ", "we are 2nd in the queue, behind two", "the limit is ", "counts toward the job's timeout-minutes",
		"timed out after ", // and who held it then, not only who was next
		": one (uid ",
	} {
		l.says(want)
	}
	l.says("hostlock: outcome=")
	if text := l.err.String(); strings.Contains(text, "\x1b") || !strings.Contains(text[strings.Index(text, "timed out"):], ": one (uid ") {
		t.Errorf("stderr:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "ran")); err == nil {
		t.Error("a command ran")
	}
}
