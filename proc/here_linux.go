package proc

import (
	"bytes"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Here is where this process looks from. It is read once: a process cannot
// change its own pid and time namespaces, and does not outlive the boot.
func Here() Vantage { return here() }

var here = sync.OnceValue(func() Vantage {
	v := Vantage{
		PIDNS:  inode("/proc/self/ns/pid"),
		TimeNS: inode("/proc/self/ns/time"), // Linux ≥ 5.6
	}
	if v.PIDNS == 0 {
		v.PIDNS = pidNamespace()
	}
	if b, err := readFile("/proc/sys/kernel/random/boot_id", 64); err == nil {
		v.BootID = string(bytes.TrimSpace(b))
	}
	var fs unix.Statfs_t
	var self [20]byte
	if retry(func() error { return unix.Statfs("/proc", &fs) }) == nil && fs.Type == unix.PROC_SUPER_MAGIC {
		n, err := unix.Readlink("/proc/self", self[:])
		v.ProcOurs = err == nil && string(self[:n]) == strconv.Itoa(unix.Getpid())
	}
	return v
})

func inode(path string) uint64 {
	var st unix.Stat_t
	if retry(func() error { return unix.Stat(path, &st) }) != nil {
		return 0
	}
	return st.Ino
}

// pidNamespace asks without /proc, which need not be mounted or may show
// nothing of us (PIDFD_GET_PID_NAMESPACE, include/uapi/linux/pidfd.h, ≥ 6.11).
func pidNamespace() uint64 {
	pidfd, err := pidfdOpen(unix.Getpid())
	if err != nil {
		return 0
	}
	defer unix.Close(pidfd)
	ns, err := unix.IoctlRetInt(pidfd, unix.PIDFD_GET_PID_NAMESPACE)
	if err != nil {
		return 0
	}
	defer unix.Close(ns)
	var st unix.Stat_t
	if retry(func() error { return unix.Fstat(ns, &st) }) != nil {
		return 0
	}
	return st.Ino
}
