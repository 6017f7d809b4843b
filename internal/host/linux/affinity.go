package linux

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// SetAffinity restricts one thread to CPUs (sched_setaffinity(2)) and reads the
// result back. The kernel cuts the set to the thread's cpuset without an error;
// if a different set remains, SetAffinity returns a NotEffectiveError. CPU ids
// beyond 1023, where cpu_set_t ends, are allowed.
func SetAffinity(tid int, cpus topology.CPUSet) error {
	if cpus.IsEmpty() {
		return fmt.Errorf("affinity of thread %d: no CPU given", tid)
	}
	if err := unix.SchedSetaffinityDynamic(tid, cpuMask(cpus)); err != nil {
		hint := ""
		switch {
		case errors.Is(err, unix.EINVAL):
			hint = "; none of these CPUs is online and in the thread's cpuset"
		case errors.Is(err, unix.EPERM):
			hint = "; run as root"
		}
		return fmt.Errorf("binding thread %d to CPUs %s: %w%s", tid, cpus, err, hint)
	}
	got, err := Affinity(tid)
	if err != nil {
		return err
	}
	if !got.Equal(cpus) {
		return fmt.Errorf(
			"binding thread %d: %w",
			tid,
			&NotEffectiveError{
				Cgroup:    "of the thread",
				File:      "affinity",
				Wanted:    cpus.String(),
				Effective: got.String(),
			},
		)
	}
	return nil
}

// Affinity returns the CPUs a thread may run on (sched_getaffinity(2)).
func Affinity(tid int) (topology.CPUSet, error) {
	for size := 1024; ; size *= 2 {
		mask := unix.NewCPUSet(size)
		err := unix.SchedGetaffinityDynamic(tid, mask)
		if errors.Is(err, unix.EINVAL) && size < 1<<16 {
			continue // the kernel's mask is larger
		}
		if err != nil {
			return topology.CPUSet{}, fmt.Errorf("reading the affinity of thread %d: %w", tid, err)
		}
		var ids []topology.CPUID
		for id := range size {
			if mask.IsSet(id) {
				ids = append(ids, topology.CPUID(id))
			}
		}
		return topology.SetOf(ids...), nil
	}
}

// cpuMask is a set as the kernel's bit mask, as long as its highest CPU needs.
func cpuMask(cpus topology.CPUSet) unix.CPUSetDynamic {
	ids := cpus.IDs()
	mask := unix.NewCPUSet(int(ids[len(ids)-1]) + 1)
	for _, id := range ids {
		mask.Set(int(id))
	}
	return mask
}
