// Package cputime measures how much of this machine a run of the lab used, and how much others used.
package cputime

import (
	"os"
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

// Own is the CPU time since the start of this program and of its children that have ended.
func (c Clock) Own() time.Duration { return own() - c.own }

// Others is the share of the machine's CPU time since the start that other programs used, 0 to 1. A
// child counts as another program until it has ended. The share is 0 if the kernel does not show it.
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

func own() time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}
