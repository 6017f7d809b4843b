package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// HintFaults returns the figures of kernel balancing about a process: the sum over its threads that have not ended
// (/proc/PID/task/TID/sched: sched_show_numa in kernel/sched/debug.c). A kernel without CONFIG_SCHED_DEBUG has no such
// file: the error then wraps fs.ErrNotExist.
func (r Root) HintFaults(pid int) (inventory.HintFaults, error) {
	all := inventory.HintFaults{Memory: topology.MemoryByNode{}}
	tids, err := numberedEntries(r.proc(pid, "task"))
	if err != nil {
		return all, fmt.Errorf("listing the threads of process %d: %w", pid, err)
	}
	read := 0
	for _, tid := range tids {
		f, err := r.hintFaultsOf(pid, tid)
		if Gone(err) {
			continue
		}
		if err != nil {
			return all, fmt.Errorf("hinting faults of thread %d of process %d: %w", tid, pid, err)
		}
		read++
		all.Passes = max(all.Passes, f.Passes) // one for all: it belongs to the memory of the process
		for node, bytes := range f.Memory {
			all.Memory[node] += bytes
		}
	}
	if read == 0 {
		return all, fmt.Errorf("reading hinting faults of process %d: %w", pid, os.ErrNotExist)
	}
	return all, nil
}

func (r Root) hintFaultsOf(pid, tid int) (inventory.HintFaults, error) {
	data, err := readFile(r.proc(pid, "task", strconv.Itoa(tid), "sched"))
	if err != nil {
		return inventory.HintFaults{}, err
	}
	return ParseHintFaults(data)
}

// ParseHintFaults reads the figures of kernel balancing in /proc/PID/task/TID/sched. The kernel was built without
// CONFIG_NUMA_BALANCING if the file has none: that is an error.
func ParseHintFaults(data []byte) (inventory.HintFaults, error) {
	f, found := inventory.HintFaults{Memory: topology.MemoryByNode{}}, false
	for len(data) > 0 {
		var line []byte
		line, data = nextLine(data)
		name, rest := nextField(line)
		switch string(name) {
		case "mm->numa_scan_seq":
			colon, rest := nextField(rest)
			passes, _, ok := nextFigure(rest)
			if string(colon) != ":" || !ok {
				return f, fmt.Errorf("sched: %q has no number", abbreviate(string(line)))
			}
			f.Passes, found = passes, true
		case "numa_faults":
			node, pages, err := faultsOfNode(rest)
			if err != nil {
				return f, fmt.Errorf("sched: %q: %w", abbreviate(string(line)), err)
			}
			if pages > 0 {
				f.Memory[node] += topology.Bytes(min(pages, maxPages)) * smallPage
			}
		}
	}
	if !found {
		return f, errors.New("sched: no line mm->numa_scan_seq: the kernel has no NUMA balancing")
	}
	return f, nil
}

// maxPages limits the pages of foreign text: 2^38 pages of 4 KiB are a petabyte.
const maxPages = 1 << 38

// faultsOfNode reads the rest of a line "numa_faults node=1 task_private=8 task_shared=0 group_private=0 ...", and
// returns the pages that the thread itself touched.
func faultsOfNode(rest []byte) (node topology.NodeID, pages uint64, err error) {
	seen := false
	for field, rest := nextField(rest); len(field) > 0; field, rest = nextField(rest) {
		name, value, _ := bytes.Cut(field, []byte("="))
		n, ok := digits(value)
		switch string(name) {
		case "node":
			if !ok || n > 1<<16-1 {
				return 0, 0, fmt.Errorf("%q is not a node", abbreviate(string(value)))
			}
			node, seen = topology.NodeID(n), true
		case "task_private", "task_shared":
			if !ok {
				return 0, 0, fmt.Errorf("%s: %q is not a number", name, abbreviate(string(value)))
			}
			pages += min(n, maxPages)
		}
	}
	if !seen {
		return 0, 0, errors.New("no node")
	}
	return node, pages, nil
}
