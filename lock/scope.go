//go:build linux

package lock

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

// hostMark is a file that a process of the host itself leaves in the
// directory, so that a container into which the directory is mounted can tell
// that its lock is the host's.
const hostMark = "host"

// resolveScope finds out what the lock really covers: the host, unless something
// speaks against it. Private was settled by how the path was chosen.
func (d *Dir) resolveScope(mayMark bool) {
	if d.Scope == Private {
		return
	}
	var st unix.Stat_t
	if unix.Fstatat(d.fd, hostMark, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return
	}
	if d.host.here.PIDNS == proc.InitialPIDNS && d.host.here.ProcOurs && d.onWholeFS() {
		if mayMark {
			// Without the mark a container says "container" of a lock that is
			// the host's: an understatement, so a failure is no error.
			if fd, err := unix.Openat(d.fd, hostMark, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444); err == nil {
				unix.Close(fd)
			}
		}
		return
	}
	d.Scope = Container
	if d.configured {
		d.Scope = Box
	}
}

// onWholeFS reports whether the mount that the directory is on shows its file
// system from the root. A service with PrivateTmp has a directory of its own
// bind-mounted on /tmp (systemd.exec(5)), and shares a lock there with nobody.
func (d *Dir) onWholeFS() bool {
	// Before Linux 5.8 there is no such number. Where it cannot be told which mount it is,
	// none is found, and nothing speaks against it.
	var sx unix.Statx_t
	_ = unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &sx)
	table, _ := os.ReadFile("/proc/self/mountinfo")
	return wholeFS(string(table), sx.Mnt_id)
}

// wholeFS finds a mount in a mountinfo table (proc_pid_mountinfo(5)) and
// reports whether its root is the file system's.
func wholeFS(table string, mount uint64) bool {
	id := strconv.FormatUint(mount, 10)
	for line := range strings.SplitSeq(table, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 7 || fields[0] != id {
			continue
		}
		if fields[3] == "/" {
			return true
		}
		// A btrfs subvolume is mounted from a root of its own name.
		_, rest, _ := strings.Cut(line, " - ")
		return strings.HasPrefix(rest, "btrfs ") && strings.Contains(rest, "subvol="+fields[3])
	}
	return true
}
