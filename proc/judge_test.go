package proc

import "testing"

// The table of judge, row by row.
func TestJudge(t *testing.T) {
	const boot, otherBoot = "8b2300ee-5525-4fc8-b6f3-36a22fbdd712", "0c39c0e5-0d53-4c07-9d6b-2f3e1d2f8a11"
	whole := Identity{PID: 42, PIDNS: 1, PIDFSIno: 7, Start: 1000, BootID: boot, TimeNS: 2}
	here := Vantage{PIDNS: 1, TimeNS: 2, BootID: boot, ProcOurs: true}
	lives := evidence{pidfd: had, exited: no, ino: 7, start: 1000}

	type change struct {
		id   func(*Identity)
		here func(*Vantage)
		e    func(*evidence)
	}
	noIno := func(e *evidence) { e.ino = 0 }
	oldKernel := func(e *evidence) { *e = evidence{pidfd: refused, exists: yes, start: 1000} }
	tests := []struct {
		name string
		change
		want Liveness
	}{
		{"everything agrees", change{}, Alive},

		{"other pid namespace", change{id: func(id *Identity) { id.PIDNS = 9 }}, Unknown},
		{"other pid namespace and other boot id", change{id: func(id *Identity) { id.PIDNS, id.BootID = 9, otherBoot }}, Unknown},
		{"other pid namespace and no such pid here", change{id: func(id *Identity) { id.PIDNS = 9 }, e: func(e *evidence) { *e = evidence{pidfd: noProcess} }}, Unknown},
		{"our own pid namespace not known", change{here: func(v *Vantage) { v.PIDNS = 0 }, e: func(e *evidence) { *e = evidence{pidfd: noProcess} }}, Unknown},
		{"no pid namespace recorded", change{id: func(id *Identity) { id.PIDNS = 0 }}, Alive},

		{"other boot id, all else equal", change{id: func(id *Identity) { id.BootID = otherBoot }}, Gone},
		{"no boot id recorded, inode equal", change{id: func(id *Identity) { id.BootID = "" }}, Running},
		{"no boot id recorded, start time equal", change{id: func(id *Identity) { id.BootID = "" }, e: noIno}, Running},
		{"our boot id not readable", change{here: func(v *Vantage) { v.BootID = "" }}, Running},

		{"pid 0", change{id: func(id *Identity) { id.PID = 0 }, e: func(e *evidence) { e.pidfd = noProcess }}, Unknown},
		{"pid -1", change{id: func(id *Identity) { id.PID = -1 }, e: func(e *evidence) { e.pidfd = noProcess }}, Unknown},
		{"pid beyond int32", change{id: func(id *Identity) { id.PID = 1<<32 + 42 }}, Unknown},
		{"pid 0 of another boot", change{id: func(id *Identity) { id.PID, id.BootID = 0, otherBoot }}, Gone},

		{"no such process", change{e: func(e *evidence) { *e = evidence{pidfd: noProcess} }}, Gone},
		{"no such process, nothing recorded but the pid", change{id: func(id *Identity) { *id = Identity{PID: 42} }, e: func(e *evidence) { *e = evidence{pidfd: noProcess} }}, Gone},

		{"every thread has exited", change{e: func(e *evidence) { e.exited = yes }}, Gone},
		{"every thread has exited, nothing recorded but the pid", change{id: func(id *Identity) { *id = Identity{PID: 42} }, e: func(e *evidence) { e.exited = yes }}, Gone},
		{"leader zombie, threads run", change{e: func(e *evidence) { e.corpse = false }}, Alive},

		{"inode differs, start time equal", change{e: func(e *evidence) { e.ino = 8 }}, Gone},
		{"inode equal, start time differs", change{e: func(e *evidence) { e.start = 1001 }}, Alive},
		{"inode equal, /proc foreign, time shifted", change{here: func(v *Vantage) { v.ProcOurs, v.TimeNS = false, 3 }, e: func(e *evidence) { e.start = 0 }}, Alive},
		{"inode equal, poll failed", change{e: func(e *evidence) { e.exited = unasked }}, Running},

		{"/proc foreign", change{here: func(v *Vantage) { v.ProcOurs = false }, e: func(e *evidence) { e.ino, e.start = 0, 1 }}, Running},
		{"time namespace differs", change{here: func(v *Vantage) { v.TimeNS = 3 }, e: func(e *evidence) { e.ino, e.start = 0, 1 }}, Running},
		{"our time namespace not readable", change{here: func(v *Vantage) { v.TimeNS = 0 }, e: func(e *evidence) { e.ino, e.start = 0, 1 }}, Running},
		{"no time namespace recorded", change{id: func(id *Identity) { id.TimeNS = 0 }, e: noIno}, Alive},
		{"start time unreadable", change{e: func(e *evidence) { e.ino, e.start = 0, 0 }}, Running},
		{"no start time recorded", change{id: func(id *Identity) { id.Start = 0 }, e: noIno}, Running},
		{"start time differs", change{e: func(e *evidence) { e.ino, e.start = 0, 1001 }}, Gone},
		{"start time differs, no inode recorded", change{id: func(id *Identity) { id.PIDFSIno = 0 }, e: func(e *evidence) { e.start = 1001 }}, Gone},
		{"start time equal", change{e: noIno}, Alive},
		{"start time equal, no inode recorded", change{id: func(id *Identity) { id.PIDFSIno = 0 }}, Alive},
		{"start time equal, poll failed", change{e: func(e *evidence) { e.ino, e.exited = 0, unasked }}, Running},

		{"no pidfd, start time equal", change{e: oldKernel}, Running},
		{"no pidfd, start time differs", change{e: func(e *evidence) { oldKernel(e); e.start = 1001 }}, Gone},
		{"no pidfd, start time unreadable", change{e: func(e *evidence) { oldKernel(e); e.start = 0 }}, Running},
		{"no pidfd, no such process", change{e: func(e *evidence) { *e = evidence{pidfd: refused, exists: no} }}, Gone},
		{"no pidfd, no answer at all", change{e: func(e *evidence) { *e = evidence{pidfd: refused} }}, Running},
		{"no pidfd, zombie", change{e: func(e *evidence) { oldKernel(e); e.corpse = true }}, Gone},
		{"no pidfd, zombie, nothing recorded but the pid", change{id: func(id *Identity) { *id = Identity{PID: 42} }, e: func(e *evidence) { oldKernel(e); e.corpse = true }}, Gone},
		{"no pidfd, zombie of a foreign /proc", change{here: func(v *Vantage) { v.ProcOurs = false }, e: func(e *evidence) { oldKernel(e); e.corpse = true }}, Running},
		{"no pidfd, shifted time", change{here: func(v *Vantage) { v.TimeNS = 3 }, e: func(e *evidence) { oldKernel(e); e.start = 1001 }}, Running},

		{"nothing asked yet", change{e: func(e *evidence) { *e = evidence{} }}, Running},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, v, e := whole, here, lives
			if tt.id != nil {
				tt.id(&id)
			}
			if tt.here != nil {
				tt.here(&v)
			}
			if tt.e != nil {
				tt.e(&e)
			}
			if got := judge(id, v, e); got != tt.want {
				t.Errorf("judge(%+v,\n%+v,\n%+v) = %v, want %v", id, v, e, got, tt.want)
			}
		})
	}
}
