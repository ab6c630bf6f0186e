package proc

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// readFile reads a small kernel file whole. One longer than max is EFBIG: half
// a file must not be parsed as if it were all.
func readFile(path string, max int) ([]byte, error) {
	return readFileAt(unix.AT_FDCWD, path, path, max)
}

// readFileAt reads name below the directory dir; errors speak of path.
func readFileAt(dir int, name, path string, max int) ([]byte, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	b, err := readAll(fd, nil, max)
	unix.Close(fd)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b, nil
}

// readRecord reads a kernel file that has all it says in one record, as those of
// the kernel's single_open (fs/seq_file.c) have: one read(2) gives it whole, and no
// second one is needed to learn that. One that fills buf is EFBIG.
func readRecord(path string, buf []byte) ([]byte, error) {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var n int
	err = retry(func() (err error) { n, err = unix.Read(fd, buf); return })
	unix.Close(fd)
	if err == nil && n == len(buf) {
		err = unix.EFBIG
	}
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return buf[:n], nil
}

func openAt(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// readAll reads fd to its end, into buf if that is large enough.
func readAll(fd int, buf []byte, max int) ([]byte, error) {
	b := buf[:0]
	if cap(b) == 0 {
		b = make([]byte, 0, min(1024, max+1))
	}
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return b, err
		case n == 0:
			return b, nil
		default:
			b = b[:len(b)+n]
			if len(b) > max {
				return b, unix.EFBIG
			}
		}
	}
}

// kernelFiles reads a file of the kernel's: what one read(2) gives of it, at most
// max bytes.
type kernelFiles func(path string, max int) ([]byte, error)

var errNotKernel = errors.New("it is not the kernel's own file")

// genuine is kernelFiles on this machine. In a system container lxcfs mounts its
// own /proc/stat over the kernel's: that counts only the container, and whoever took
// it for the host would call every neighbour quiet.
func genuine(path string, max int) ([]byte, error) {
	return readGenuine(path, make([]byte, max))
}

// genuineInto is genuine for who has done with what one file says before the next is
// read.
func genuineInto(buf []byte) kernelFiles {
	return func(path string, max int) ([]byte, error) { return readGenuine(path, buf[:max]) }
}

func readGenuine(path string, buf []byte) ([]byte, error) {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return nil, err
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
	default:
		return nil, errNotKernel
	}
	// /proc/stat has a line for each CPU and a long one of interrupt counters,
	// megabytes on large machines, of which the first line is wanted.
	var n int
	if err := retry(func() (err error) { n, err = unix.Read(fd, buf); return }); err != nil {
		return nil, err
	}
	return buf[:n], nil
}
