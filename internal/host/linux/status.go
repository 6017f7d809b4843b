package linux

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Status is the content of /proc/PID/status of a process or thread.
type Status struct {
	Name    string
	Process int // Tgid: the process of a thread
	// CPUs and Mems are the CPUs and nodes that it may use: affinity and memory
	// nodes, cut to its cpuset.
	CPUs topology.CPUSet
	Mems topology.NodeSet
	// Locked memory (VmLck) can move; Pinned memory (VmPin: vfio, RDMA) cannot.
	Locked, Pinned topology.Bytes
}

// ParseStatus reads /proc/PID/status. Kernel threads have no memory rows.
func ParseStatus(data []byte) (Status, error) {
	var s Status
	for line := range bytes.Lines(data) {
		key, rest, _ := bytes.Cut(line, []byte(":"))
		rest = bytes.TrimSpace(rest)
		var err error
		switch string(key) { // six of some sixty rows are needed: only those become strings
		case "Name":
			s.Name = string(rest)
		case "Tgid":
			s.Process, err = strconv.Atoi(string(rest))
		case "Cpus_allowed_list":
			s.CPUs, err = topology.ParseSet[topology.CPUID](string(rest))
		case "Mems_allowed_list":
			s.Mems, err = topology.ParseSet[topology.NodeID](string(rest))
		case "VmLck":
			s.Locked, err = kibibytes(string(rest))
		case "VmPin":
			s.Pinned, err = kibibytes(string(rest))
		}
		if err != nil {
			return Status{}, fmt.Errorf("status: %s: %w", key, err)
		}
	}
	if s.CPUs.IsEmpty() {
		return Status{}, errors.New("status: no Cpus_allowed_list")
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
	data, err := readFile(r.proc(id, "status"))
	if err != nil {
		return Status{}, fmt.Errorf("reading the status of process %d: %w", id, err)
	}
	s, err := ParseStatus(data)
	if err != nil {
		return Status{}, fmt.Errorf("process %d: %w", id, err)
	}
	return s, nil
}
