package topology

import (
	"errors"
	"fmt"
	"io"
	"math"

	"sigs.k8s.io/yaml"
)

// maxMeasuredBytes holds a matrix pair of 1024 nodes.
const maxMeasuredBytes = 64 << 20

// ParseMeasured reads a latency and bandwidth matrix in YAML or JSON:
//
//	nodes: [0, 2]
//	latency_ns: [[85, 140], [138, 86]]          # rows: CPUs' node, columns: memory's node
//	bandwidth_mbps: [[59000, 50500], [50500, 59000]]
//	source: mlc 3.11
//
// One of the matrices may be left out. 0 is unknown: a pair that was not
// measured, the row of a node without CPUs. An unknown field is an error.
func ParseMeasured(r io.Reader) (*Measured, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxMeasuredBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the measured matrix: %w", err)
	}
	if len(data) > maxMeasuredBytes {
		return nil, fmt.Errorf("measured matrix: larger than %v", Bytes(maxMeasuredBytes))
	}
	var m Measured
	if err := yaml.UnmarshalStrict(data, &m); err != nil {
		return nil, fmt.Errorf("measured matrix: %w; allowed fields: nodes, latency_ns, bandwidth_mbps, source", err)
	}
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("measured matrix: %w", err)
	}
	return &m, nil
}

// Validate checks that nodes are distinct and that each matrix given is square
// with one row and one column a node, of figures that are not negative.
func (m *Measured) Validate() error {
	var errs []error
	seen := map[NodeID]bool{}
	for i, n := range m.Nodes {
		if n < 0 || n > maxID || seen[n] {
			errs = append(errs, fmt.Errorf("nodes[%d]: %d; allowed: distinct node numbers from 0 to %d", i, n, maxID))
		}
		seen[n] = true
	}
	if len(m.Nodes) == 0 {
		errs = append(errs, errors.New("nodes: empty; give the node numbers in the order of rows and columns"))
	}
	if m.LatencyNanos == nil && m.BandwidthMBps == nil {
		errs = append(errs, errors.New("latency_ns, bandwidth_mbps: both missing; give at least one"))
	}
	errs = append(errs, checkMatrix("latency_ns", m.LatencyNanos, len(m.Nodes)),
		checkMatrix("bandwidth_mbps", m.BandwidthMBps, len(m.Nodes)))
	return errors.Join(errs...)
}

func checkMatrix(field string, rows [][]float64, n int) error {
	if rows == nil {
		return nil
	}
	if len(rows) != n {
		return fmt.Errorf("%s: %d rows; allowed: one for each of the %d nodes", field, len(rows), n)
	}
	for i, row := range rows {
		if len(row) != n {
			return fmt.Errorf("%s[%d]: %d figures; allowed: one for each of the %d nodes", field, i, len(row), n)
		}
		for j, v := range row {
			if !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("%s[%d][%d]: %v; allowed: 0 (unknown) or a positive figure", field, i, j, v)
			}
		}
	}
	return nil
}
