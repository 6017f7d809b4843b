package balance

import (
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// After a mass start, unmanaged VMs have all their memory on one node and may run
// anywhere. Node 0 has a CPU for each vCPU of two of them, so only the third is copied.
func TestPlan_MassStartOfUnmanagedGuests(t *testing.T) {
	h := machine("nodes:4 cores:4 memory:2G distances:10,16,28 square")
	for i := range 3 {
		add(
			h,
			vm{
				name:    fmt.Sprintf("w%d", i),
				vcpus:   2,
				memory:  352 * topology.MiB,
				cpus:    on(0, 1, 2, 3),
				memOn:   topology.MemoryByNode{0: 352 * topology.MiB},
				used:    2,
				notOurs: true,
				change: func(g *inventory.Guest) {
					g.Config.NUMATune = &inventory.NUMATune{
						Mode:  "restrictive",
						Nodes: topology.MustParseSet[topology.NodeID]("0-3"),
					}
					g.Seen.Load.Remote = &inventory.Remote{Share: 0.75, Source: inventory.AccessCounter}
				},
			},
		)
	}
	round, err := Plan(Request{Host: h, Now: noon, Lasting: true})
	if err != nil {
		t.Fatal(err)
	}
	at := map[topology.NodeID]int{}
	for _, g := range []string{"w0", "w1", "w2"} {
		to := goesTo(round, g)
		if to.Len() != 1 {
			t.Errorf("%s goes to nodes %s\n%s", g, to, round.Text())
		}
		node, _ := to.First()
		at[node]++
	}
	if len(at) != 2 || at[0] != 2 {
		t.Errorf("VMs by node: %v\n%s", at, round.Text())
	}
}
