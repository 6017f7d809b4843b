package topology

import "slices"

// Class says how far memory is from a node's CPUs.
type Class string

// The classes. An 8-node processor has latencies of about 85, 140 and 240 ns for them.
const (
	Local     Class = "local"
	Neighbour Class = "neighbour"
	Remote    Class = "remote"
)

// Words returns the classes.
func (Class) Words() []string { return []string{string(Local), string(Neighbour), string(Remote)} }

// slitUnreachable marks a pair with no path (ACPI SLIT).
const slitUnreachable = 255

// SLIT is what firmware authors wrote; latency is measured, with noise of a few percent.
const (
	sameClassRatio = 1.10 // figures closer than this never fall into different classes
	// With one kind of non-local memory, this times the local figure or more is
	// remote. Other sockets have SLIT 20 and more (2.0) and measure 1.4 to 1.9
	// on machines of two sockets; parts of one socket 11 to 17 and 1.04 to 1.2.
	farSLIT    = 2.0
	farLatency = 1.3
)

// figures are what Classify compares: measured nanoseconds, or SLIT.
type figures struct {
	of       func(from, to NodeID) (float64, bool)
	farRatio float64
}

// Classify fills every node's Classes. Measured latency decides where it is
// known for all pairs of memory, else SLIT. The figures between different
// nodes that have CPUs are sorted and cut at their widest relative gap: below
// is neighbour, above is remote. That finds the boundary between sockets on every
// machine in testdata/hosts without a constant for any of them. Where there is only
// one kind of such memory, a multiple of the local figure is the border.
// Memory without CPUs (CXL, HBM) is classed by that border and does not shift
// it: another socket does not become a neighbour because CXL is farther.
func (t *Topology) Classify() {
	cost := t.accessFigures()
	cut := t.classCut(cost)
	for i := range t.Nodes {
		a := &t.Nodes[i]
		a.Classes = map[NodeID]Class{}
		for _, b := range t.Nodes {
			v, ok := cost.of(a.ID, b.ID)
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
func (t *Topology) classCut(cost figures) float64 {
	var far []float64
	local := 0.0
	for _, a := range t.Nodes {
		if v, ok := cost.of(a.ID, a.ID); ok && (local == 0 || v < local) {
			local = v
		}
		for _, b := range t.Nodes {
			if v, ok := cost.of(a.ID, b.ID); ok && a.ID != b.ID && !b.CPUs.IsEmpty() {
				far = append(far, v)
			}
		}
	}
	slices.Sort(far)
	widest, cut := sameClassRatio, 0.0
	for i := 1; i < len(far); i++ {
		if r := far[i] / far[i-1]; r > widest {
			widest, cut = r, far[i]
		}
	}
	if cut == 0 {
		return local * cost.farRatio
	}
	return cut
}

// accessFigures gives latency where it is complete, else SLIT. Unreachable
// pairs (255) and rows of nodes without CPUs have no figure.
func (t *Topology) accessFigures() figures {
	hasCPU := func(id NodeID) bool { n, ok := t.Node(id); return ok && !n.CPUs.IsEmpty() }
	if t.LatencyComplete() {
		return figures{func(from, to NodeID) (float64, bool) {
			v, ok := t.Latency(from, to)
			return v, ok && hasCPU(from)
		}, farLatency}
	}
	return figures{func(from, to NodeID) (float64, bool) {
		d, ok := t.Distance(from, to)
		return float64(d), ok && d < slitUnreachable && hasCPU(from)
	}, farSLIT}
}

// LatencyComplete reports whether latency is measured for every CPU node to
// every memory node: only then does it decide classes and placement; otherwise SLIT does.
func (t *Topology) LatencyComplete() bool {
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
