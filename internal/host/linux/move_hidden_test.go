package linux

import (
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
)

// scannedSpace is a space whose pages NUMA balancing hides again after each of some moves.
type scannedSpace struct {
	*fakeSpace
	scans int
}

func (s *scannedSpace) move(addresses []uint64, nodes, statuses []int32) error {
	err := s.fakeSpace.move(addresses, nodes, statuses)
	if s.scans--; s.scans >= 0 {
		for i := range s.hidden {
			s.hidden[i] = true
		}
	}
	return err
}

// Pages that NUMA balancing hides while they move count as moved, and those that have not moved yet still move.
func TestMove_PagesThatAreHiddenMeanwhile(t *testing.T) {
	const pages = 4096
	for _, huge := range []bool{true, false} {
		for scans := range 3 {
			f := &fakeSpace{node: make([]int32, pages), huge: make([]bool, pages), pinned: make([]bool, pages),
				hidden: make([]bool, pages)}
			for i := range f.huge {
				f.huge[i] = huge
			}
			r := inventory.MemoryRange{Size: pages * smallPage, PageSize: smallPage}
			got, err := Mover{PID: 1, space: &scannedSpace{f, scans}}.Move(t.Context(), r, nodes("1"))
			if err != nil || got.Moved != r.Size || got.Failed != 0 || got.After[1] != r.Size {
				t.Errorf("huge %v, %d scans: %+v, error %v", huge, scans, got, err)
			}
		}
	}
}
