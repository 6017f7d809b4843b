package linux

import (
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// accessFigures reads nodeN/access0/initiators: the latency (ns) and bandwidth
// (MB/s) that the firmware (ACPI HMAT) states for the nearest CPUs of node N's
// memory. It fills only the pairs that the kernel has, and none unless every
// node with memory has a figure: a partial table would rank nodes by the
// completeness of the firmware.
func (t *tree) accessFigures(nodes []topology.Node) *topology.Measured {
	m := topology.Measured{Source: "firmware (HMAT) through " + nodeFolder + "/nodeN/access0"}
	for _, n := range nodes {
		m.Nodes = append(m.Nodes, n.ID)
	}
	m.LatencyNanos = t.accessTable(nodes, "read_latency")
	m.BandwidthMBps = t.accessTable(nodes, "read_bandwidth")
	if m.LatencyNanos == nil && m.BandwidthMBps == nil {
		return nil
	}
	return &m
}

func (t *tree) accessTable(nodes []topology.Node, figure string) [][]float64 {
	table := make([][]float64, len(nodes))
	for i := range table {
		table[i] = make([]float64, len(nodes))
	}
	for to, n := range nodes {
		if n.Memory == 0 {
			continue
		}
		folder := nodePath(int(n.ID), "access0", "initiators")
		value, ok := t.number(folder + "/" + figure)
		if !ok || value <= 0 {
			return nil
		}
		for _, initiator := range t.numbered(folder, "node") {
			from := slices.IndexFunc(nodes, func(n topology.Node) bool { return int(n.ID) == initiator })
			if from >= 0 {
				table[from][to] = float64(value)
			}
		}
	}
	return table
}
