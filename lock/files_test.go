//go:build linux

package lock

import (
	"strings"
	"testing"
)

func TestEntryNames(t *testing.T) {
	for _, e := range []entry{{kindExclusive, 1}, {kindShared, 12345}, {kindJoined, maxSeq}} {
		for _, suffix := range []string{lockSuffix, recordSuffix} {
			if got, ok := parseEntry(e.name() + suffix); got != e || !ok {
				t.Errorf("%s: %v, %v", e.name()+suffix, got, ok)
			}
		}
	}
	for _, n := range []string{"", ".", "guard", "t.lock", "t00000000000000000000.lock", "t1.lock", "x00000000000000000001.lock", "t00000000000000000001",
		"t00000000000000000001.lock.lock", "t+0000000000000000001.lock", "t99999999999999999999.lock", "t04611686018427387904.lock", "T00000000000000000001.json", "t0000000000000000000١.json"} {
		if e, ok := parseEntry(n); ok {
			t.Errorf("%q is taken for %v", n, e)
		}
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add("t00000000000000000001.lock")
	f.Add("j04611686018427387903.json")
	f.Fuzz(func(t *testing.T, name string) {
		e, ok := parseEntry(name)
		if !ok {
			return
		}
		if name != e.name()+lockSuffix && name != e.name()+recordSuffix || e.seq == 0 || e.seq > maxSeq {
			t.Errorf("%q gave %v, whose name is %q", name, e, e.name())
		}
	})
}

func FuzzParseNote(f *testing.F) {
	f.Add([]byte(`{"takeover":"stale_pid","by":"` + anID + `","unseen":{"utc":"2026-01-01T00:00:00Z","boot_ns":5,"boot_id":"b","time_ns":1}}` + "\n    "))
	f.Add([]byte(`{"left":true}`))
	f.Add([]byte(`{"by":"../../x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := parseNote(b); n.By != "" && !hexID(n.By) || n.Takeover > Unverifiable {
			t.Errorf("%q gave %+v", b, n)
		}
	})
}

func FuzzGuardLine(f *testing.F) {
	f.Add([]byte("hostlock 1 00000000000000000042\n"))
	f.Add([]byte("hostlock 2 x y z"))
	f.Fuzz(func(t *testing.T, b []byte) {
		counter, _, damaged := parseGuard(b)
		if counter > maxSeq || damaged && counter != 0 || !damaged && !strings.HasPrefix(strings.TrimSpace(string(b)), "hostlock") {
			t.Errorf("%q gave %d, damaged %v", b, counter, damaged)
		}
	})
}

func TestParseGuard(t *testing.T) {
	for _, tt := range []struct {
		text    string
		counter uint64
		format  int
		damaged bool
	}{
		{"hostlock 1 00000000000000000042\n", 42, 1, false},
		{"", 0, 0, true},
		{"hostlock", 0, 0, true},
		{"hostlock 1", 0, 1, true},
		{"hostlock 1 x", 0, 1, true},
		{"hostlock 1 4611686018427387903", maxSeq, 1, false},
		{"hostlock 1 4611686018427387904", 0, 1, true},
		{"hostlock 1 42 42", 0, 1, true},
		{"hostlock one 42", 0, 0, true},
		{"hostlock 2 anything at all", 0, 2, true},
		{"otherlock 1 42", 0, 0, true},
	} {
		if c, f, d := parseGuard([]byte(tt.text)); c != tt.counter || f != tt.format || d != tt.damaged {
			t.Errorf("%q: %d, %d, %v", tt.text, c, f, d)
		}
	}
}

// Lines as kernels wrote them (proc_pid_mountinfo(5)).
func TestWholeFS(t *testing.T) {
	const table = `21 27 0:20 / /proc rw,nosuid shared:5 - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
96 27 0:41 / /tmp rw,nosuid,nodev shared:40 - tmpfs tmpfs rw,size=8G
512 480 0:41 /systemd-private-6f8a-ci.service-Xy/tmp /tmp rw,nosuid,nodev shared:270 master:40 - tmpfs tmpfs rw
61 1 0:30 /@ / rw,relatime shared:1 - btrfs /dev/sda2 rw,ssd,subvolid=256,subvol=/@
62 61 0:30 /@/srv/x /srv/x rw,relatime shared:1 - btrfs /dev/sda2 rw,ssd,subvolid=256,subvol=/@
700 690 8:1 /var/lib/docker/volumes/w/_data /w rw - ext4 /dev/sda1 rw
701 690 8:1 /a\040b /with\040space rw - ext4 /dev/sda1 rw
broken
`
	for mount, want := range map[uint64]bool{21: true, 27: true, 96: true, 512: false, 61: true, 62: false, 700: false, 701: false, 9999: true} {
		if got := wholeFS(table, mount); got != want {
			t.Errorf("mount %d: %v, want %v", mount, got, want)
		}
	}
}

// /proc/locks as a kernel wrote it (proc_locks(5)).
func TestFlockOwner(t *testing.T) {
	const table = `1: POSIX  ADVISORY  WRITE 100 08:01:77 0 EOF
2: FLOCK  ADVISORY  WRITE 200 08:01:77 0 EOF
2: -> FLOCK  ADVISORY  WRITE 300 08:01:77 0 EOF
3: -> FLOCK  ADVISORY  WRITE 400 08:01:88 0 EOF
4: FLOCK  ADVISORY  READ  500 08:01:99 0 EOF
5: FLOCK  ADVISORY  WRITE -1 08:01:55 0 EOF
6: FLOCK  ADVISORY  WRITE none 08:01:66 0 EOF
7: FLOCK  ADVISORY  WRITE 700
`
	for ino, want := range map[uint64]int{77: 200, 88: 0, 99: 500, 7: 0, 55: -1, 66: 0} {
		if got := flockOwner(table, ino); got != want {
			t.Errorf("inode %d: %d, want %d", ino, got, want)
		}
	}
}
