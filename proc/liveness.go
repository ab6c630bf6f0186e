package proc

import (
	"errors"
	"math"
)

// ErrGone says that there is no such process: none has the pid, or the one
// that has it is a zombie.
var ErrGone = errors.New("no such process")

// Liveness is what can be said about a recorded process. The zero value,
// Unknown, claims nothing.
type Liveness uint8

const (
	// Unknown: the process cannot be seen from here.
	Unknown Liveness = iota
	// Running: some process has that pid and nothing contradicts it, but that
	// it is the recorded one cannot be proven. To be treated as alive.
	Running
	// Alive: the recorded process, proven.
	Alive
	// Gone: proven dead.
	Gone
)

func (l Liveness) String() string {
	switch l {
	case Unknown:
		return "unknown"
	case Running:
		return "running"
	case Alive:
		return "alive"
	case Gone:
		return "gone"
	}
	return "invalid"
}

// Identity tells one process from every other that ever ran on the machine, as
// far as whoever recorded it could see. A zero field was not recorded.
type Identity struct {
	// PID is the process (thread group) id in the pid namespace PIDNS.
	PID int `json:"pid"`
	// PIDNS is the inode of the recorder's pid namespace, that in which PID
	// means something. Without it PID is read as one of the reader's namespace,
	// so a recorder that does not know its own should not publish an identity.
	PIDNS uint64 `json:"pid_ns,omitempty"`
	// PIDFSIno is the inode number of the process's pidfd on pidfs: unique until
	// the machine restarts (Linux ≥ 6.9, fs/pidfs.c).
	PIDFSIno uint64 `json:"pidfs_ino,omitempty"`
	// Start is field 22 of /proc/PID/stat: clock ticks since boot, as seen from
	// the time namespace TimeNS.
	Start uint64 `json:"start,omitempty"`
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string `json:"boot_id,omitempty"`
	// TimeNS is the inode of the recorder's time namespace, which shifts Start
	// (fs/proc/array.c adds its boot time offset).
	TimeNS uint64 `json:"time_ns,omitempty"`
}

// InitialPIDNS is the inode of the pid namespace that the machine booted with
// (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const InitialPIDNS uint64 = 4026531836

// Vantage is the place from which this process looks at others. A zero field
// could not be read.
type Vantage struct {
	PIDNS, TimeNS uint64 // inodes of our namespaces
	BootID        string
	// ProcOurs: /proc is a procfs of our own pid namespace, so that a pid means
	// the same process there as in a system call.
	ProcOurs bool
}

// evidence is what the kernel said about one pid. Its zero value is a kernel
// that was asked nothing.
type evidence struct {
	pidfd  handle // pidfd_open
	exited answer // poll of the pidfd, made last
	ino    uint64 // the pidfd's inode, where that is an identity; else 0
	exists answer // kill(pid, 0), asked only where no pidfd was to be had
	start  uint64 // field 22 of /proc/PID/stat; 0: not readable
	corpse bool   // /proc/PID/stat says zombie, and that no other thread is left
}

type answer uint8

const (
	unasked answer = iota
	no
	yes
)

type handle uint8

const (
	untried   handle = iota
	had              // we have a pidfd
	noProcess        // there is no process of that pid
	refused          // it cannot be had, which says nothing about the process
)

// judge is the one place where it is decided whether a process lives. It reads
// only its arguments. The first row that applies decides:
//
//	pid namespace recorded and not ours              Unknown   first: a boot id can be bind-mounted over
//	boot id recorded and not ours                    Gone      before the inode, which restarts with the machine
//	not a pid at all                                 Unknown
//	pidfd_open: no such process                      Gone
//	pidfd readable: every thread has exited          Gone      a zombie is; a leader gone before its threads is not
//	pidfs inode on both sides, different             Gone
//	pidfs inode on both sides, equal                 Alive
//	kill(pid, 0): no such process                    Gone
//	/proc is not of our pid namespace                Running   its pids are not ours
//	zombie without other threads, by /proc           Gone      where no pidfd could say so
//	time namespace recorded and not ours             Running   a shifted boot time forges start times
//	start time unreadable, or none recorded          Running
//	start time differs                               Gone      a recycled pid
//	start time equal, pidfd still not readable       Alive
//	start time equal, no pidfd                       Running
//
// Two rows that say Alive say Running where the boot id is unknown on either
// side: numbers that restart at boot then prove nothing.
//
// With evidence still missing it answers Running until something settles the
// matter, which is how look knows when it may stop asking.
func judge(id Identity, here Vantage, e evidence) Liveness {
	proven := Running
	if id.BootID != "" && id.BootID == here.BootID {
		proven = Alive
	}
	switch {
	case id.PIDNS != 0 && id.PIDNS != here.PIDNS:
		return Unknown
	case id.BootID != "" && here.BootID != "" && id.BootID != here.BootID:
		return Gone
	case id.PID <= 0 || id.PID > math.MaxInt32:
		return Unknown
	case e.pidfd == noProcess:
		return Gone
	case e.exited == yes:
		return Gone
	case e.exited == no && id.PIDFSIno != 0 && e.ino != 0:
		if id.PIDFSIno != e.ino {
			return Gone
		}
		return proven
	case e.exists == no:
		return Gone
	case !here.ProcOurs:
		return Running
	case e.corpse:
		return Gone
	case id.TimeNS != 0 && id.TimeNS != here.TimeNS:
		return Running
	case e.start == 0 || id.Start == 0:
		return Running
	case e.start != id.Start:
		return Gone
	case e.pidfd == had && e.exited == no:
		return proven
	}
	return Running
}
