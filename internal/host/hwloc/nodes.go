package hwloc

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// addHiddenNodes finds nodes that have CPUs and no memory: hwloc writes no
// object for them, only their number into the CPUs' complete_nodeset.
func (p *parser) addHiddenNodes() {
	var covered topology.CPUSet
	for _, n := range p.Nodes {
		covered = covered.Union(n.CPUs)
	}
	hidden := map[topology.NodeID]topology.CPUSet{}
	for _, c := range p.cpus {
		if home, ok := p.homes[c.ID]; ok && !covered.Contains(c.ID) && !slices.Contains(p.order, home) {
			hidden[home] = hidden[home].With(c.ID)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(hidden)) {
		p.gap("node %d has no object of its own; assuming CPUs %s without memory", id, hidden[id])
		p.Nodes = append(p.Nodes, topology.Node{ID: id, CPUs: hidden[id]})
	}
}

// settleOwners decides which node a CPU belongs to. Version 2 gives memory
// without CPUs (CXL, HBM, GPU) the CPUs it is near to, so that CPUs appear
// under several nodes. The closest node owns a CPU: the node with the fewest
// CPUs, among equals the lowest number, as firmware numbers ordinary memory
// first.
func (p *parser) settleOwners() {
	if len(p.Nodes) > maxNodes {
		return // Assemble refuses it
	}
	closest := make([]int, len(p.Nodes))
	for i := range closest {
		closest[i] = i
	}
	slices.SortStableFunc(closest, func(a, b int) int {
		x, y := p.Nodes[a], p.Nodes[b]
		return cmp.Or(cmp.Compare(x.CPUs.Len(), y.CPUs.Len()), cmp.Compare(x.ID, y.ID))
	})
	var taken topology.CPUSet
	for _, i := range closest {
		n := &p.Nodes[i]
		near := n.CPUs
		n.CPUs = near.Minus(taken)
		if !near.IsEmpty() && n.CPUs.IsEmpty() {
			p.gap("node %d is treated as memory without CPUs: hwloc lists closer nodes for CPUs %s", n.ID, near)
		}
		taken = taken.Union(near)
	}
}

// maxNodes is the most that Linux can have.
const maxNodes = 1024

// takeDistances reads the matrix of the nodes, of either version.
func (p *parser) takeDistances(second []matrix) {
	if len(p.Nodes) > maxNodes {
		return
	}
	for _, m := range second {
		if m.Type != "NUMANode" || m.Indexing != "os" || m.Name != "" && m.Name != "NUMALatency" {
			continue
		}
		ids, ok1 := integers(m.Indexes, maxNodes)
		values, ok2 := integers(m.Values, maxNodes*maxNodes)
		if !ok1 || !ok2 || len(values) != len(ids)*len(ids) {
			p.gap("distances2 of NUMA nodes: not a square of numbers; ignored")
			continue
		}
		p.setDistances(ids, values)
	}
	for _, m := range p.first {
		base, err := strconv.ParseFloat(m.Base, 64)
		count := len(p.order)
		if err != nil || m.Count != strconv.Itoa(count) || len(m.Figures) != count*count {
			continue // between objects other than nodes
		}
		ids, values := make([]int, count), make([]int, 0, count*count)
		for i, id := range p.order {
			ids[i] = int(id)
		}
		for _, f := range m.Figures {
			v, err := strconv.ParseFloat(f.Value, 64)
			if d := math.Round(v * base); err == nil && d >= 1 && d <= math.MaxUint16 {
				values = append(values, int(d))
			} else {
				values = append(values, 0)
			}
		}
		p.setDistances(ids, values)
	}
	if p.Nodes[0].Distances == nil {
		p.gap("no distances between nodes")
	}
}

func (p *parser) setDistances(ids, values []int) {
	for i := range p.Nodes {
		from := slices.Index(ids, int(p.Nodes[i].ID))
		if from < 0 {
			continue
		}
		row := map[topology.NodeID]int{}
		for to, id := range ids {
			row[topology.NodeID(id)] = values[from*len(ids)+to]
		}
		p.Nodes[i].Distances = row
	}
}

// integers reads lists of numbers, which hwloc divides among several elements.
func integers(lists []string, most int) ([]int, bool) {
	var values []int
	for _, list := range lists {
		for _, word := range strings.Fields(list) {
			v, err := strconv.ParseUint(word, 10, 16)
			if err != nil || len(values) == most {
				return nil, false
			}
			values = append(values, int(v))
		}
	}
	return values, true
}
