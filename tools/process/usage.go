package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// tick is the unit of CPU times in /proc: the kernel shows hundredths of a second to all programs (proc(5)).
const tick = 10 * time.Millisecond

// CPU returns the CPU time of a process and all its threads: /proc/PID/stat, fields 14 and 15.
func CPU(pid int) (time.Duration, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	used, err := parseStat(string(text))
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	return used, nil
}

func parseStat(text string) (time.Duration, error) {
	const user, system = 14 - 3, 15 - 3 // the first field after the name, which may have spaces, is the third
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= system {
		return 0, fmt.Errorf("it has %d fields", len(fields))
	}
	var sum time.Duration
	for _, f := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// Memory is what a process has in memory now (/proc/PID/status), and the most that it has had.
type Memory struct {
	Resident, Peak  topology.Bytes // VmRSS, VmHWM: with the pages of files
	Anonymous, File topology.Bytes // parts of Resident; the kernel can drop File
}

// MemoryOf returns the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return Memory{}, err
	}
	m, err := parseStatus(string(text))
	if err != nil {
		return m, fmt.Errorf("reading %s: %w", path, err)
	}
	return m, nil
}

func parseStatus(text string) (m Memory, err error) {
	into := map[string]*topology.Bytes{"VmRSS": &m.Resident, "VmHWM": &m.Peak, "RssAnon": &m.Anonymous,
		"RssFile": &m.File}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if to := into[name]; to != nil {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 54)
			if err != nil {
				return m, fmt.Errorf("%s: %w", name, err)
			}
			*to = topology.Bytes(kib) * topology.KiB
			delete(into, name)
		}
	}
	if len(into) > 0 {
		return m, fmt.Errorf("%d of its figures are missing", len(into))
	}
	return m, nil
}
