package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// rest is what a holder, a waiter and a keeper cost while nothing happens.
func (b *bench) rest() error {
	row := "at rest"
	if !b.wanted(row) {
		return nil
	}
	holder := b.exclusive("sleep", "1000")
	if err := holder.Start(); err != nil {
		return err
	}
	defer stop(holder)
	if err := await(func() bool { return b.tickets() >= 0 }); err != nil {
		return err
	}
	waiter := b.exclusive("true")
	if err := waiter.Start(); err != nil {
		return err
	}
	defer stop(waiter)
	if err := await(func() bool { return b.tickets() >= 1 }); err != nil {
		return err
	}
	who := []struct {
		what string
		pid  int
	}{{"holder", holder.Process.Pid}, {"waiter", waiter.Process.Pid}}

	// The keeper's hold is in a directory of its own: this one is taken.
	apart := *b
	apart.lockDir += "-kept"
	if err := apart.command("acquire", "--reason", "bench", "--pid", strconv.Itoa(os.Getpid())).Run(); err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	defer func() { _ = apart.command("release", "--force").Run() }()
	if pid := keeper(apart.lockDir); pid > 0 {
		who = append(who, struct {
			what string
			pid  int
		}{"keeper", pid})
	}
	time.Sleep(time.Second)
	type state struct {
		switches int
		cpu      time.Duration
	}
	before := make([]state, len(who))
	for i, w := range who {
		before[i] = state{switches(w.pid), cpu(w.pid)}
	}
	time.Sleep(b.quiet)
	fmt.Printf("\n%-20s %22s %18s %14s %14s %14s\n", "at rest", "wake-ups a minute", "CPU s an hour", "resident", "of its own", "descriptors")
	for i, w := range who {
		minutes := b.quiet.Minutes()
		woken := float64(switches(w.pid)-before[i].switches) / minutes
		used := (cpu(w.pid) - before[i].cpu).Seconds() / b.quiet.Hours()
		total, own := resident(w.pid)
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.pid))
		if err != nil {
			return err
		}
		fmt.Printf("%-20s %22.1f %18.2f %10.2f MiB %10.2f MiB %14d   %s %s\n", "    "+w.what, woken, used, total, own, len(fds), verdict(woken, 1), verdict(total, 4))
	}
	return nil
}

// keeper is the body of the one ticket of a lock directory.
func keeper(dir string) int {
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(names) != 1 {
		return 0
	}
	text, _ := os.ReadFile(names[0])
	m := regexp.MustCompile(`"body":\{"pid":(\d+)`).FindSubmatch(text)
	if m == nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(m[1]))
	return pid
}

// switches adds up the context switches of all threads.
func switches(pid int) (n int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, m := range regexp.MustCompile(`ctxt_switches:\s*(\d+)`).FindAllSubmatch(text, -1) {
			v, _ := strconv.Atoi(string(m[1]))
			n += v
		}
	}
	return n
}

// cpu is what all threads have used, to the nanosecond (schedstat, in
// Documentation/scheduler/sched-stats.rst).
func cpu(pid int) (d time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			ns, _ := strconv.ParseInt(fields[0], 10, 64)
			d += time.Duration(ns)
		}
	}
	return d
}

// resident is in MiB: all, and what is not shared with the file that is run.
func resident(pid int) (all, own float64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	field := func(name string) float64 {
		m := regexp.MustCompile(name + `:\s*(\d+) kB`).FindSubmatch(text)
		if m == nil {
			return 0
		}
		kib, _ := strconv.ParseFloat(string(m[1]), 64)
		return kib / 1024
	}
	return field("VmRSS"), field("RssAnon")
}
