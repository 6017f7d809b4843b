package topology

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/numavisor/numavisor/internal/strictyaml"
	"github.com/numavisor/numavisor/internal/text"
)

// measuredFormat has room for a matrix pair of 512 nodes. Parsing a file of this
// size needs up to 0.5 GB of memory.
var measuredFormat = strictyaml.Format{Kind: "measured matrix", MaxBytes: 4 << 20}

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
	var m Measured
	if _, err := strictyaml.Decode(r, measuredFormat, &m, m.Validate); err != nil {
		return nil, err
	}
	return &m, nil
}

// Validate checks that nodes are distinct and that each given matrix is square,
// with one row and one column for each node, and without negative figures. The
// error joins one *strictyaml.FieldError for each invalid field.
func (m *Measured) Validate() error {
	var errs []error
	fail := func(field, value, allowed string, args ...any) {
		errs = append(errs, &strictyaml.FieldError{Field: field, Value: value, Allowed: fmt.Sprintf(allowed, args...)})
	}
	seen := map[NodeID]bool{}
	for i, n := range m.Nodes {
		if n < 0 || n > maxID || seen[n] {
			fail(fmt.Sprintf("nodes[%d]", i), fmt.Sprint(n), "distinct node numbers from 0 to %d", maxID)
		}
		seen[n] = true
	}
	if len(m.Nodes) == 0 {
		fail("nodes", "empty", "the node numbers in the order of rows and columns")
	}
	if m.LatencyNanos == nil && m.BandwidthMBps == nil {
		errs = append(errs, errors.New("latency_ns, bandwidth_mbps: both missing; give at least one"))
	}
	errs = append(errs, checkMatrix("latency_ns", m.LatencyNanos, len(m.Nodes)),
		checkMatrix("bandwidth_mbps", m.BandwidthMBps, len(m.Nodes)))
	return errors.Join(errs...)
}

// checkMatrix returns the first invalid field.
func checkMatrix(field string, rows [][]float64, n int) error {
	if rows == nil {
		return nil
	}
	if len(rows) != n {
		return &strictyaml.FieldError{Field: field, Value: text.Count(len(rows), "row", "rows"),
			Allowed: fmt.Sprintf("one for each of %s", text.Count(n, "node", "nodes"))}
	}
	for i, row := range rows {
		at := fmt.Sprintf("%s[%d]", field, i)
		if len(row) != n {
			return &strictyaml.FieldError{Field: at, Value: text.Count(len(row), "figure", "figures"),
				Allowed: fmt.Sprintf("one for each of %s", text.Count(n, "node", "nodes"))}
		}
		for j, v := range row {
			if !(v >= 0) || math.IsInf(v, 0) {
				return &strictyaml.FieldError{Field: fmt.Sprintf("%s[%d]", at, j), Value: fmt.Sprint(v),
					Allowed: "0 (unknown) or a positive figure"}
			}
		}
	}
	return nil
}
