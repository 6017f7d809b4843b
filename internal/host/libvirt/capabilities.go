package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxCapabilities is many times the size of the document of a host with 8192
// CPUs.
const maxCapabilities = 32 << 20

// The elements of capabilities XML that describe the host (docs/formatcaps,
// virCapabilitiesHostNUMAFormat). Numbers are strings here: a broken one must
// cost only its field, not the document.
type (
	capabilities struct {
		XMLName xml.Name   `xml:"capabilities"`
		Cells   []hostCell `xml:"host>topology>cells>cell"`
		Links   hostLinks  `xml:"host>topology>interconnects"`
		Banks   []hostBank `xml:"host>cache>bank"`
	}
	hostCell struct {
		ID        string         `xml:"id,attr"`
		Memory    hostMemory     `xml:"memory"`
		Pages     []hostPages    `xml:"pages"`
		Distances []hostDistance `xml:"distances>sibling"`
		CPUs      []hostCPU      `xml:"cpus>cpu"`
	}
	hostMemory struct {
		Unit  string `xml:"unit,attr"`
		Value string `xml:",chardata"`
	}
	hostPages struct {
		Unit  string `xml:"unit,attr"`
		Size  string `xml:"size,attr"`
		Count string `xml:",chardata"`
	}
	hostDistance struct {
		ID    string `xml:"id,attr"`
		Value string `xml:"value,attr"`
	}
	hostCPU struct {
		ID       string `xml:"id,attr"`
		Socket   string `xml:"socket_id,attr"`
		Die      string `xml:"die_id,attr"`
		Core     string `xml:"core_id,attr"`
		Siblings string `xml:"siblings,attr"`
	}
	hostBank struct {
		Level string `xml:"level,attr"`
		CPUs  string `xml:"cpus,attr"`
	}
	hostLinks struct {
		Latencies  []hostLink `xml:"latency"`
		Bandwidths []hostLink `xml:"bandwidth"`
	}
	hostLink struct {
		Initiator string `xml:"initiator,attr"`
		Target    string `xml:"target,attr"`
		Cache     string `xml:"cache,attr"`
		Type      string `xml:"type,attr"`
		Value     string `xml:"value,attr"`
		Unit      string `xml:"unit,attr"`
	}
)

// ParseCapabilities reads the host's topology from capabilities XML
// (virConnectGetCapabilities, `virsh capabilities`). libvirt reports the size
// of memory and huge page pools there, but not their free part: all counts as
// free, as Gaps says. A CPU without siblings is offline. PCI devices and
// housekeeping CPUs are not in it.
func ParseCapabilities(r io.Reader) (topology.Topology, error) {
	limited := &io.LimitedReader{R: r, N: maxCapabilities + 1}
	var doc capabilities
	if err := xml.NewDecoder(limited).Decode(&doc); err != nil {
		return topology.Topology{}, fmt.Errorf(
			"reading libvirt capabilities: %w; pass the output of `virsh capabilities`",
			err,
		)
	}
	if limited.N <= 0 {
		return topology.Topology{}, fmt.Errorf("reading libvirt capabilities: more than %d bytes", maxCapabilities)
	}
	if err := doc.tooLarge(); err != nil {
		return topology.Topology{}, fmt.Errorf("reading libvirt capabilities: %w", err)
	}
	c := capsReader{Topology: topology.Topology{Source: "libvirt capabilities"}}
	l3 := c.l3Domains(doc.Banks)
	for _, cell := range doc.Cells {
		c.cell(cell, l3)
	}
	if len(c.Nodes) == 0 || len(c.online)+len(c.silent) == 0 {
		return topology.Topology{}, errors.New(
			"reading libvirt capabilities: no host/topology/cells with CPUs; libvirt of that host was built " +
				"without NUMA support, or this is not its full output",
		)
	}
	c.settleSilent()
	c.Measured = c.measured(doc.Links)
	c.gap("libvirt capabilities do not report free memory and free huge pages; all counts as free")
	c.gap("libvirt capabilities do not report PCI devices and housekeeping CPUs")
	t, err := topology.Assemble(c.Topology, c.online)
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading libvirt capabilities: %w", err)
	}
	return t, nil
}

// tooLarge prevents a hostile document from allocating gigabytes.
func (c *capabilities) tooLarge() error {
	const mostCells, mostCPUs = 1024, 8192 // the most that Linux can have
	cpus := 0
	for _, cell := range c.Cells {
		cpus += len(cell.CPUs)
	}
	if len(c.Cells) > mostCells || cpus > mostCPUs || len(c.Banks) > 2*mostCPUs {
		return fmt.Errorf("%d cells, %d CPUs, %d cache banks: Linux supports at most %d cells and %d CPUs",
			len(c.Cells), cpus, len(c.Banks), mostCells, mostCPUs)
	}
	return nil
}

type capsReader struct {
	topology.Topology
	online []topology.SeenCPU
	silent []topology.SeenCPU // without siblings
}

const maxCapsGaps = 100

func (c *capsReader) gap(format string, args ...any) {
	if len(c.Gaps) < maxCapsGaps {
		c.Gaps = append(c.Gaps, fmt.Sprintf(format, args...))
	}
}

// number reads an attribute that must be an id; empty is -1, unknown.
func (c *capsReader) number(where, text string) int {
	if text == "" {
		return -1
	}
	v, err := listID(text)
	if err != nil {
		c.gap("%s: %v", where, err)
		return -1
	}
	return v
}

func (c *capsReader) l3Domains(banks []hostBank) map[topology.CPUID]topology.CPUSet {
	l3 := map[topology.CPUID]topology.CPUSet{}
	for _, bank := range banks {
		if bank.Level != "3" {
			continue
		}
		cpus, err := parseList[topology.CPUID]("host/cache/bank/cpus", bank.CPUs)
		if err != nil {
			c.gap("%v", err)
			continue
		}
		for id := range cpus.All() {
			l3[id] = cpus
		}
	}
	return l3
}

func (c *capsReader) cell(cell hostCell, l3 map[topology.CPUID]topology.CPUSet) {
	id, err := listID(cell.ID)
	if err != nil {
		c.gap("cell id: %v; left out", err)
		return
	}
	n := topology.Node{ID: topology.NodeID(id), Distances: map[topology.NodeID]int{}}
	if cell.Memory.Value != "" { // libvirt omits the memory element of a cell without memory
		if n.Memory, err = scaled(cell.Memory.Value, cell.Memory.Unit); err != nil {
			c.gap("cell %d: memory: %v; counted as none", id, err)
		}
	}
	n.Free = n.Memory
	n.HugePages = c.pools(id, cell.Pages)
	for _, d := range cell.Distances {
		to, value := c.number("distances/sibling id", d.ID), c.number("distances/sibling value", d.Value)
		if to >= 0 && value > 0 {
			n.Distances[topology.NodeID(to)] = value
		}
	}
	var cpus []topology.CPUID
	for _, cpu := range cell.CPUs {
		if s, ok := c.cpu(cpu, l3); ok {
			cpus = append(cpus, s.ID)
		}
	}
	n.CPUs = topology.SetOf(cpus...)
	c.Nodes = append(c.Nodes, n)
}

func (c *capsReader) cpu(cpu hostCPU, l3 map[topology.CPUID]topology.CPUSet) (topology.SeenCPU, bool) {
	id, err := listID(cpu.ID)
	if err != nil {
		c.gap("cpu id: %v; left out", err)
		return topology.SeenCPU{}, false
	}
	s := topology.SeenCPU{ID: topology.CPUID(id), L3: l3[topology.CPUID(id)],
		Socket: c.number("cpu socket_id",
			cpu.Socket), Die: c.number("cpu die_id", cpu.Die), Core: c.number("cpu core_id", cpu.Core)}
	if cpu.Siblings == "" {
		c.silent = append(c.silent, s)
		return s, true
	}
	if s.Siblings, err = parseList[topology.CPUID]("cpu siblings", cpu.Siblings); err != nil {
		c.gap("%v", err)
	}
	c.online = append(c.online, s)
	return s, true
}

// settleSilent decides about CPUs without siblings: they are offline, unless no
// CPU has any.
func (c *capsReader) settleSilent() {
	if len(c.online) == 0 {
		c.gap("no CPU lists its siblings; all count as online")
		c.online = c.silent
		return
	}
	var off []topology.CPUID
	for _, s := range c.silent {
		off = append(off, s.ID)
	}
	c.Offline = topology.SetOf(off...)
}

// pools leaves out the smallest size: that is ordinary memory.
func (c *capsReader) pools(cell int, pages []hostPages) []topology.HugePagePool {
	var pools []topology.HugePagePool
	base := topology.Bytes(math.MaxUint64)
	for _, p := range pages {
		size, err1 := scaled(p.Size, p.Unit)
		count, err2 := scaled(p.Count, "b")
		if err1 != nil || err2 != nil || size == 0 {
			c.gap("cell %d: cannot parse %.40q pages of size %.40q %.10s; left out", cell, p.Count, p.Size,
				p.Unit)
			continue
		}
		base = min(base, size)
		pools = append(pools, topology.HugePagePool{Size: size, Total: uint64(count), Free: uint64(count)})
	}
	huge := pools[:0]
	for _, p := range pools {
		if p.Size != base {
			huge = append(huge, p)
		}
	}
	return huge
}

// scaled reads an amount with libvirt's unit, KiB if none is given.
func scaled(text, unit string) (topology.Bytes, error) {
	if unit == "" {
		unit = "KiB"
	}
	return topology.ParseBytes(strings.TrimSpace(text) + unit)
}

// measured reads the firmware's HMAT figures (libvirt 6.6 and later), if they
// include every pair of a cell with CPUs and a cell with memory.
func (c *capsReader) measured(links hostLinks) *topology.Measured {
	m := topology.Measured{Source: "firmware (HMAT) through libvirt capabilities"}
	index := map[string]int{}
	for i, n := range c.Nodes {
		m.Nodes = append(m.Nodes, n.ID)
		index[fmt.Sprint(int(n.ID))] = i
	}
	m.LatencyNanos = c.linkTable(index, links.Latencies, func(text, _ string) (float64, error) {
		v, err := scaled(text, "b") // a plain number of nanoseconds
		return float64(v), err
	})
	m.BandwidthMBps = c.linkTable(index, links.Bandwidths, func(text, unit string) (float64, error) {
		v, err := scaled(text, unit)
		return float64(v) / 1e6, err
	})
	if m.LatencyNanos == nil && m.BandwidthMBps == nil || m.Validate() != nil {
		return nil
	}
	return &m
}

func (c *capsReader) linkTable(
	index map[string]int, links []hostLink, value func(text, unit string) (float64, error),
) [][]float64 {
	table := make([][]float64, len(c.Nodes))
	for i := range table {
		table[i] = make([]float64, len(c.Nodes))
	}
	for _, l := range links {
		from, ok1 := index[l.Initiator]
		to, ok2 := index[l.Target]
		v, err := value(l.Value, l.Unit)
		if ok1 && ok2 && err == nil && l.Cache == "" && (l.Type == "access" || l.Type == "read") {
			table[from][to] = v
		}
	}
	for i, from := range c.Nodes {
		for j, to := range c.Nodes {
			if !from.CPUs.IsEmpty() && to.Memory > 0 && table[i][j] <= 0 {
				return nil
			}
		}
	}
	return table
}
