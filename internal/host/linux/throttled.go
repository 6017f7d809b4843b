package linux

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Throttled returns cpu.stat of those groups of a VM that have a quota of CPU
// time (cpu.max), which ParseThrottled reads: its own group and those of its
// vCPUs. It returns none where the VM has no group of its own, or no quota.
func (k *FileCache) Throttled(pid int) ([]*CachedFile, error) {
	group, ok, err := k.root.GuestCgroupOf(pid)
	if errors.Is(err, ErrNoCgroupV2) || err == nil && !ok {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []*CachedFile
	for _, g := range slices.Concat([]Cgroup{group.Top}, inOrder(group.VCPUs)) {
		limit, err := g.read("cpu.max")
		if Gone(err) {
			continue // the cpu controller is not enabled there
		}
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(limit, []byte("max")) {
			files = append(files, k.at(g.file("cpu.stat")))
		}
	}
	return files, nil
}

// Throttled returns how long the quota of CPU time has held back the groups of
// a VM's process since they were made: the sum over the VM's own group and
// those of its vCPUs. 0 for a process without a VM's group.
func (r Root) Throttled(pid int) (time.Duration, error) {
	group, ok, err := r.GuestCgroupOf(pid)
	if errors.Is(err, ErrNoCgroupV2) || err == nil && !ok {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var total time.Duration
	for _, g := range slices.Concat([]Cgroup{group.Top}, inOrder(group.VCPUs)) {
		data, err := g.read("cpu.stat")
		if Gone(err) {
			continue // the cpu controller is not enabled there
		}
		if err != nil {
			return 0, err
		}
		micros, err := ParseThrottled(data)
		if err != nil {
			return 0, err
		}
		total += time.Duration(min(micros, uint64(maxMicros))) * time.Microsecond
	}
	return total, nil
}

// ParseThrottled reads from cpu.stat for how many microseconds the quota has
// held back the group's tasks since the group was made. The kernel also counts
// that time as waiting for a CPU (schedstat), though no other CPU would help.
func ParseThrottled(data []byte) (micros uint64, err error) {
	_, rest, found := bytes.Cut(data, []byte("throttled_usec "))
	if !found {
		return 0, nil // no quota has ever been in force
	}
	micros, _, ok := nextFigure(rest)
	if !ok {
		return 0, fmt.Errorf("cpu.stat: throttled_usec: %q is not a number", abbreviate(string(rest)))
	}
	return micros, nil
}
