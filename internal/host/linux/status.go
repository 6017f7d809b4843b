package linux

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Status is what /proc/PID/status tells of a process or thread.
type Status struct {
	Name    string
	Process int // Tgid: the process that a thread belongs to
	// CPUs and Mems are what it may use: affinity and memory nodes, cut to its cpuset.
	CPUs topology.CPUSet
	Mems topology.NodeSet
	// Locked memory (VmLck) still moves; Pinned memory (VmPin: vfio, RDMA) does not.
	Locked, Pinned topology.Bytes
}

// ParseStatus reads /proc/PID/status. Kernel threads have no memory rows.
func ParseStatus(r io.Reader) (Status, error) {
	var s Status
	var err error
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), longestLine)
	for lines.Scan() && err == nil {
		key, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			s.Name = value
		case "Tgid":
			s.Process, err = strconv.Atoi(value)
		case "Cpus_allowed_list":
			s.CPUs, err = topology.ParseSet[topology.CPUID](value)
		case "Mems_allowed_list":
			s.Mems, err = topology.ParseSet[topology.NodeID](value)
		case "VmLck":
			s.Locked, err = kibibytes(value)
		case "VmPin":
			s.Pinned, err = kibibytes(value)
		}
		if err != nil {
			return Status{}, fmt.Errorf("status: %s: %w", key, err)
		}
	}
	if err := lines.Err(); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	if s.CPUs.IsEmpty() {
		return Status{}, fmt.Errorf("status: no Cpus_allowed_list")
	}
	return s, nil
}

// kibibytes reads "1024 kB".
func kibibytes(text string) (topology.Bytes, error) {
	number, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(number, 10, 54)
	if err != nil || strings.TrimSpace(unit) != "kB" {
		return 0, fmt.Errorf("%q is not an amount in kB", abbreviate(text))
	}
	return topology.Bytes(n) * topology.KiB, nil
}

// Status reads /proc/ID/status of a process or thread.
func (r Root) Status(id int) (Status, error) {
	file, err := os.Open(r.proc(id, "status"))
	if err != nil {
		return Status{}, fmt.Errorf("reading the status of process %d: %w", id, err)
	}
	defer file.Close()
	s, err := ParseStatus(file)
	if err != nil {
		return Status{}, fmt.Errorf("process %d: %w", id, err)
	}
	return s, nil
}
