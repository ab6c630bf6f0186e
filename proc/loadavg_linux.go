package proc

import "io/fs"

// Runnable is how many threads of the whole machine run or want to run at this
// moment. The reader is one of them, so it is never below 1 on an honest kernel.
func Runnable() (int, error) {
	const path = "/proc/loadavg"
	b, err := readFile(path, 256)
	if err != nil {
		return 0, err
	}
	n, err := parseLoadavg(b)
	if err != nil {
		return 0, &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	return n, nil
}
