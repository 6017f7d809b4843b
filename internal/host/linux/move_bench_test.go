package linux

import (
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// plainSpace answers at once and moves every requested page: a move on it costs
// only the mover's own time.
type plainSpace []int32

func (s plainSpace) query(addresses []uint64, statuses []int32) error {
	for i, a := range addresses {
		statuses[i] = s[a/4096]
	}
	return nil
}

func (s plainSpace) move(addresses []uint64, nodes, statuses []int32) error {
	for i, a := range addresses {
		s[a/4096], statuses[i] = nodes[i], nodes[i]
	}
	return nil
}

func (plainSpace) pagemap(uint64, []byte) (int, error) { return 0, nil }
func (plainSpace) zero(uint64) bool                    { return false }
func (plainSpace) touch([]uint64) int                  { return 0 }

// The mover's own time for each page of 4 KiB; the kernel takes 1000 ns or more
// to move one.
func BenchmarkMoverOwnCost(b *testing.B) {
	const pages = 1 << 17
	space := make(plainSpace, pages)
	m := Mover{space: space}
	r := inventory.MemoryRange{Size: pages * 4 * topology.KiB, PageSize: 4 * topology.KiB}
	b.ReportAllocs()
	for i := range b.N {
		result, err := m.Move(b.Context(), r, topology.SetOf(topology.NodeID((i+1)%2)))
		if err != nil || result.Moved != r.Size {
			b.Fatal(result.Moved, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/pages, "ns/page")
}
