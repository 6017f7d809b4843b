// Package cputime measures how much of this machine a run of the lab used, and how much others used.
package cputime

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Clock measures from its start. The zero value is not usable; see Start.
type Clock struct {
	begun     time.Time
	busy, own time.Duration
}

// Start begins to measure.
func Start() Clock { return Clock{time.Now(), busy(), own()} }

// Wall is the time since the start.
func (c Clock) Wall() time.Duration { return time.Since(c.begun) }

// Own is the CPU time since the start of this program and of the programs that it has started.
func (c Clock) Own() time.Duration { return own() - c.own }

// Share is the share of the machine's CPU time since the start that this program and those that it has started used,
// 0 to 1.
func (c Clock) Share() float64 {
	return c.Own().Seconds() / (c.Wall().Seconds() * float64(runtime.NumCPU()))
}

// Others is the share of the machine's CPU time since the start that other programs used, 0 to 1. It is 0 if the kernel
// does not show it.
func (c Clock) Others() float64 {
	used := (busy() - c.busy) - c.Own()
	return max(0, used.Seconds()/(c.Wall().Seconds()*float64(runtime.NumCPU())))
}

// busy is the CPU time that all programs have used since the machine's start.
func busy() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return parseBusy(line)
}

// parseBusy reads the first line of /proc/stat: hundredths of a second of user,
// nice, system, idle, iowait, irq, softirq and steal (proc(5)).
func parseBusy(line string) time.Duration {
	var busy int64
	for i, word := range strings.Fields(line) {
		const idle, iowait, steal = 4, 5, 8
		if n, err := strconv.ParseInt(word, 10, 64); err == nil && i != idle && i != iowait && i <= steal {
			busy += n
		}
	}
	return time.Duration(busy) * 10 * time.Millisecond
}

// own is the CPU time of this program, of its children that have ended, and of its descendants that run.
func own() time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum + descendants(os.Getpid())
}

// descendants is the CPU time of the running descendants of a process, with their children that have ended.
func descendants(of int) (sum time.Duration) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	used, children := map[int]time.Duration{}, map[int][]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		if pid, parent, time, ok := parseStat(string(text)); ok {
			used[pid] = time
			children[parent] = append(children[parent], pid)
		}
	}
	for next := children[of]; len(next) > 0; {
		pid := next[0]
		sum += used[pid]
		next = append(next[1:], children[pid]...)
	}
	return sum
}

// parseStat reads /proc/PID/stat (proc(5)): the process, its parent, and the CPU time of both itself and its children
// that have ended. The name of the program may have spaces and parentheses.
func parseStat(text string) (pid, parent int, used time.Duration, ok bool) {
	const hundredth = 10 * time.Millisecond
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return 0, 0, 0, false
	}
	fields := strings.Fields(text[end+1:]) // from the third one, the state
	const ppid, utime, cstime = 1, 11, 14
	if len(fields) <= cstime {
		return 0, 0, 0, false
	}
	pid, errPID := strconv.Atoi(strings.TrimSpace(text[:open]))
	parent, errParent := strconv.Atoi(fields[ppid])
	for _, word := range fields[utime : cstime+1] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, 0, 0, false
		}
		used += time.Duration(n) * hundredth
	}
	return pid, parent, used, errPID == nil && errParent == nil
}
