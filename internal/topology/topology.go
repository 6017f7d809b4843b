package topology

import (
	"errors"
	"fmt"
	"slices"
)

type (
	// CoreID numbers physical cores: the lowest CPU of the core. Readers make it unique
	// on the host, because the kernel's core_id repeats in every socket.
	CoreID int
	// DieID numbers the dies of a socket.
	DieID int
	// SocketID numbers packages.
	SocketID int
	// L3ID numbers last-level cache domains: the lowest CPU that shares the cache; -1 if unknown.
	L3ID int
)

// Topology is a host's hardware as one of the readers saw it.
type Topology struct {
	Nodes   []Node   `json:"nodes"`   // ascending by ID
	CPUs    []CPU    `json:"cpus"`    // online CPUs, ascending by ID
	Devices []Device `json:"devices"` // PCI devices, ascending by address
	// Housekeeping CPUs serve the host itself; guests must not get them.
	Housekeeping CPUSet `json:"housekeeping"`
	// Offline CPUs exist but are switched off.
	Offline CPUSet `json:"offline,omitzero"`
	// Measured figures take precedence over SLIT distances.
	Measured *Measured `json:"measured,omitempty"`
	// Source names the reader and what it read: "sysfs /", "libvirt capabilities".
	Source string `json:"source,omitempty"`
	// Gaps are facts that the source did not report or reported wrongly, one
	// sentence each.
	Gaps []string `json:"gaps,omitempty"`
}

// Node is a NUMA node: memory, CPUs, or both.
type Node struct {
	ID     NodeID `json:"id"`
	CPUs   CPUSet `json:"cpus"` // online CPUs
	Memory Bytes  `json:"memory_bytes"`
	Free   Bytes  `json:"free_bytes"` // MemFree; page cache counts as used
	// Reclaimable is memory in clean page cache and reclaimable slab that the kernel gives back on demand.
	Reclaimable Bytes            `json:"reclaimable_bytes,omitempty"`
	HugePages   []HugePagePool   `json:"huge_pages"`
	Distances   map[NodeID]int   `json:"distances"` // SLIT row: from CPUs of this node to memory of the key
	Classes     map[NodeID]Class `json:"class"`     // derived, see Classify
}

// HugePagePool is the pool of one page size on one node, counted in pages.
type HugePagePool struct {
	Size  Bytes  `json:"size_bytes"`
	Total uint64 `json:"total"`
	Free  uint64 `json:"free"`
}

// CPU is a logical CPU.
type CPU struct {
	ID       CPUID    `json:"id"`
	Core     CoreID   `json:"core"`
	Die      DieID    `json:"die"`
	Socket   SocketID `json:"socket"`
	Node     NodeID   `json:"node"`
	L3       L3ID     `json:"l3"`
	Siblings CPUSet   `json:"siblings"` // SMT siblings, itself included
}

// Device is a PCI device with the node to which it is attached.
type Device struct {
	Address string     `json:"address"` // "0000:3b:00.0"
	Kind    DeviceKind `json:"kind"`
	Node    NodeID     `json:"node"`             // -1 where the firmware does not say
	Names   []string   `json:"names,omitempty"`  // kernel names: "eth0", "nvme0"
	Driver  string     `json:"driver,omitempty"` // "vfio-pci"
}

// DeviceKind groups PCI devices by their meaning for placement.
type DeviceKind string

// The kinds, by PCI base class.
const (
	DeviceNIC     DeviceKind = "nic"
	DeviceGPU     DeviceKind = "gpu"
	DeviceNVMe    DeviceKind = "nvme"
	DeviceStorage DeviceKind = "storage"
	DeviceOther   DeviceKind = "other"
)

// Measured is a latency and bandwidth matrix: rows are the CPUs' node,
// columns the memory's node, both in the order of Nodes. A zero is unknown.
type Measured struct {
	Nodes         []NodeID    `json:"nodes"`
	LatencyNanos  [][]float64 `json:"latency_ns,omitempty"`
	BandwidthMBps [][]float64 `json:"bandwidth_mbps,omitempty"`
	Source        string      `json:"source,omitempty"`
}

// NoNode is the node of a device or CPU whose firmware does not say.
const NoNode NodeID = -1

// Node returns the node with that id.
func (t *Topology) Node(id NodeID) (*Node, bool) {
	i, ok := slices.BinarySearchFunc(t.Nodes, id, func(n Node, id NodeID) int { return int(n.ID - id) })
	if !ok {
		return nil, false
	}
	return &t.Nodes[i], true
}

// CPU returns the online CPU with that id.
func (t *Topology) CPU(id CPUID) (*CPU, bool) {
	i, ok := slices.BinarySearchFunc(t.CPUs, id, func(c CPU, id CPUID) int { return int(c.ID - id) })
	if !ok {
		return nil, false
	}
	return &t.CPUs[i], true
}

// Cores returns how many cores some CPUs belong to.
func (t *Topology) Cores(cpus CPUSet) (count int) {
	for id := range cpus.All() {
		c, ok := t.CPU(id)
		if !ok {
			continue
		}
		first, _ := c.Siblings.First()
		if first != id && !cpus.Contains(first) {
			first, _ = c.Siblings.Intersect(cpus).First()
		}
		if first == id {
			count++
		}
	}
	return count
}

// NodeSet returns all node ids.
func (t *Topology) NodeSet() NodeSet {
	ids := make([]NodeID, len(t.Nodes))
	for i, n := range t.Nodes {
		ids[i] = n.ID
	}
	return SetOf(ids...)
}

// MemoryNodes returns the nodes that have memory.
func (t *Topology) MemoryNodes() NodeSet {
	var ids []NodeID
	for _, n := range t.Nodes {
		if n.Memory > 0 {
			ids = append(ids, n.ID)
		}
	}
	return SetOf(ids...)
}

// CPUSet returns all online CPUs.
func (t *Topology) CPUSet() CPUSet {
	ids := make([]CPUID, len(t.CPUs))
	for i, c := range t.CPUs {
		ids[i] = c.ID
	}
	return SetOf(ids...)
}

// CPUsOf returns the online CPUs of the given nodes.
func (t *Topology) CPUsOf(nodes NodeSet) CPUSet {
	var s CPUSet
	for _, n := range t.Nodes {
		if nodes.Contains(n.ID) {
			s = s.Union(n.CPUs)
		}
	}
	return s
}

// NodesOf returns the nodes that the given CPUs belong to.
func (t *Topology) NodesOf(cpus CPUSet) NodeSet {
	var ids []NodeID
	for _, n := range t.Nodes {
		if n.CPUs.Intersects(cpus) {
			ids = append(ids, n.ID)
		}
	}
	return SetOf(ids...)
}

// Distance returns the SLIT distance from CPUs of one node to memory of
// another; ok is false where the firmware gave none.
func (t *Topology) Distance(from, to NodeID) (distance int, ok bool) {
	n, found := t.Node(from)
	if !found {
		return 0, false
	}
	distance, ok = n.Distances[to]
	return distance, ok
}

// Validate checks the invariants of the package comment and that references
// between nodes, CPUs and devices hold. It reports every violation.
func (t *Topology) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	owner := map[CPUID]NodeID{}
	for i, n := range t.Nodes {
		if n.ID < 0 || (i > 0 && t.Nodes[i-1].ID >= n.ID) {
			fail("node %d: ids must be non-negative, ascending and unique", n.ID)
		}
		for c := range n.CPUs.All() {
			if other, taken := owner[c]; taken {
				fail("CPU %d: claimed by node %d and node %d", c, other, n.ID)
			}
			owner[c] = n.ID
			if _, ok := t.CPU(c); !ok {
				fail("node %d: lists CPU %d, which is not among the online CPUs", n.ID, c)
			}
		}
		for _, p := range n.HugePages {
			if p.Free > p.Total {
				fail("node %d: huge pages of %v: %d free of %d", n.ID, p.Size, p.Free, p.Total)
			}
		}
		for to, d := range n.Distances {
			if d < 1 {
				fail("node %d: distance to node %d is %d", n.ID, to, d)
			}
		}
	}
	for i, c := range t.CPUs {
		if c.ID < 0 || (i > 0 && t.CPUs[i-1].ID >= c.ID) {
			fail("CPU %d: ids must be non-negative, ascending and unique", c.ID)
		}
		if n, ok := t.Node(c.Node); !ok || !n.CPUs.Contains(c.ID) {
			fail("CPU %d: names node %d, which does not list it", c.ID, c.Node)
		}
		if !c.Siblings.Contains(c.ID) {
			fail("CPU %d: its siblings %q leave it out", c.ID, c.Siblings)
		}
	}
	return errors.Join(errs...)
}
