//go:build linux

package lock

import (
	"strings"
	"testing"
)

// The kernel's tables hold what peers chose: the names of mount points, pids
// of other namespaces.

func FuzzFlockOwner(f *testing.F) {
	f.Add("2: FLOCK  ADVISORY  WRITE 200 08:01:77 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 300 08:01:77 0 EOF\n", uint64(77))
	f.Fuzz(func(t *testing.T, table string, ino uint64) {
		if pid := flockOwner(table, ino); pid != 0 && !strings.Contains(table, "FLOCK") {
			t.Errorf("pid %d of %q", pid, table)
		}
	})
}

func FuzzWholeFS(f *testing.F) {
	f.Add("27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n", uint64(27))
	f.Add("512 480 0:41 /systemd-private/tmp /tmp rw shared:270 master:40 - tmpfs tmpfs rw\n", uint64(512))
	f.Fuzz(func(t *testing.T, table string, mount uint64) {
		// What is said of one mount is not changed by a line about another.
		other := "1" + strings.Repeat("0", 25) + " 1 0:1 /x /y rw - tmpfs tmpfs rw\n"
		if wholeFS(table, mount) != wholeFS(other+table, mount) {
			t.Errorf("%d in %q", mount, table)
		}
	})
}
