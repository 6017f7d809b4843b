package linux

import (
	"context"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// placedSpace records the CPUs of the thread that moves pages.
type placedSpace struct {
	fakeSpace
	ran []topology.CPUSet
}

func (p *placedSpace) move(addresses []uint64, nodes, statuses []int32) error {
	cpus, err := Affinity(0)
	if err != nil {
		return err
	}
	p.ran = append(p.ran, cpus)
	return p.fakeSpace.move(addresses, nodes, statuses)
}

// Pages are moved by a thread on the CPUs of their nodes, where it may run there.
func TestMove_NearThePages(t *testing.T) {
	all, err := Affinity(0)
	if err != nil {
		t.Fatal(err)
	}
	if all.Len() < 2 {
		t.Skip("one CPU")
	}
	first, _ := all.First()
	for name, c := range map[string]struct{ cpus, want topology.CPUSet }{
		"some CPUs":                  {topology.SetOf(first), topology.SetOf(first)},
		"some that are not allowed":  {topology.SetOf(first, 5000), topology.SetOf(first)},
		"none":                       {topology.CPUSet{}, all},
		"none that this process has": {topology.SetOf(topology.CPUID(5000)), all},
	} {
		f := &placedSpace{fakeSpace: fakeSpace{room: map[int32]int{}, node: []int32{0, 3, 1}, huge: make([]bool, 3),
			hidden: make([]bool, 3), pinned: make([]bool, 3)}}
		var asked topology.NodeSet
		m := Mover{space: f, CPUs: func(n topology.NodeSet) topology.CPUSet { asked = n; return c.cpus }}
		r, err := m.Move(context.Background(), inventory.MemoryRange{Size: 3 * 4096, PageSize: 4096}, nodes("1"))
		if err != nil || r.Moved != 2*4096 {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if !asked.Equal(nodes("0-1,3")) {
			t.Errorf("%s: CPUs of nodes %v", name, asked)
		}
		for _, ran := range f.ran {
			if !ran.Equal(c.want) {
				t.Errorf("%s: moved by a thread on CPUs %v", name, ran)
			}
		}
		if after, err := Affinity(0); err != nil || !after.Equal(all) {
			t.Errorf("%s: on CPUs %v later, %v", name, after, err)
		}
	}
}
