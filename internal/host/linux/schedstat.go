package linux

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// RunDelay is the total time that threads waited in the run queue of a CPU
// since boot (/proc/schedstat). The kernel counts a wait when it ends.
type RunDelay struct {
	CPU  topology.CPUID
	Wait time.Duration
}

// ErrSchedstatVersion means that /proc/schedstat has an unknown form.
var ErrSchedstatVersion = errors.New("unknown version of /proc/schedstat; 14 to 17 are known")

// Versions 14 to 17 differ in their lines for scheduling domains, not for CPUs.
const (
	oldestSchedstat = 14
	newestSchedstat = 17
	delayField      = 8 // of "cpuN": yields, 0, schedules, idle, wakeups, local ones, run time, run delay, slices
)

// AppendRunDelays reads /proc/schedstat and appends its CPUs to into, in the
// kernel's order. Kernels with CONFIG_SCHEDSTATS have the file; its figures do
// not need the sysctl kernel.sched_schedstats.
func AppendRunDelays(into []RunDelay, data []byte) ([]RunDelay, error) {
	line, data := nextLine(data)
	name, rest := nextField(line)
	version, _, ok := nextFigure(rest)
	if string(name) != "version" || !ok {
		return into, fmt.Errorf("/proc/schedstat begins with %q instead of its version", abbreviate(string(line)))
	}
	if version < oldestSchedstat || version > newestSchedstat {
		return into, fmt.Errorf("%w: found %d", ErrSchedstatVersion, version)
	}
	for len(data) > 0 {
		line, data = nextLine(data)
		name, rest := nextField(line)
		if !bytes.HasPrefix(name, []byte("cpu")) {
			continue // timestamp, domains
		}
		id, ok := digits(name[len("cpu"):])
		if !ok || id > maxCPU {
			return into, fmt.Errorf("/proc/schedstat: %q is not a CPU", abbreviate(string(name)))
		}
		var wait uint64
		for range delayField {
			if wait, rest, ok = nextFigure(rest); !ok {
				return into, fmt.Errorf("/proc/schedstat: CPU %d: %q has fewer than %d numbers", id,
					abbreviate(string(line)),
					delayField)
			}
		}
		into = append(into, RunDelay{topology.CPUID(id), time.Duration(min(wait, 1<<63-1))})
	}
	return into, nil
}
