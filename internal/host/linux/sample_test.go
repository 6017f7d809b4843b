package linux

import (
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// sampled is the kernel's report of where the pages of a mapping are.
type sampled struct {
	nodes  topology.NodeSet // nodes with pages
	pages  int              // all pages
	hidden int              // pages in the page table that move_pages(2) does not see
}

// sample asks the kernel where each page of a mapping is.
func sample(t *testing.T, pid int, r inventory.MemoryRange) (s sampled) {
	t.Helper()
	step := pageSizeOf(r)
	w := newWindow(pid, process(pid), r.Address, int(r.Size/step), step)
	if err := w.query(); err != nil {
		t.Fatal(err)
	}
	if err := w.findHidden(); err != nil {
		t.Fatal(err)
	}
	s.pages = len(w.statuses)
	for i, status := range w.statuses {
		if w.hidden[i] {
			s.hidden++
		} else if status >= 0 {
			s.nodes = s.nodes.With(topology.NodeID(status))
		}
	}
	return s
}

func newWindow(pid int, space addressSpace, address uint64, pages int, step topology.Bytes) *window {
	w := &window{pid: pid, space: space, step: step}
	w.slide(address, pages)
	return w
}
