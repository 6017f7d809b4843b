package main

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// ownCost is what this process has taken so far; figures that cannot be had stay 0.
func ownCost() (s status.Self) {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
		s.CPU = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	data, err := os.ReadFile("/proc/self/statm")
	if fields := bytes.Fields(data); err == nil && len(fields) > 1 {
		pages, _ := strconv.ParseUint(string(fields[1]), 10, 64)
		s.Resident = topology.Bytes(pages * uint64(os.Getpagesize()))
	}
	return s
}
