package linux

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// RunDelay is how long threads waited in the run queue of a CPU in all, since
// boot (/proc/schedstat). A wait is counted when it ends.
type RunDelay struct {
	CPU  topology.CPUID
	Wait time.Duration
}

// ErrSchedstatVersion means that /proc/schedstat has a form that is not known here.
var ErrSchedstatVersion = errors.New("unknown version of /proc/schedstat; 14 to 17 are known")

// Versions 14 to 17 differ in what they tell of scheduling domains, not of CPUs.
const (
	oldestSchedstat = 14
	newestSchedstat = 17
	delayField      = 8 // of "cpuN": yields, 0, schedules, idle, wakeups, local ones, run time, run delay, slices
)

// AppendRunDelays reads /proc/schedstat and appends its CPUs to into, in the
// kernel's order. The file is there in kernels with CONFIG_SCHEDSTATS; its
// figures do not need the sysctl kernel.sched_schedstats.
func AppendRunDelays(into []RunDelay, data []byte) ([]RunDelay, error) {
	line, data := nextLine(data)
	name, rest := nextField(line)
	version, _, ok := nextFigure(rest)
	if string(name) != "version" || !ok {
		return into, fmt.Errorf("/proc/schedstat begins with %q and not with its version", abbreviate(string(line)))
	}
	if version < oldestSchedstat || version > newestSchedstat {
		return into, fmt.Errorf("%w: it is %d", ErrSchedstatVersion, version)
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
				return into, fmt.Errorf("/proc/schedstat: CPU %d: %q has not %d numbers", id, abbreviate(string(line)),
					delayField)
			}
		}
		into = append(into, RunDelay{topology.CPUID(id), time.Duration(min(wait, 1<<63-1))})
	}
	return into, nil
}
