package linux

import (
	"bytes"
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
)

// CPUTime is the time that one CPU has spent since boot (/proc/stat), in clock
// ticks. On some kernels these figures run slightly backwards.
type CPUTime struct {
	CPU topology.CPUID
	// Busy is all time that is not idle, including time that a hypervisor below
	// this host stole; All is Busy and idle time.
	Busy, All uint64
}

// Fields of a CPU's line in /proc/stat. User time already includes guests'
// time.
const (
	cpuIdle   = 3
	cpuIOWait = 4
	cpuFields = 8 // user nice system idle iowait irq softirq steal
)

// AppendCPUTimes reads /proc/stat and appends the online CPUs to into, in the
// kernel's order.
func AppendCPUTimes(into []CPUTime, data []byte) ([]CPUTime, error) {
	for len(data) > 0 {
		var line []byte
		line, data = nextLine(data)
		name, rest := nextField(line)
		if !bytes.HasPrefix(name, []byte("cpu")) {
			return into, nil // the CPUs come first, followed by much else
		}
		if len(name) == len("cpu") {
			continue // their sum
		}
		id, ok := digits(name[len("cpu"):])
		if !ok || id > maxCPU {
			return into, fmt.Errorf("/proc/stat: %q is not a CPU", abbreviate(string(name)))
		}
		t := CPUTime{CPU: topology.CPUID(id)}
		for i := range cpuFields {
			ticks, after, ok := nextFigure(rest)
			if !ok {
				return into, fmt.Errorf("/proc/stat: CPU %d: field %d of %q is not a number of ticks", id, i+1,
					abbreviate(string(line)))
			}
			rest = after
			t.All += ticks
			if i != cpuIdle && i != cpuIOWait {
				t.Busy += ticks
			}
		}
		into = append(into, t)
	}
	return into, nil
}

// maxCPU bounds CPU numbers of foreign text, as topology.ParseSet does.
const maxCPU = 1<<16 - 1
