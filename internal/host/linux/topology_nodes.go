package linux

import (
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

const (
	nodeFolder = "sys/devices/system/node"
	maxNodes   = 1024 // CONFIG_NODES_SHIFT is at most 10
)

// nodes reads /sys/devices/system/node, which has the online nodes only. A
// kernel without CONFIG_NUMA has no such folder: then everything is node 0.
func (t *tree) nodes(cpus []topology.SeenCPU) []topology.Node {
	ids := t.numbered(nodeFolder, "node")
	if len(ids) == 0 {
		t.gap(
			"no node in %s: the kernel has no NUMA support, or the files were not captured; all CPUs and memory "+
				"are assigned to node 0",
			nodeFolder,
		)
		return []topology.Node{t.onlyNode(cpus)}
	}
	if len(ids) > maxNodes {
		t.gap("%s: %d nodes; only the first %d are read, the most that Linux can have", nodeFolder, len(ids),
			maxNodes)
		ids = ids[:maxNodes]
	}
	order := t.distanceOrder(ids)
	nodes := make([]topology.Node, 0, len(ids))
	for _, id := range ids {
		n := topology.Node{ID: topology.NodeID(id), Distances: t.distances(id, order)}
		var ok bool
		if n.CPUs, ok = t.cpuList(nodePath(id, "cpulist"), nodePath(id, "cpumap")); !ok {
			n.CPUs = t.linkedCPUs(id)
		}
		t.memory(&n, nodePath(id, "meminfo"))
		n.HugePages = t.hugePages(nodePath(id, "hugepages"))
		nodes = append(nodes, n)
	}
	return nodes
}

func (t *tree) onlyNode(cpus []topology.SeenCPU) topology.Node {
	n := topology.Node{ID: 0, Distances: map[topology.NodeID]int{0: 10}}
	all := make([]topology.CPUID, 0, len(cpus))
	for _, c := range cpus {
		all = append(all, c.ID)
	}
	n.CPUs = topology.SetOf(all...)
	t.memory(&n, "proc/meminfo")
	n.HugePages = t.hugePages("sys/kernel/mm/hugepages")
	return n
}

// linkedCPUs are those linked from the node's folder: for trees without
// cpulist.
func (t *tree) linkedCPUs(id int) topology.CPUSet {
	var cpus []topology.CPUID
	for _, c := range t.numbered(nodePath(id), "cpu") {
		cpus = append(cpus, topology.CPUID(c))
	}
	t.gap("%s has neither cpulist nor cpumap; its CPUs are taken from its links: %q", nodePath(id),
		topology.SetOf(cpus...))
	return topology.SetOf(cpus...)
}

// distanceOrder gives the nodes in the order of the columns of nodeN/distance:
// the online nodes, ascending. A trimmed capture may have fewer folders.
func (t *tree) distanceOrder(folders []int) []topology.NodeID {
	text, _ := t.text(nodeFolder + "/online")
	online, err := topology.ParseSet[topology.NodeID](text)
	if err == nil && !online.IsEmpty() {
		return online.IDs()
	}
	var ids []topology.NodeID
	for _, id := range folders {
		ids = append(ids, topology.NodeID(id))
	}
	return ids
}

func (t *tree) distances(id int, order []topology.NodeID) map[topology.NodeID]int {
	name := nodePath(id, "distance")
	text, ok := t.text(name)
	if !ok {
		return nil
	}
	fields := strings.Fields(text)
	if len(fields) != len(order) {
		t.gap("%s: %d distances for %d nodes; all are ignored", name, len(fields), len(order))
		return nil
	}
	row := map[topology.NodeID]int{}
	for i, f := range fields {
		d, err := strconv.ParseUint(f, 10, 16)
		if err != nil || d < 1 {
			t.gap("%s: distance %q to node %d is not a positive number", name, abbreviate(f), order[i])
			continue
		}
		row[order[i]] = int(d)
	}
	return row
}

// memory reads nodeN/meminfo ("Node 0 MemTotal: 123 kB") or /proc/meminfo. The
// kernel gives back clean page cache and reclaimable slab; dirty pages must be
// written first and do not count.
func (t *tree) memory(n *topology.Node, name string) {
	text, ok := t.text(name)
	if !ok {
		t.gap("%s is missing or unreadable: the memory of node %d is unknown and counts as none", name, n.ID)
		return
	}
	t.memoryOf(n, name, text)
}

// memoryOf sets the memory of a node from the text of a meminfo file.
func (t *tree) memoryOf(n *topology.Node, name, text string) {
	amounts := map[string]topology.Bytes{}
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(line, ":")
		if words := strings.Fields(key); found && len(words) > 0 {
			key = words[len(words)-1]
		}
		if !slices.Contains(meminfoKeys, key) {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil || kib > math.MaxInt64>>10 {
			t.gap("%s: %s: %q is not an amount in kB", name, key, abbreviate(strings.TrimSpace(value)))
			continue
		}
		amounts[key] = topology.Bytes(kib) * topology.KiB
	}
	if _, ok := amounts["MemTotal"]; !ok {
		t.gap("%s: no MemTotal: the memory of node %d is unknown and counts as none", name, n.ID)
	}
	n.Memory, n.Free = amounts["MemTotal"], amounts["MemFree"]
	clean := amounts["Active(file)"] + amounts["Inactive(file)"] + amounts["SReclaimable"]
	n.Reclaimable = clean - min(clean, amounts["Dirty"])
}

var meminfoKeys = []string{"MemTotal", "MemFree", "Active(file)", "Inactive(file)", "SReclaimable", "Dirty"}

// hugePages reads hugepages-NkB/{nr,free}_hugepages in the folder of a node or of the host.
func (t *tree) hugePages(folder string) []topology.HugePagePool {
	var pools []topology.HugePagePool
	for _, name := range t.names(folder) {
		kib, ok := strings.CutPrefix(name, "hugepages-")
		size, err := strconv.ParseUint(strings.TrimSuffix(kib, "kB"), 10, 32)
		if !ok || err != nil || size == 0 {
			t.gap("%s: not a huge page pool such as hugepages-2048kB", path.Join(folder, name))
			continue
		}
		total, hasTotal := t.number(path.Join(folder, name, "nr_hugepages"))
		free, hasFree := t.number(path.Join(folder, name, "free_hugepages"))
		if !hasTotal || !hasFree || total < 0 || free < 0 {
			t.gap("%s: pool without nr_hugepages or free_hugepages; left out", path.Join(folder, name))
			continue
		}
		pools = append(pools, topology.HugePagePool{
			Size: topology.Bytes(size) * topology.KiB, Total: uint64(total), Free: uint64(free)})
	}
	return pools
}

func nodePath(id int, elements ...string) string {
	return path.Join(append([]string{nodeFolder, "node" + strconv.Itoa(id)}, elements...)...)
}
