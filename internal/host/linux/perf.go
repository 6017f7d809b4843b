package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NodeEvent is one of the kernel's generic events for accesses to memory by node.
type NodeEvent uint64

// Events for loads that a processor's caches did not answer.
const (
	NodeLoads NodeEvent = unix.PERF_COUNT_HW_CACHE_NODE | unix.PERF_COUNT_HW_CACHE_OP_READ<<8 |
		unix.PERF_COUNT_HW_CACHE_RESULT_ACCESS<<16
	NodeLoadMisses NodeEvent = unix.PERF_COUNT_HW_CACHE_NODE | unix.PERF_COUNT_HW_CACHE_OP_READ<<8 |
		unix.PERF_COUNT_HW_CACHE_RESULT_MISS<<16
)

// String returns perf's name for the event.
func (e NodeEvent) String() string {
	if e == NodeLoads {
		return "node-loads"
	}
	return "node-load-misses"
}

// PerfCount is what a processor counter has counted since it was opened.
type PerfCount struct {
	Value uint64
	// The counter was requested for Enabled and had a place in the processor
	// for Running: less than Enabled where several counters take turns.
	Enabled, Running time.Duration
}

// Since scales the count between an earlier reading and this one to the
// requested time; 0 where the counter never had a place or ran backwards.
func (c PerfCount) Since(before PerfCount) float64 {
	value, enabled, running := c.Value-min(c.Value, before.Value), c.Enabled-before.Enabled, c.Running-before.Running
	if enabled <= 0 || running <= 0 {
		return 0
	}
	return float64(value) * max(1, float64(enabled)/float64(running))
}

// OpenNodeEvent opens a counter of one event for one thread, on every CPU,
// guest mode included: a vCPU thread spends most of its time in guest mode.
func OpenNodeEvent(tid int, e NodeEvent) (*PerfCounter, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_HW_CACHE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: uint64(e),
		Read_format: unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING,
	}
	const anyCPU, noGroup = -1, -1
	fd, err := unix.PerfEventOpen(&attr, tid, anyCPU, noGroup, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, &PerfError{e, tid, err}
	}
	return &PerfCounter{fd}, nil
}

// PerfCounter is an open counter.
type PerfCounter struct{ fd int }

// Read returns the count so far.
func (c *PerfCounter) Read() (PerfCount, error) {
	var data [24]byte
	n, err := unix.Read(c.fd, data[:])
	if err != nil {
		return PerfCount{}, fmt.Errorf("reading a processor counter: %w", err)
	}
	return parsePerfCount(data[:n])
}

func parsePerfCount(data []byte) (PerfCount, error) {
	if len(data) < 24 { // the kernel returns 0 bytes for a counter in error state
		return PerfCount{}, fmt.Errorf("a processor counter returned %d bytes instead of 24 (its value and times)",
			len(data))
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(data[8*i:]) }
	return PerfCount{word(0), time.Duration(min(word(1), 1<<63-1)), time.Duration(min(word(2), 1<<63-1))}, nil
}

// Close closes the counter.
func (c *PerfCounter) Close() { closeRead(c.fd) }

// PerfError says why a counter could not be opened.
type PerfError struct {
	Event NodeEvent
	TID   int
	Err   error
}

func (e *PerfError) Unwrap() error { return e.Err }

func (e *PerfError) Error() string {
	text := fmt.Sprintf("counting %v of thread %d: %v", e.Event, e.TID, e.Err)
	switch {
	case errors.Is(e.Err, unix.ENOENT):
		text += ": the processor or the kernel has no such event"
	case errors.Is(e.Err, unix.EACCES), errors.Is(e.Err, unix.EPERM):
		text += "; run as root, or give CAP_PERFMON"
	case errors.Is(e.Err, unix.EOPNOTSUPP), errors.Is(e.Err, unix.ENODEV), errors.Is(e.Err, unix.ENOSYS):
		text += ": no performance counters are available here (a virtual machine), or VMs own them " +
			"(mediated vPMU)"
	case errors.Is(e.Err, unix.EMFILE):
		text += "; raise the number of open files (LimitNOFILE)"
	}
	return text
}

// ErrNodeLoadsMeaning means that Numavisor does not know what the event counts
// on this processor.
var ErrNodeLoadsMeaning = errors.New("the meaning of node-loads is known for Intel and AMD processors only")

// NodeLoadsAreLocal reports whether the event node-loads excludes the loads
// that node-load-misses counts. The kernel's tables differ by processor
// (arch/x86/events): on Intel's up to Ivy Bridge and on AMD's node-loads are
// all loads from memory, on Intel's from Haswell on only those from local
// memory.
func (r Root) NodeLoadsAreLocal() (bool, error) {
	data, err := os.ReadFile(r.path("proc/cpuinfo"))
	if err != nil {
		return false, fmt.Errorf("reading the processor model: %w", err)
	}
	return parseNodeLoadsAreLocal(string(data))
}

// anyNodeLoads are Intel's models (of family 6) whose node-loads are all loads:
// Nehalem, Westmere, Sandy Bridge, Ivy Bridge.
var anyNodeLoads = []string{"26", "30", "31", "46", "37", "44", "47", "42", "45", "58", "62"}

func parseNodeLoadsAreLocal(cpuinfo string) (bool, error) {
	first := map[string]string{}
	for line := range strings.Lines(cpuinfo) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			break // the next CPU
		}
		first[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	switch first["vendor_id"] {
	case "GenuineIntel":
		return !slices.Contains(anyNodeLoads, first["model"]), nil
	case "AuthenticAMD", "HygonGenuine":
		return false, nil
	}
	return false, ErrNodeLoadsMeaning
}
