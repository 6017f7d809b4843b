package topology

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMemoryByNode(t *testing.T) {
	m := MemoryByNode{3: MiB, 0: GiB, 1: 0}
	if got := m.String(); got != "0: 1 GiB, 3: 1 MiB" {
		t.Errorf("String() = %q", got)
	}
	if diff := cmp.Diff([]NodeID{0, 3}, m.Nodes()); diff != "" {
		t.Errorf("Nodes() (-want +got):\n%s", diff)
	}
	if got := m.Total(); got != GiB+MiB {
		t.Errorf("Total() = %v", got)
	}
	if got := m.On(MustParseSet[NodeID]("1-9")); got != MiB {
		t.Errorf("On(1-9) = %v", got)
	}
	m.Add(MemoryByNode{3: MiB, 5: KiB})
	if got := m.String(); got != "0: 1 GiB, 3: 2 MiB, 5: 1 KiB" {
		t.Errorf("after Add: %q", got)
	}
	if got := MemoryByNode(nil).String(); got != "-" {
		t.Errorf("String() of nothing = %q", got)
	}
	if got := (MemoryByNode{0: math.MaxUint64, 1: 1}).Total(); got != math.MaxUint64 {
		t.Errorf("Total() wraps round to %v", got)
	}
}
