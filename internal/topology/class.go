package topology

import "slices"

// Class says how far memory is from a node's CPUs.
type Class string

// The classes. S1 of the literature: about 85, 140 and 240 ns on an 8-node processor.
const (
	Local     Class = "local"
	Neighbour Class = "neighbour"
	Remote    Class = "remote"
)

// slitUnreachable marks a pair with no path (ACPI SLIT).
const slitUnreachable = 255

// SLIT and measured figures need different care: SLIT is what firmware
// authors wrote, latency carries noise of a few percent.
const (
	sameClassRatio = 1.10 // figures closer than this never fall into different classes
	farRatio       = 2.0  // with one kind of non-local memory: at least this is remote
)

// Classify fills every node's Classes. Measured latency decides where it is
// known for all pairs of memory, else SLIT. Non-local figures of the whole
// host are sorted and cut at their widest relative gap: below is neighbour,
// above is remote. That finds the socket border on every machine in
// testdata/hosts without a constant for any of them. Where there is only one
// kind of non-local memory, twice the local figure or more is remote.
func (t *Topology) Classify() {
	cost := t.accessFigure()
	var far []float64
	local := 0.0
	for _, a := range t.Nodes {
		if v, ok := cost(a.ID, a.ID); ok && !a.CPUs.IsEmpty() && (local == 0 || v < local) {
			local = v
		}
		for _, b := range t.Nodes {
			if v, ok := cost(a.ID, b.ID); ok && a.ID != b.ID {
				far = append(far, v)
			}
		}
	}
	cut := classCut(far, local)
	for i := range t.Nodes {
		a := &t.Nodes[i]
		a.Classes = map[NodeID]Class{}
		for _, b := range t.Nodes {
			v, ok := cost(a.ID, b.ID)
			switch {
			case a.ID == b.ID:
				a.Classes[b.ID] = Local
			case ok && v < cut:
				a.Classes[b.ID] = Neighbour
			default:
				a.Classes[b.ID] = Remote
			}
		}
	}
}

// classCut returns the figure from which memory is remote.
func classCut(far []float64, local float64) float64 {
	slices.Sort(far)
	widest, cut := sameClassRatio, 0.0
	for i := 1; i < len(far); i++ {
		if r := far[i] / far[i-1]; r > widest {
			widest, cut = r, far[i]
		}
	}
	if cut == 0 {
		return local * farRatio
	}
	return cut
}

// accessFigure returns what Classify compares: measured nanoseconds, or SLIT.
// Unreachable pairs (255) and rows of nodes without CPUs have none.
func (t *Topology) accessFigure() func(from, to NodeID) (float64, bool) {
	hasCPU := func(id NodeID) bool { n, ok := t.Node(id); return ok && !n.CPUs.IsEmpty() }
	if t.latencyComplete() {
		return func(from, to NodeID) (float64, bool) {
			v, ok := t.Latency(from, to)
			return v, ok && hasCPU(from)
		}
	}
	return func(from, to NodeID) (float64, bool) {
		d, ok := t.Distance(from, to)
		return float64(d), ok && d < slitUnreachable && hasCPU(from)
	}
}

// latencyComplete reports whether latency is measured for every CPU node to every memory node.
func (t *Topology) latencyComplete() bool {
	if t.Measured == nil {
		return false
	}
	for _, a := range t.Nodes {
		for _, b := range t.Nodes {
			if a.CPUs.IsEmpty() || b.Memory == 0 {
				continue
			}
			if _, ok := t.Latency(a.ID, b.ID); !ok {
				return false
			}
		}
	}
	return true
}

// Latency returns the measured nanoseconds from CPUs of one node to memory of another.
func (t *Topology) Latency(from, to NodeID) (nanos float64, ok bool) {
	if t.Measured == nil {
		return 0, false
	}
	return t.Measured.at(t.Measured.LatencyNanos, from, to)
}

// Bandwidth returns the measured MB/s from CPUs of one node to memory of another.
func (t *Topology) Bandwidth(from, to NodeID) (mbps float64, ok bool) {
	if t.Measured == nil {
		return 0, false
	}
	return t.Measured.at(t.Measured.BandwidthMBps, from, to)
}

func (m *Measured) at(table [][]float64, from, to NodeID) (float64, bool) {
	i, j := slices.Index(m.Nodes, from), slices.Index(m.Nodes, to)
	if i < 0 || j < 0 || i >= len(table) || j >= len(table[i]) || table[i][j] <= 0 {
		return 0, false
	}
	return table[i][j], true
}
