package drift_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// The local share of one cell is the chance that a random access is local:
// counted here pair by pair, CPU time times byte.
func TestLocalShareIsTheChanceOfALocalAccess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := host()
		g := inventory.Guest{Config: inventory.Config{VCPUs: 3}, Seen: inventory.Seen{MemoryByNode: byNode{}}}
		for _, n := range top.Nodes {
			g.Seen.MemoryByNode[n.ID] = topology.Bytes(rapid.IntRange(0, 5).Draw(t, "bytes"))
		}
		for v := range guest.VCPUID(3) {
			thread := vcpu(v, "", "")
			thread.RunTime = time.Duration(rapid.IntRange(1, 4).Draw(t, "seconds")) * time.Second
			thread.Affinity = topology.SetOf(
				rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 5), func(i int) topology.CPUID { return topology.CPUID(i) }),
					1, 4).
					Draw(t, "affinity")...)
			thread.LastCPU = topology.CPUID(rapid.IntRange(-1, 5).Draw(t, "last CPU"))
			g.Seen.Threads = append(g.Seen.Threads, thread)
		}
		local, all := 0.0, 0.0
		for _, thread := range g.Seen.Threads {
			on := thread.Affinity
			if on.Contains(thread.LastCPU) {
				on = topology.SetOf(thread.LastCPU)
			}
			for c := range on.All() {
				at, _ := top.CPU(c)
				for node, bytes := range g.Seen.MemoryByNode {
					weight := thread.RunTime.Seconds() / float64(on.Len()) * float64(bytes)
					all += weight
					if node == at.Node {
						local += weight
					}
				}
			}
		}
		got := drift.LocalShare(g, top)
		if all == 0 {
			if got != nil {
				t.Fatalf("local share %v of no memory", *got)
			}
			return
		}
		if got == nil || math.Abs(*got-local/all) > 1e-9 {
			t.Fatalf("local share %s, counted %.4f", text(got), local/all)
		}
	})
}

// Whatever is missing from an inventory: nothing panics, shares are between 0 and 1,
// and the same inventory gives the same answer.
func TestPartialInventories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, top := twoCells(), host()
		for i := range rapid.IntRange(0, 4).Draw(t, "losses") {
			lose(rapid.IntRange(0, 12).Draw(t, fmt.Sprint("loss ", i)), &g, top)
		}
		first := drift.Of(g, top)
		if diff := cmp.Diff(first, drift.Of(g, top)); diff != "" {
			t.Fatalf("differs the second time:\n%s", diff)
		}
		memory, cpus := drift.OnIntended(g)
		for name, share := range map[string]*float64{"memory": memory, "vCPUs": cpus, "local": drift.LocalShare(g,
			top)} {
			if share != nil && !(*share >= 0 && *share <= 1) {
				t.Fatalf("share %s is %v", name, *share)
			}
		}
	})
}

func lose(what int, g *inventory.Guest, t *topology.Topology) {
	switch what {
	case 0:
		g.Seen.Threads = nil
	case 1:
		g.Seen.Ranges = nil
	case 2:
		g.Seen.MemoryByNode = nil
	case 3:
		g.Config.Cells = nil
	case 4:
		*t = topology.Topology{}
	case 5:
		t.Nodes = t.Nodes[:min(1, len(t.Nodes))]
	case 6:
		t.CPUs = nil
	case 7:
		g.Placement = &guest.Placement{}
	case 8:
		g.Placement = nil
	case 9:
		for i := range g.Seen.Threads {
			g.Seen.Threads[i].VCPU, g.Seen.Threads[i].Affinity = nil, topology.CPUSet{}
		}
	case 10:
		for i := range g.Seen.Ranges {
			g.Seen.Ranges[i].ByNode, g.Seen.Ranges[i].Policy = nil, "weighted interleave:x-y"
		}
	case 11:
		for i := range g.Seen.Ranges {
			far := guest.CellID(9)
			g.Seen.Ranges[i].Cell = &far
		}
	case 12:
		g.Seen.MemoryByNode = byNode{99: mib}
	}
}
