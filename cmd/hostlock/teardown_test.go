//go:build linux

package main

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/org/hostlock-action/proc"
)

func TestPlanFor(t *testing.T) {
	for _, tc := range []struct {
		name      string
		inJob     bool
		killAfter time.Duration
		want      plan
	}{
		{"by hand nothing escalates", false, 0, plan{}},
		{"by hand on request", false, 9 * time.Second, plan{kill: 9 * time.Second}},
		{"in a job", true, 0, plan{5 * time.Second, 7 * time.Second}},
		{"in a job, sooner", true, 6 * time.Second, plan{5 * time.Second, 6 * time.Second}},
		{"in a job, before the TERM", true, 3 * time.Second, plan{0, 3 * time.Second}},
		{"in a job, later than the runner waits", true, time.Minute, plan{5 * time.Second, 7 * time.Second}},
	} {
		if got := planFor(tc.inJob, tc.killAfter); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestPlanNext(t *testing.T) {
	const linger = 2 * time.Second
	var (
		byHand = plan{}
		inJob  = plan{5 * time.Second, 7 * time.Second}
		killer = plan{kill: 3 * time.Second}
	)
	for _, tc := range []struct {
		name string
		plan plan
		scene
		do    move
		limit time.Duration
	}{
		{"it runs", inJob, scene{}, sleep, 0},
		{"it has ended, alone", inJob, scene{ended: true}, finish, 0},
		{"it has ended, just now", inJob, scene{ended: true, family: true}, sleep, linger},
		{"it has ended, a while ago", inJob, scene{ended: true, family: true, sinceEnd: time.Second}, sleep, time.Second},
		{"the linger is over", inJob, scene{ended: true, family: true, sinceEnd: linger}, leave, 0},
		{"a signal cuts the linger", inJob, scene{ended: true, family: true, hurried: true}, leave, 0},
		{"by hand it may take its time", byHand, scene{asked: true, sinceAsked: time.Hour}, sleep, 0},
		{"by hand what it leaves is left", byHand, scene{asked: true, sinceAsked: time.Hour, ended: true, family: true, sinceEnd: linger}, leave, 0},
		{"asked just now", inJob, scene{asked: true}, sleep, 5 * time.Second},
		{"time for the second word", inJob, scene{asked: true, sinceAsked: 5 * time.Second}, sendTerm, 0},
		{"after the second word", inJob, scene{asked: true, sinceAsked: 6 * time.Second, termed: true}, sleep, time.Second},
		{"time to kill", inJob, scene{asked: true, sinceAsked: 7 * time.Second, termed: true}, sendKill, rekill},
		{"time to kill, having slept through the rest", inJob, scene{asked: true, sinceAsked: time.Minute}, sendKill, rekill},
		{"gone at the first word, its benchmark is not", inJob, scene{asked: true, sinceAsked: time.Second, ended: true, family: true}, sleep, 4 * time.Second},
		{"no linger holds up a kill", inJob, scene{asked: true, sinceAsked: 7 * time.Second, ended: true, family: true, sinceEnd: 5 * time.Second, termed: true}, sendKill, rekill},
		{"all killed", inJob, scene{asked: true, sinceAsked: 8 * time.Second, ended: true}, finish, 0},
		{"another user's, not to be killed", inJob, scene{asked: true, sinceAsked: 10 * time.Second, ended: true, family: true, sinceEnd: linger, beyond: true}, leave, 0},
		{"but never while the command runs", inJob, scene{asked: true, sinceAsked: time.Hour, beyond: true}, sendKill, rekill},
		{"kill-after: no second word", killer, scene{asked: true, sinceAsked: 2 * time.Second}, sleep, time.Second},
		{"kill-after: over", killer, scene{asked: true, sinceAsked: 3 * time.Second}, sendKill, rekill},
	} {
		if do, limit := tc.plan.next(tc.scene, linger); do != tc.do || limit != tc.limit {
			t.Errorf("%s: %d, %s; want %d, %s", tc.name, do, limit, tc.do, tc.limit)
		}
	}
}

func TestHasItAlready(t *testing.T) {
	us := proc.Process{PID: 10, PGRP: 10, TTYNR: 34816, TPGID: 10}
	child := proc.Process{PID: 11, PGRP: 10}
	background := us
	background.TPGID = 5
	noTerminal := us
	noTerminal.TTYNR, noTerminal.TPGID = 0, -1
	own := child
	own.PGRP = 11
	for _, tc := range []struct {
		name   string
		signal unix.Signal
		us, it proc.Process
		want   bool
	}{
		{"^C in the foreground", unix.SIGINT, us, child, true},
		{"^\\ in the foreground", unix.SIGQUIT, us, child, true},
		{"TERM in the foreground", unix.SIGTERM, us, child, false},
		{"HUP in the foreground", unix.SIGHUP, us, child, false},
		{"in the background", unix.SIGINT, background, child, false},
		{"no terminal", unix.SIGINT, noTerminal, child, false},
		{"a command that left for a group of its own", unix.SIGINT, us, own, false},
	} {
		if got := hasItAlready(tc.signal, tc.us, tc.it); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

func TestRelated(t *testing.T) {
	// 1 is ourselves; 2 was there before, 3 is the command; 6 is an orphan of
	// the command's, 7 of the other's; 8 is below an orphan.
	below := []proc.Process{{PID: 2, PPID: 1}, {PID: 3, PPID: 1}, {PID: 4, PPID: 2}, {PID: 5, PPID: 3}, {PID: 6, PPID: 1}, {PID: 7, PPID: 1}, {PID: 8, PPID: 6}}
	foreign := func(p proc.Process) bool { return p.PID == 2 }
	// 4 carries the hold's id and is below a foreign process all the same.
	marked := func(p proc.Process) bool { return p.PID == 3 || p.PID == 4 || p.PID == 6 }
	var got []int
	for _, p := range related(1, below, foreign, marked) {
		got = append(got, p.PID)
	}
	want := []int{3, 5, 6, 8}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, tc := range []struct {
		ws   unix.WaitStatus
		want int
	}{{0, 0}, {1 << 8, 1}, {255 << 8, 255}, {9, 137}, {unix.WaitStatus(unix.SIGSEGV) | 0x80, 139}} {
		if got := exitStatus(tc.ws); got != tc.want {
			t.Errorf("%#x: %d, want %d", tc.ws, got, tc.want)
		}
	}
}
