package local

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// OwnCost returns the CPU time that this process and the programs that it ran have used, and its
// resident memory; a figure that cannot be read is 0.
func OwnCost() (s status.Self) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil {
			s.CPU += time.Duration(used.Utime.Nano() + used.Stime.Nano())
		}
	}
	data, err := os.ReadFile("/proc/self/statm")
	if fields := bytes.Fields(data); err == nil && len(fields) > 1 {
		pages, _ := strconv.ParseUint(string(fields[1]), 10, 64)
		s.Resident = topology.Bytes(pages * uint64(os.Getpagesize()))
	}
	return s
}
