package balance

import (
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// A mass start leaves VMs of others so: all memory on one node, vCPUs free to
// run anywhere. Each gets a node of its own.
func TestAMassStartOfOthers(t *testing.T) {
	h := machine("nodes:4 cores:4 memory:2G distances:10,16,28 square")
	for i := range 3 {
		add(
			h,
			vm{
				name:    fmt.Sprintf("w%d", i),
				vcpus:   2,
				memory:  352 * topology.MiB,
				cpus:    on(0, 1, 2, 3),
				lies:    topology.MemoryByNode{0: 352 * topology.MiB},
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
	var all topology.NodeSet
	for _, g := range []string{"w0", "w1", "w2"} {
		to := goesTo(round, g)
		if to.Len() != 1 || to.Intersects(all) {
			t.Errorf("%s goes to nodes %s, others to %s\n%s", g, to, all, round.Text())
		}
		all = all.Union(to)
	}
}
