//go:build linux

package lock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// A Dir is an open lock directory. Everything in it is reached from its handle,
// one name at a time, never through a link.
type Dir struct {
	Location
	Problem string // something an admin should know, though the directory works
	// Warnings are what went wrong beside the lock itself, for the caller to
	// tell once the guard is left.
	Warnings []string

	unseen map[entry]Instant // since when this process has seen nothing vouch for a ticket

	fd   int // -1: a directory that does not exist yet, opened to look
	uid  int
	host seam
}

// A seam is what the package knows of the world outside its directory. Only
// Go code of this package can replace it: whatever could redirect these answers
// from outside would be a way to steal a lock.
type seam struct {
	here      proc.Vantage
	self      proc.Identity
	now       func() Instant
	look      func(proc.Identity) proc.Liveness
	open      func(proc.Identity) (pidfd int, l proc.Liveness)
	runnable  func() (int, error)
	busy      func(time.Duration) (float64, error)
	carrying  func(match func(environ []byte) bool) (found []proc.Process, unreadable int)
	survivors func(dead []*Ticket) Survivors
	write     func(fd int, b []byte, off int64) error // a disk can be full
	// keep leaves a hold to a keeper, which is another process.
	keep func(h *Hold, told Record, in func()) error
}

func thisHost() seam {
	return seam{
		here:      proc.Here(),
		self:      proc.Self(),
		now:       now,
		look:      proc.Look,
		open:      proc.Open,
		runnable:  proc.Runnable,
		busy:      proc.HostBusy,
		carrying:  proc.Carrying,
		survivors: LookForSurvivors,
		write:     writeAt,
		keep:      (*Hold).handOver,
	}
}

// Open opens the lock directory at l, and creates it (one level, mode 01777)
// if it is missing and the configuration does not name it. Errors are
// *UnusableError.
func Open(l Location) (*Dir, error) {
	d, err := openDir(l)
	if errors.Is(err, unix.ENOENT) {
		if l.configured {
			return nil, &UnusableError{Path: l.Path, Problem: "the configuration names it and it does not exist: create it, or run \"hostlock doctor\""}
		}
		if err := createDir(l.Path); err != nil {
			return nil, &UnusableError{Path: l.Path, Problem: "it does not exist and cannot be created", Err: err}
		}
		d, err = openDir(l)
	}
	if err != nil {
		return nil, unusable(l.Path, err)
	}
	if err := d.writable(); err != nil {
		d.Close()
		return nil, err
	}
	d.resolveScope(true)
	return d, nil
}

func (d *Dir) writable() error {
	if err := unix.Faccessat(d.fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &UnusableError{Path: d.Path, Problem: "it is not writable for uid " + strconv.Itoa(d.uid), Err: err}
	}
	return nil
}

// OpenToLook opens the directory for status and its kind: nothing is created,
// and a directory that does not exist holds nobody. What acquire would find unusable
// is unusable here too: to call it free would be a lie.
func OpenToLook(l Location) (*Dir, error) {
	d, err := openDir(l)
	switch {
	case errors.Is(err, unix.ENOENT) && !l.configured:
		if err := unix.Faccessat(unix.AT_FDCWD, filepath.Dir(l.Path), unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			return nil, &UnusableError{Path: l.Path, Problem: "it does not exist and cannot be created", Err: err}
		}
		return &Dir{Location: l, fd: -1, uid: unix.Geteuid(), host: thisHost()}, nil
	case errors.Is(err, unix.ENOENT):
		return nil, &UnusableError{Path: l.Path, Problem: "the configuration names it and it does not exist: create it, or run \"hostlock doctor\""}
	case err != nil:
		return nil, unusable(l.Path, err)
	}
	err = d.writable()
	if err == nil {
		err = d.knownFormat()
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	d.resolveScope(false)
	return d, nil
}

// Close closes the handle. Holds taken through it keep their own descriptors
// but can no longer be released.
func (d *Dir) Close() {
	if d.fd >= 0 {
		unix.Close(d.fd)
		d.fd = -1
	}
}

func unusable(path string, err error) error {
	var u *UnusableError
	if errors.As(err, &u) {
		return u
	}
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return &UnusableError{Path: path, Problem: "it is not a directory (a symbolic link is not followed)", Err: err}
	case errors.Is(err, unix.EACCES):
		return &UnusableError{Path: path, Problem: "this user may not open it", Err: err}
	}
	return &UnusableError{Path: path, Problem: "it cannot be opened", Err: err}
}

func openDir(l Location) (*Dir, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(l.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, err
	}
	d := &Dir{Location: l, fd: fd, uid: unix.Geteuid(), host: thisHost()}
	if err := d.check(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return d, nil
}

// Magic numbers of network file systems (linux/magic.h and the file systems'
// own headers). A lock there would have to be believed across machines, and
// flock on some of them is local, on others lost at a server's restart.
var networkFS = map[int64]string{
	0x6969: "NFS", 0x517b: "SMB", 0xff534d42: "CIFS", 0xfe534d42: "SMB2", 0x5346414f: "AFS",
	0x00c36400: "Ceph", 0x01021997: "9P", 0x0bd00bd0: "Lustre", 0x01161970: "GFS2", 0x7461636f: "OCFS2", 0x73757245: "Coda",
}

func (d *Dir) check() error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &fs); err != nil {
		return &UnusableError{Path: d.Path, Problem: "its file system cannot be told", Err: err}
	}
	if name, bad := networkFS[int64(fs.Type)&0xffffffff]; bad {
		return &UnusableError{Path: d.Path, Problem: "it is on a network file system (" + name + "): use a directory of this machine"}
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return &UnusableError{Path: d.Path, Problem: "it cannot be examined", Err: err}
	}
	if st.Uid != 0 && int(st.Uid) != d.uid {
		d.Problem = fmt.Sprintf("the directory belongs to uid %d, who can delete anybody's ticket", st.Uid)
	} else if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		d.Problem = "the directory is writable for others and not sticky: anybody can delete anybody's ticket (chmod 1777)"
	}
	return nil
}

// createDir makes the directory, in one call, so that a crash leaves neither
// half of it nor one that is closed to other users. The umask is this process's:
// nothing else makes files while the lock directory is opened.
func createDir(path string) error {
	old := unix.Umask(0)
	defer unix.Umask(old)
	if err := unix.Mkdir(path, 0o1777); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil // somebody else made it
}

// renameNew renames without ever replacing.
func renameNew(dirfd int, from, to string) error {
	err := unix.Renameat2(dirfd, from, dirfd, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// A file system without the flag: a hard link never replaces either.
	if err := unix.Linkat(dirfd, from, dirfd, to, 0); err != nil {
		return err
	}
	return unix.Unlinkat(dirfd, from, 0)
}

var errNotRegular = errors.New("it is not a plain file of this directory")

// openFile opens a file of the directory. A link, a FIFO, a device, and a file
// that has another name somewhere are refused: a peer may have put them there. But
// a .lock may be read by whatever names it has, for its holder's kernel lock is on it:
// by a second name for it a peer could hide that somebody lives.
func (d *Dir) openFile(name string, flags int) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EISDIR) {
		return -1, st, errNotRegular
	}
	if err != nil {
		return -1, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	// Nlink 0 is a file that was replaced or removed since it was opened.
	onlyName := st.Nlink <= 1 || flags&unix.O_ACCMODE == unix.O_RDONLY && strings.HasSuffix(name, lockSuffix)
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !onlyName {
		unix.Close(fd)
		return -1, st, errNotRegular
	}
	return fd, st, nil
}

// readFile reads at most max bytes of a file of the directory.
func (d *Dir) readFile(name string, max int) ([]byte, unix.Stat_t, error) {
	fd, st, err := d.openFile(name, unix.O_RDONLY)
	if err != nil {
		return nil, st, err
	}
	defer unix.Close(fd)
	b, err := readUpTo(fd, max)
	return b, st, err
}

func readUpTo(fd, max int) ([]byte, error) {
	var st unix.Stat_t
	size := 1024
	if unix.Fstat(fd, &st) == nil && st.Size < int64(max) {
		size = int(st.Size) + 1
	} else {
		size = max + 1
	}
	b := make([]byte, size)
	n := 0
	for n < len(b) {
		m, err := retry(func() (int, error) { return unix.Pread(fd, b[n:], int64(n)) })
		if err != nil {
			return nil, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	if n > max {
		return nil, errors.New("it is too large")
	}
	return b[:n], nil
}

// newFile creates a file under a random temporary name, filled and with mode,
// whatever the umask; the caller renames it. It stays open.
func (d *Dir) newFile(content []byte, mode uint32) (fd int, tmp string, err error) {
	tmp = tmpPrefix + randomHex(8)
	fd, err = retry(func() (int, error) {
		return unix.Openat(d.fd, tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return -1, "", err
	}
	if err = unix.Fchmod(fd, mode); err == nil {
		err = d.host.write(fd, content, 0)
	}
	if err != nil {
		unix.Close(fd)
		_ = unix.Unlinkat(d.fd, tmp, 0)
		return -1, "", err
	}
	return fd, tmp, nil
}

// replaceFile writes a file whole or not at all. What was there is exchanged for it and
// removed: a file that is renamed over another is written to the disk at once by ext4
// (auto_da_alloc, ext4(5)), which took a fifth of each hand-over. A machine that loses its
// power may so leave an empty record, as one that was never replaced always could: its
// ticket is passed after the grace for what cannot be read.
func (d *Dir) replaceFile(name string, content []byte, mode uint32) error {
	fd, tmp, err := d.newFile(content, mode)
	if err != nil {
		return err
	}
	unix.Close(fd)
	err = unix.Renameat2(d.fd, tmp, d.fd, name, unix.RENAME_EXCHANGE)
	switch err {
	case nil:
		// Whatever else keeps it there, or has taken it away, the new one is in its place.
		if err = unix.Unlinkat(d.fd, tmp, 0); err != unix.EISDIR {
			return nil
		}
		_ = unix.Renameat2(d.fd, tmp, d.fd, name, unix.RENAME_EXCHANGE)
	case unix.ENOENT, unix.EINVAL, unix.ENOSYS: // nothing is there, or it cannot be exchanged here
		if err = unix.Renameat(d.fd, tmp, d.fd, name); err == nil {
			return nil
		}
	}
	_ = unix.Unlinkat(d.fd, tmp, 0)
	return err
}

func writeAt(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := retry(func() (int, error) { return unix.Pwrite(fd, b, off) })
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// tmpPrefix begins the names of files that are being made. All but the guard
// itself are made under the guard, so whoever holds the guard and sees one sees
// a crash's leavings.
const tmpPrefix = ".new-"

// each calls f with every name in the directory. A long queue is read under the guard,
// so a name is no string before it is one that matters.
func (d *Dir) each(f func(name []byte)) error {
	if d.fd < 0 {
		return nil
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 16<<10)
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil || n <= 0 {
			return err
		}
		// struct linux_dirent64 (getdents64(2)): inode, offset, length, type, name.
		for b := buf[:n]; len(b) > 19; {
			length := binary.NativeEndian.Uint16(b[16:])
			name, _, _ := bytes.Cut(b[19:length], []byte{0})
			f(name)
			b = b[length:]
		}
	}
}

// getrandom asks the kernel. The library would ask a generator in the vDSO, which is
// quicker from the tenth time on.
func getrandom(b []byte) (int, error) {
	n, _, e := unix.Syscall(unix.SYS_GETRANDOM, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func randomHex(size int) string {
	b := make([]byte, size)
	// Up to 256 bytes come at once or not at all (getrandom(2)).
	if n, err := retry(func() (int, error) { return getrandom(b) }); n < size {
		// Never seen since Linux 3.17; an id that is not random would be a hold
		// that somebody else can name.
		panic(fmt.Sprintf("hostlock: getrandom: %v", err))
	}
	const digits = "0123456789abcdef"
	var out strings.Builder
	for _, c := range b {
		out.WriteByte(digits[c>>4])
		out.WriteByte(digits[c&15])
	}
	return out.String()
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
