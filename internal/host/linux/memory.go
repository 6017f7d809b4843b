package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Memory returns a guest's memory per node and names the source: the figures of
// its cgroup if libvirt gave it a cgroup of its own and these count all its
// memory, else numa_maps. The cgroup costs the same for every size of guest.
func (r Root) Memory(g inventory.Guest) (byNode topology.MemoryByNode, source string, err error) {
	if countedByCgroup(g.Config) {
		top, ok, err := r.guestTopOf(g.PID)
		if err == nil && ok {
			byNode, source, err = top.Resident()
			if err == nil && (!usesHugePages(g.Config) || top.countsHugePages(g.Config.Memory)) {
				return byNode, source, nil
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNoCgroupV2) {
			return nil, "", err
		}
	}
	mappings, gaps, err := r.NUMAMaps(g.PID)
	if err != nil {
		return nil, "", err
	}
	byNode = topology.MemoryByNode{}
	for _, m := range mappings {
		if backing(m, Area{}) == BackingFile && m.Anon == 0 && countedByCgroup(g.Config) {
			continue // programs and libraries are page cache, not the guest's memory
		}
		for node, amount := range m.ByNode() {
			byNode[node] += amount
		}
	}
	if len(gaps) > 0 {
		err = fmt.Errorf("numa_maps of process %d: could not parse %d lines or fields, the first: %s: %s", g.PID,
			len(gaps), gaps[0].What, gaps[0].Why)
	}
	maps.DeleteFunc(byNode, func(_ topology.NodeID, b topology.Bytes) bool { return b == 0 })
	return byNode, sourceNUMAMaps, err
}

// countedByCgroup reports whether a VM's RAM is private or shared memory, or
// huge pages: RAM in a file of a disk file system counts as page cache.
func countedByCgroup(c inventory.Config) bool { return c.Source != BackingFile }

func usesHugePages(c inventory.Config) bool { return c.PageSize > 0 || c.Source == BackingHugetlbfs }

// countsHugePages reports whether the group's figures include a VM's huge
// pages.
func (c Cgroup) countsHugePages(memory topology.Bytes) bool {
	figures, err := c.HugetlbNUMAStat()
	return err == nil && holdsHugePages(figures, memory)
}

// holdsHugePages reports whether figures of the hugetlb controller include a
// VM's huge pages. They miss pages allocated before the controller was enabled;
// since libvirt allocates all of them at start, a count that is too low shows
// that. With huge pages numa_maps is cheap, so reading it instead loses
// nothing.
func holdsHugePages(figures topology.MemoryByNode, memory topology.Bytes) bool {
	var sum topology.Bytes
	for _, amount := range figures {
		sum += amount
	}
	return sum > 0 && sum >= memory-memory/50
}

// Cgroup returns the path, below the mount of cgroup v2, of the group of a VM
// as a whole; for processes outside libvirt, their own group.
func (r Root) Cgroup(pid int) (string, error) {
	top, ok, err := r.guestTopOf(pid)
	if err != nil {
		return "", err
	}
	if ok {
		return top.Path, nil
	}
	own, err := r.CgroupOf(pid)
	return own.Path, err
}
