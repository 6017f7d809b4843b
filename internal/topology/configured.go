package topology

import (
	"errors"
	"fmt"
)

// ErrNotHere means that the operator named CPUs or nodes that are not on the
// host: the intention is unclear, so none of the values apply.
var ErrNotHere = errors.New("not on this host")

// Housekeep sets CPUs aside for the host on the operator's request, in addition
// to those that the kernel sets aside. The operator may name offline CPUs; they
// have no effect.
func (t *Topology) Housekeep(cpus CPUSet) error {
	online := t.CPUSet()
	if strange := cpus.Minus(online.Union(t.Offline)); !strange.IsEmpty() {
		return fmt.Errorf("housekeeping CPUs %s: %w, which has CPUs %s", strange, ErrNotHere, online)
	}
	t.Housekeeping = t.Housekeeping.Union(cpus.Intersect(online))
	return nil
}

// Measure replaces the firmware's figures with the operator's measured ones,
// and classifies distances by them. Nodes without a figure may be missing.
func (t *Topology) Measure(m *Measured) error {
	if strange := SetOf(m.Nodes...).Minus(t.NodeSet()); !strange.IsEmpty() {
		return fmt.Errorf("measured matrix (%s): nodes %s: %w, which has nodes %s", m.Source, strange, ErrNotHere,
			t.NodeSet())
	}
	t.Measured = m
	t.Classify()
	return nil
}
