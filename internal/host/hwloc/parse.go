package hwloc

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxDocument is many times the size of the largest hosts' documents;
// maxObjects allows 8192 CPUs with their cores and caches.
const (
	maxDocument = 32 << 20
	maxObjects  = 1 << 17
)

// Parse reads hwloc XML, version 1 or 2 (`lstopo --of xml`). hwloc has the size
// of memory and huge page pools, but not their free part: all counts as free,
// as Gaps says. CPUs that hwloc knows of but does not show are Offline: they
// are offline, or the user of lstopo was not allowed to use them.
func Parse(r io.Reader) (topology.Topology, error) {
	limited := &io.LimitedReader{R: r, N: maxDocument + 1}
	var doc document
	if err := xml.NewDecoder(limited).Decode(&doc); err != nil {
		return topology.Topology{}, fmt.Errorf("reading hwloc XML: %w; pass the output of `lstopo --of xml`", err)
	}
	if limited.N <= 0 {
		return topology.Topology{}, fmt.Errorf("reading hwloc XML: more than %d bytes", maxDocument)
	}
	p := parser{
		Topology: topology.Topology{Source: "hwloc " + version(doc.Version) + " XML"},
		homes:    map[topology.CPUID]topology.NodeID{},
	}
	for _, o := range doc.Objects {
		p.walk(&o, place{socket: -1, die: -1})
	}
	if p.objects > maxObjects {
		return topology.Topology{}, fmt.Errorf("reading hwloc XML: more than %d objects", maxObjects)
	}
	if len(p.cpus) == 0 {
		return topology.Topology{}, errors.New(
			"reading hwloc XML: no object of type PU; pass the output of `lstopo --of xml` without filters",
		)
	}
	if len(p.Nodes) == 0 {
		p.soleNode()
	}
	p.takeOnline()
	p.addHiddenNodes()
	p.settleOwners()
	p.takeDistances(doc.Distances)
	p.placeDevices()
	p.gap("hwloc does not report free memory and free huge pages; all counts as free")
	p.gap("hwloc does not report housekeeping CPUs and the drivers of devices")
	t, err := topology.Assemble(p.Topology, p.cpus)
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading hwloc XML: %w", err)
	}
	return t, nil
}

func version(attribute string) string {
	if attribute == "" || len(attribute) > 8 {
		return "1"
	}
	return attribute
}

// place is the enclosing context of an object during the walk.
type place struct {
	socket, die int
	core, l3    topology.CPUSet
	near        topology.CPUSet // CPUs of the closest enclosing object that has any
}

type parser struct {
	topology.Topology
	cpus     []topology.SeenCPU
	near     []topology.CPUSet // per device
	order    []topology.NodeID // nodes in document order
	first    []matrix1         // distances of version 1
	homes    map[topology.CPUID]topology.NodeID
	root     *object
	objects  int
	unpacked int // sockets and dies without a number
}

const maxGaps = 100

func (p *parser) gap(format string, args ...any) {
	if len(p.Gaps) < maxGaps {
		p.Gaps = append(p.Gaps, fmt.Sprintf(format, args...))
	}
}

// walk visits the tree from the machine down.
func (p *parser) walk(o *object, in place) {
	if p.objects++; p.objects > maxObjects {
		return
	}
	if p.root == nil {
		p.root = o
	}
	p.first = append(p.first, o.Distances...)
	if o.CPUSet != "" {
		in.near = p.mask(o, o.CPUSet)
	}
	switch {
	case o.Type == "Package", o.Type == "Socket":
		in.socket = p.index(o)
	case o.Type == "Die":
		in.die = p.index(o)
	case o.Type == "Core":
		in.core = in.near
	case o.Type == "L3Cache", o.Type == "Cache" && o.Depth == "3":
		in.l3 = in.near
	case o.Type == "NUMANode":
		p.node(o, in.near)
	case o.Type == "PU":
		p.cpu(o, in)
	case o.Type == "PCIDev":
		p.device(o, in.near)
	}
	for i := range o.Objects {
		p.walk(&o.Objects[i], in)
	}
}

func (p *parser) mask(o *object, text string) topology.CPUSet {
	set, err := topology.ParseMask[topology.CPUID](text)
	if err != nil {
		p.gap("%.20s %.20s: cpuset: %v", o.Type, o.OSIndex, err)
	}
	return set
}

// index returns an object's number, or a new one if the firmware gave none.
func (p *parser) index(o *object) int {
	v, err := strconv.ParseUint(o.OSIndex, 10, 31)
	if err != nil {
		p.unpacked++
		return 1<<20 + p.unpacked
	}
	return int(v)
}

func (p *parser) cpu(o *object, in place) {
	id, err := strconv.ParseUint(o.OSIndex, 10, 16)
	if err != nil {
		p.gap("PU: os_index %.20q is not a CPU number; left out", o.OSIndex)
		return
	}
	p.cpus = append(p.cpus, topology.SeenCPU{ID: topology.CPUID(id),
		Socket: in.socket, Die: in.die, Core: -1, Siblings: in.core, L3: in.l3})
	nodes, err := topology.ParseMask[topology.NodeID](o.AllNodes)
	if node, ok := nodes.First(); ok && err == nil && nodes.Len() == 1 {
		p.homes[topology.CPUID(id)] = node
	}
}

func (p *parser) node(o *object, cpus topology.CPUSet) {
	id, err := strconv.ParseUint(o.OSIndex, 10, 16)
	if err != nil {
		p.gap("NUMANode: os_index %.20q is not a node number; left out", o.OSIndex)
		return
	}
	n := topology.Node{ID: topology.NodeID(id), CPUs: cpus}
	p.memory(&n, o)
	p.order = append(p.order, n.ID)
	p.Nodes = append(p.Nodes, n)
}

// memory reads local_memory and the page types; the smallest is ordinary memory.
func (p *parser) memory(n *topology.Node, o *object) {
	if o.LocalMemory != "" {
		bytes, err := strconv.ParseUint(o.LocalMemory, 10, 63)
		if err != nil {
			p.gap("node %d: local_memory %.20q is not a number of bytes; counted as none", n.ID, o.LocalMemory)
		}
		n.Memory = topology.Bytes(bytes)
	}
	n.Free = n.Memory
	base := topology.Bytes(0)
	for _, page := range o.Pages {
		size, err1 := strconv.ParseUint(page.Size, 10, 63)
		count, err2 := strconv.ParseUint(page.Count, 10, 63)
		if err1 != nil || err2 != nil || size == 0 {
			p.gap("node %d: page_type size %.20q count %.20q cannot be parsed; left out", n.ID, page.Size, page.Count)
			continue
		}
		if base == 0 || topology.Bytes(size) < base {
			base = topology.Bytes(size)
		}
		n.HugePages = append(n.HugePages, topology.HugePagePool{Size: topology.Bytes(size), Total: count, Free: count})
	}
	n.HugePages = slices.DeleteFunc(n.HugePages, func(pool topology.HugePagePool) bool { return pool.Size == base })
}

// soleNode is for hosts without NUMA nodes: version 1 writes no node for them.
func (p *parser) soleNode() {
	p.gap("no object of type NUMANode; all CPUs and memory are assigned to node 0")
	n := topology.Node{ID: 0, Distances: map[topology.NodeID]int{0: 10}}
	for _, c := range p.cpus {
		n.CPUs = n.CPUs.With(c.ID)
	}
	p.memory(&n, p.root)
	p.Nodes = append(p.Nodes, n)
}

// takeOnline leaves out CPUs that version 1 shows but calls offline.
func (p *parser) takeOnline() {
	shown := p.mask(p.root, p.root.CPUSet)
	if p.root.OnlineSet != "" {
		if online := p.mask(p.root, p.root.OnlineSet); !online.IsEmpty() {
			shown = shown.Intersect(online)
			p.cpus = slices.DeleteFunc(p.cpus, func(c topology.SeenCPU) bool { return !online.Contains(c.ID) })
		}
	}
	if p.root.CompleteSet != "" {
		p.Offline = p.mask(p.root, p.root.CompleteSet).Minus(shown)
		if !p.Offline.IsEmpty() {
			p.gap("hwloc leaves CPUs %s out: they are offline, or the user of lstopo was not allowed to use them",
				p.Offline)
		}
	}
}

// device reads a PCI device: pci_type begins with the class in hexadecimal,
// base and subclass only.
func (p *parser) device(o *object, near topology.CPUSet) {
	class, err := strconv.ParseUint(strings.TrimSpace(firstWord(o.PCIType)), 16, 16)
	if err != nil || o.PCIBusID == "" {
		p.gap("PCIDev %.20q: pci_type %.20q cannot be parsed; left out", o.PCIBusID, o.PCIType)
		return
	}
	if topology.IsBridge(uint32(class) << 8) {
		return
	}
	d := topology.Device{Address: o.PCIBusID, Kind: topology.DeviceKindOf(uint32(class) << 8), Node: topology.NoNode}
	for _, child := range o.Objects {
		if child.Type == "OSDev" && child.Name != "" {
			d.Names = append(d.Names, child.Name)
		}
	}
	p.Devices = append(p.Devices, d)
	p.near = append(p.near, near)
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// placeDevices finds the node that a device's CPUs belong to, if it is a single
// one.
func (p *parser) placeDevices() {
	for i := range p.Devices {
		var nodes []topology.NodeID
		for _, n := range p.Nodes {
			if n.CPUs.Intersects(p.near[i]) {
				nodes = append(nodes, n.ID)
			}
		}
		if len(nodes) == 1 {
			p.Devices[i].Node = nodes[0]
		}
	}
}
