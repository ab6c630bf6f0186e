//go:build linux

package lock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A keeper is the process that embodies a hold whose taker ends at once (the
// acquire command, a job hook). Those who can see the anchor do not need it. It is
// there for those who cannot, in other containers, to whom only the kernel lock
// says that somebody lives, and so that the kernel frees a dead pod's ticket.

// KeeperCommand is the hidden command that a keeper runs as.
const KeeperCommand = "keeper"

// The descriptors that a keeper gets beside an empty stdio.
const (
	keeperLockFD = 3 + iota
	keeperPipeFD
	keeperDirFD
)

var errNotTold = errors.New("the keeper was not told what to keep")

const (
	keeperReady  = "ready"
	keeperCommit = "commit"
	keeperAbort  = "abort"
)

// HandOver anchors the hold to another process and leaves it to a keeper. The
// real anchor and the keeper are recorded last: until then the hold ends with this
// process. On an error the hold is as it was.
func (h *Hold) HandOver(anchor Party) error {
	told := h.Record
	told.Anchor = anchor
	if told.TTLSeconds > 0 {
		// The limit is on what is done with the host, not on the wait for what
		// a dead holder left, or for the gate.
		now := h.d.host.now()
		told.HeldAt = &now
	}
	return h.entrust(told, nil)
}

// entrust leaves the hold to a keeper, as the record that it is told. in, if
// set, is what else belongs into the session in which the keeper takes over.
func (h *Hold) entrust(told Record, in func()) error {
	if err := h.d.host.keep(h, told, in); err != nil {
		return fmt.Errorf("the hold cannot be handed to a keeper: %w", err)
	}
	return nil
}

func (h *Hold) handOver(told Record, in func()) (err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours := os.NewFile(uintptr(pair[0]), "keeper")
	defer func() {
		if err != nil {
			// The hold stays with us, alive: the keeper must not give it up.
			_, _ = io.WriteString(ours, keeperAbort+"\n")
		}
		ours.Close()
	}()
	pid, err := spawnKeeper(h, pair[1])
	unix.Close(pair[1])
	if err != nil {
		return err
	}
	keeper, err := proc.Identify(pid)
	if err != nil {
		return err
	}
	told.Body = Party{Identity: keeper, UID: unix.Getuid(), Comm: "hostlock"}
	orders, err := told.encode(nil)
	if err != nil {
		return err
	}
	if _, err := ours.Write(append(orders, '\n')); err != nil {
		return err
	}
	if err := hearReady(ours); err != nil {
		return err
	}
	if err := h.become(told, in); err != nil {
		return err
	}
	if _, err := io.WriteString(ours, keeperCommit+"\n"); err != nil {
		return err
	}
	unix.Close(h.lockFD)
	h.lockFD = -1
	return nil
}

// hearReady waits for what a keeper says first; the error is why it cannot keep.
func hearReady(keeper io.Reader) error {
	said, err := bufio.NewReader(keeper).ReadString('\n')
	switch said = strings.TrimSpace(said); {
	case said == keeperReady:
		return nil
	case said != "":
		return errors.New(said)
	case err == nil || err == io.EOF:
		return errors.New("it ended before it was ready")
	}
	return err
}

// become replaces the record, in one session.
func (h *Hold) become(told Record, in func()) error {
	s, err := h.d.enter()
	if err != nil {
		return err
	}
	defer s.leave()
	if err := h.lost(); err != nil {
		return err
	}
	if h.job != nil && h.jobOver(told.Anchor) {
		return errJobOver
	}
	if err := h.update(func(r *Record) { *r = told }); err != nil {
		return h.d.cannot("record the hold", err)
	}
	if in != nil {
		in()
	}
	return nil
}

func spawnKeeper(h *Hold, pipe int) (pid int, err error) {
	null, err := retry(func() (int, error) { return unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, err
	}
	defer unix.Close(null)
	// What our caller left open must not live on in the keeper: a log pipe
	// that never closes, another tool's lock. Nothing else is started from here.
	if err := unix.CloseRange(3, 1<<31, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		closeOnExec()
	}
	n := uintptr(null)
	return syscall.ForkExec("/proc/self/exe", []string{"hostlock", KeeperCommand, h.d.Path, h.entry.name()}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{},
		Files: []uintptr{n, n, n, uintptr(h.lockFD), uintptr(pipe), uintptr(h.d.fd)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

// closeOnExec is for kernels without CLOSE_RANGE_CLOEXEC (before 5.11).
func closeOnExec() {
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, n := range names {
			if fd, _ := strconv.Atoi(n.Name()); fd > 2 {
				unix.CloseOnExec(fd)
			}
		}
		return
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		closeOnExecBelow(int(min(limit.Cur, 1<<16)))
	}
}

func closeOnExecBelow(end int) {
	for fd := 3; fd < end; fd++ {
		unix.CloseOnExec(fd)
	}
}

// Keep is the life of a keeper; it returns its exit status. It signals nobody,
// and has no timer unless its anchor cannot be watched, or its job has ended
// and left processes.
func Keep() int {
	for fd := keeperLockFD; fd <= keeperDirFD; fd++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			return 1 // started by hand: there is nothing to keep
		}
	}
	nameProcess("hostlock")
	pipe := os.NewFile(keeperPipeFD, "taker")
	k, err := newKeeper(pipe, keeperDirFD, os.Args[2:])
	if err != nil {
		fmt.Fprintln(pipe, Flatten(err.Error(), MaxText))
		return 1
	}
	word := ""
	if _, err := fmt.Fprintln(pipe, keeperReady); err == nil {
		word = k.lastWord()
	}
	switch word {
	case keeperCommit:
	case keeperAbort:
		return 1
	default:
		// The taker died: it no longer embodies the ticket, and we were never
		// told to.
		k.give()
		return 1
	}
	pipe.Close()
	for !k.over() {
		k.sleep()
	}
	return 0
}

// nameProcess names the process, which is its main thread. prctl(PR_SET_NAME)
// names whichever thread calls it.
func nameProcess(name string) {
	fd, err := retry(func() (int, error) { return unix.Open("/proc/self/comm", unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err == nil {
		_, _ = unix.Write(fd, []byte(name))
		unix.Close(fd)
	}
}

type keeper struct {
	hold     *Hold
	anchor   proc.Identity
	anchorFD int // its pidfd, or -1
	taker    *bufio.Reader
	again    bool // an event was seen and could not be looked into
	vigil    vigil
}

// newKeeper is the keeper of the ticket that its arguments name, in the directory that
// is open as dir, by a record that it reads from the taker: what the ticket's will be
// once it has taken over.
func newKeeper(pipe io.Reader, dir int, args []string) (*keeper, error) {
	if len(args) != 2 {
		return nil, errNotTold
	}
	e, ok := parseEntry(args[1] + lockSuffix)
	if !ok {
		return nil, errNotTold
	}
	in := bufio.NewReader(pipe)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotTold, err)
	}
	told, err := decodeRecord(line, e.seq)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotTold, err)
	}
	d := &Dir{Location: Location{Path: args[0]}, fd: dir, uid: unix.Geteuid(), host: thisHost()}
	k := &keeper{hold: &Hold{Record: *told, d: d, entry: e, lockFD: keeperLockFD}, anchor: told.Anchor.Identity, anchorFD: -1, taker: in}
	if !d.watchFile(&k.vigil, e) {
		k.vigil.within(blindLook)
	}
	if fd, l := d.host.open(k.anchor); fd >= 0 {
		k.vigil.add(fd)
		k.anchorFD = fd
	} else if l == proc.Gone {
		return nil, ErrAnchorGone
	} else {
		k.vigil.within(blindLook)
	}
	return k, nil
}

// lastWord waits for what the taker says last; empty if it died before.
func (k *keeper) lastWord() string {
	line, err := k.taker.ReadString('\n')
	if err != nil {
		return "" // half a word is none
	}
	return strings.TrimSuffix(line, "\n")
}

// give releases a ticket that was never handed over whole.
func (k *keeper) give() {
	if s, err := k.hold.d.enter(); err == nil {
		defer s.leave()
		if _, ok := k.hold.own(); ok {
			_ = k.hold.d.remove(k.hold.entry)
		}
	}
}

// over reports whether there is nothing left to keep: the anchor is proven
// gone, or the ticket is no longer ours.
func (k *keeper) over() bool {
	if k.jobEnded() {
		k.outlast()
		return true
	}
	// A pidfd names one process for ever; what is looked up by its number may
	// by now be another that cannot be told apart.
	if ready(k.anchorFD) || k.hold.d.host.look(k.anchor) == proc.Gone {
		return true
	}
	s, err := k.hold.d.enter()
	if err != nil {
		k.again = true // whoever has the guard is stuck; that frees nothing
		return false
	}
	defer s.leave()
	k.again = false
	if k.hold.lost() == nil {
		// We vouch for the hold: a note that nobody does is a peer's, made to
		// spare it the grace when we die.
		if n, _ := k.hold.own(); n.Unseen != nil {
			_ = k.hold.d.writeNote(k.hold.entry, func(n *note) { n.Unseen = nil })
		}
		return false
	}
	if _, ok := k.hold.own(); ok {
		_ = k.hold.d.remove(k.hold.entry) // marked by another user, who could not
	}
	return true
}

// limit is how long a keeper sleeps though nothing happens; 0: for ever.
func (k *keeper) limit() time.Duration {
	if k.again {
		return blindLook
	}
	return k.vigil.limit
}

func (k *keeper) sleep() {
	poll(k.vigil.fds, k.limit())
	// One event is enough to look once; what else is queued was seen by that.
	var buf [4096]byte
	for _, f := range k.vigil.fds {
		_, _ = unix.Read(int(f.Fd), buf[:]) // EINVAL on a pidfd
	}
}
