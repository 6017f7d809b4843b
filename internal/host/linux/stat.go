package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/numavisor/numavisor/internal/topology"
)

// Stat is the content of /proc/PID/stat of a process or thread.
type Stat struct {
	ID   int
	Name string // comm: at most 15 bytes, any byte but NUL
	// State is R running, S sleeping, D waiting for a device, T stopped, Z ended but not collected, ...
	State byte
	// StartTicks is when it started, in clock ticks since boot (field 22):
	// together with the ID it identifies a process even if the kernel reuses
	// the number.
	StartTicks uint64
	LastCPU    topology.CPUID // the CPU that it last ran on (field 39)
}

// Positions of fields behind the name in /proc/PID/stat, counted from the state.
const (
	statStart   = 22 - 3
	statLastCPU = 39 - 3
)

// ParseStat reads /proc/PID/stat. The name may contain spaces and parentheses,
// so it ends at the last parenthesis of the line.
func ParseStat(data []byte) (Stat, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return Stat{}, fmt.Errorf("stat: no name in parentheses in %q", abbreviate(string(data)))
	}
	s := Stat{Name: string(data[open+1 : end])}
	var err error
	if s.ID, err = strconv.Atoi(string(bytes.TrimSpace(data[:open]))); err != nil {
		return Stat{}, fmt.Errorf("stat: %q is not a process id", abbreviate(string(data[:open])))
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) <= statLastCPU || len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("stat: %d fields behind the name instead of at least %d", len(fields), statLastCPU+1)
	}
	s.State = fields[0][0]
	if s.StartTicks, err = strconv.ParseUint(string(fields[statStart]), 10, 64); err != nil {
		return Stat{}, fmt.Errorf("stat: start time %q is not a number", abbreviate(string(fields[statStart])))
	}
	cpu, err := strconv.ParseUint(string(fields[statLastCPU]), 10, 16)
	if err != nil {
		return Stat{}, fmt.Errorf("stat: last CPU %q is not a CPU", abbreviate(string(fields[statLastCPU])))
	}
	s.LastCPU = topology.CPUID(cpu)
	return s, nil
}

// ParseLastCPU reads from /proc/PID/stat only the CPU that the thread last ran
// on.
func ParseLastCPU(data []byte) (topology.CPUID, error) {
	rest := data[bytes.LastIndexByte(data, ')')+1:]
	var field []byte
	for range statLastCPU + 1 {
		field, rest = nextField(rest)
	}
	cpu, ok := digits(field)
	if !ok || cpu > maxCPU {
		return 0, fmt.Errorf("stat: last CPU %q is not a CPU", abbreviate(string(field)))
	}
	return topology.CPUID(cpu), nil
}

// Stat reads /proc/ID/stat of a process or thread.
func (r Root) Stat(id int) (Stat, error) {
	data, err := os.ReadFile(r.proc(id, "stat"))
	if err != nil {
		return Stat{}, fmt.Errorf("reading the state of process %d: %w", id, err)
	}
	s, err := ParseStat(data)
	if err != nil {
		return Stat{}, fmt.Errorf("process %d: %w", id, err)
	}
	return s, nil
}

// StartTicks returns when a process started, in clock ticks since boot. On the
// running host the error wraps unix.ESRCH if the process has ended, else ErrUnread.
func (r Root) StartTicks(pid int) (uint64, error) {
	s, err := r.Stat(pid)
	if r == Live {
		err = unreadOrGone(pid, err)
	}
	return s.StartTicks, err
}

// Alive reports whether the process with this id and start time still runs; a
// process that has ended and waits to be collected does not. A process of the
// running host that cannot be read counts as alive: only its end is final.
func (r Root) Alive(pid int, startTicks uint64) bool {
	s, err := r.Stat(pid)
	if r == Live && errors.Is(unreadOrGone(pid, err), ErrUnread) {
		return true
	}
	return err == nil && s.StartTicks == startTicks && s.State != 'Z' && s.State != 'X'
}
