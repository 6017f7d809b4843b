package xen

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxInfo is enough for 8192 CPUs and as many devices.
const maxInfo = 4 << 20

// ParseInfo reads the text of `xl info -n`: CPUs with core, socket and node,
// devices with node, and nodes with memory (MiB) and distances, each in the
// column order of the nodes. What Xen does not print becomes Gaps: L3 domains,
// dies, the kind of a device, huge page pools (Xen has none), offline CPUs.
func ParseInfo(r io.Reader) (topology.Topology, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInfo+1))
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading xl info: %w", err)
	}
	if len(data) > maxInfo {
		return topology.Topology{}, fmt.Errorf("reading xl info: more than %d bytes", maxInfo)
	}
	p := infoParser{Topology: topology.Topology{Source: "xl info -n"}, cpusOf: map[topology.NodeID][]topology.CPUID{}}
	for line := range strings.Lines(string(data)) {
		p.line(strings.TrimSpace(line))
	}
	p.joinNodes()
	if len(p.cpus) == 0 || len(p.Nodes) == 0 {
		return topology.Topology{}, errors.New(
			"reading xl info: no tables cpu_topology and numa_info; pass the output of `xl info -n`, not of `xl info`",
		)
	}
	if len(p.Devices) > 0 {
		p.gap("xl info does not report the kind, name or driver of devices")
	}
	p.gap("xl info does not report dies; each socket counts as one die")
	t, err := topology.Assemble(p.Topology, p.cpus)
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading xl info: %w", err)
	}
	return t, nil
}

// infoParser is in one table of the text at a time: "", "cpu:", "device",
// "node:".
type infoParser struct {
	topology.Topology
	table  string
	cpus   []topology.SeenCPU
	cpusOf map[topology.NodeID][]topology.CPUID
}

const maxGaps = 100

func (p *infoParser) gap(format string, args ...any) {
	if len(p.Gaps) < maxGaps {
		p.Gaps = append(p.Gaps, fmt.Sprintf(format, args...))
	}
}

func (p *infoParser) line(line string) {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return
	}
	switch header := strings.Join(fields, " "); {
	case header == "cpu: core socket node", header == "device node", header == "node: memsize memfree distances":
		p.table = fields[0]
		return
	case strings.HasPrefix(line, "numa_info"),
		strings.HasPrefix(line, "cpu_topology"),
		strings.HasPrefix(line, "device topology"):
		p.table = ""
		return
	}
	ok := true
	switch p.table {
	case "cpu:":
		ok = p.cpu(fields)
	case "device":
		ok = p.device(fields)
	case "node:":
		ok = p.node(fields)
	}
	if ok {
		return
	}
	if _, _, isField := strings.Cut(line, " : "); isField { // "free_memory            : 123" ends a table
		p.table = ""
		return
	}
	p.gap("in the table that begins with %q: cannot parse %.80q", p.table, line)
}

// cpu reads "  3:       1        0        0": a core's number repeats in each socket.
func (p *infoParser) cpu(fields []string) bool {
	v, ok := numbers(fields, 4)
	if !ok {
		return false
	}
	id, node := topology.CPUID(v[0]), topology.NodeID(v[3])
	p.cpus = append(p.cpus, topology.SeenCPU{ID: id, Core: v[1], Socket: v[2], Die: 0})
	p.cpusOf[node] = append(p.cpusOf[node], id)
	return true
}

// device reads "0000:3b:00.0      1".
func (p *infoParser) device(fields []string) bool {
	if strings.Join(fields, " ") == "No device topology data available" {
		return true
	}
	if len(fields) != 2 || strings.Count(fields[0], ":") != 2 {
		return false
	}
	d := topology.Device{Address: fields[0], Kind: topology.DeviceOther, Node: topology.NoNode}
	if node, err := strconv.ParseUint(fields[1], 10, 16); err == nil {
		d.Node = topology.NodeID(node)
	}
	p.Devices = append(p.Devices, d)
	return true
}

// node reads "   0:     65536      60312      10,21".
func (p *infoParser) node(fields []string) bool {
	if len(fields) != 4 {
		return false
	}
	id, ok := numbers(fields[:1], 1)
	if !ok {
		return false
	}
	size, err1 := mebibytes(fields[1])
	free, err2 := mebibytes(fields[2])
	if err1 != nil || err2 != nil {
		return false
	}
	n := topology.Node{ID: topology.NodeID(id[0]), Memory: size, Free: free, Distances: map[topology.NodeID]int{}}
	for to, text := range strings.Split(fields[3], ",") {
		// Xen prints a large number for pairs that the firmware leaves out.
		if d, err := strconv.ParseUint(text, 10, 64); err == nil && d >= 1 && d <= math.MaxUint8 {
			n.Distances[topology.NodeID(to)] = int(d)
		}
	}
	p.Nodes = append(p.Nodes, n)
	return true
}

// joinNodes gives nodes their CPUs; nodes that have CPUs but are missing in
// numa_info become nodes without memory.
func (p *infoParser) joinNodes() {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		n.CPUs = topology.SetOf(p.cpusOf[n.ID]...)
		delete(p.cpusOf, n.ID)
	}
	if len(p.Nodes) == 0 {
		return
	}
	for id, cpus := range p.cpusOf {
		p.gap("node %d has CPUs but no line in numa_info; treated as a node without memory", id)
		p.Nodes = append(p.Nodes, topology.Node{ID: id, CPUs: topology.SetOf(cpus...)})
	}
}

// numbers reads ids; the first field ends in a colon.
func numbers(fields []string, count int) ([]int, bool) {
	if len(fields) != count || !strings.HasSuffix(fields[0], ":") {
		return nil, false
	}
	values := make([]int, count)
	for i, f := range fields {
		v, err := strconv.ParseUint(strings.TrimSuffix(f, ":"), 10, 16)
		if err != nil {
			return nil, false
		}
		values[i] = int(v)
	}
	return values, true
}

func mebibytes(text string) (topology.Bytes, error) {
	v, err := strconv.ParseUint(text, 10, 40)
	return topology.Bytes(v) * topology.MiB, err
}
