package migrate

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// ofXen is a running VM with equal memory on each of the nodes.
func ofXen(memory topology.Bytes, vcpus int, nodes ...topology.NodeID) *inventory.Guest {
	g := &inventory.Guest{Name: "vm", UUID: "u1", Hypervisor: guest.Xen, Can: inventory.CapabilitiesOf(guest.Xen),
		State: "running", Pool: "Pool-0", Config: inventory.Config{VCPUs: vcpus, Memory: memory},
		Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{}}}
	for _, n := range nodes {
		g.Seen.MemoryByNode[n] = memory / topology.Bytes(len(nodes))
	}
	return g
}

func xenHost(t fataler, name, machine string) *inventory.Host {
	topo, err := topology.Synthetic(machine)
	if err != nil {
		t.Fatal(err)
	}
	return &inventory.Host{Version: inventory.Version, Name: name, ID: name, Topology: topo,
		Pools: []inventory.Pool{{Name: "Pool-0", Scheduler: "credit2", CPUs: topo.CPUSet()}}}
}

// Whatever the target is, the VM gets no more nodes than hold its memory, and a placement that is legal there; else it
// is refused.
func TestAlone_NodesDoNotBecomeMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		machines := []string{"nodes:2 cores:4 memory:4G", "nodes:4 cores:2 memory:2G", "nodes:8 cores:1 memory:1G",
			"nodes:1 cores:8 memory:8G"}
		source := xenHost(t, "source", machines[1])
		target := xenHost(t, "target", rapid.SampledFrom(machines).Draw(t, "machine"))
		homes := rapid.IntRange(1, 4).Draw(t, "nodes")
		g := ofXen(topology.Bytes(rapid.IntRange(1, 40).Draw(t, "memory"))*128*topology.MiB,
			rapid.IntRange(1, 8).Draw(t, "vcpus"), []topology.NodeID{0, 1, 2, 3}[:homes]...)
		i, _, _, err := Alone{Guest: g, Source: source, Target: target}.Decide()
		if err != nil {
			return
		}
		if i.Placement.Nodes.Len() > homes || i.Placement.Nodes.IsEmpty() {
			t.Fatalf("memory on %d nodes comes to nodes %s", homes, i.Placement.Nodes)
		}
		if found := check.Placement(target, policy.Policy{}, i.Spec, i.Placement); len(found) > 0 {
			t.Fatalf("not legal: %v", found)
		}
		if i.Host.ID != "target" {
			t.Fatalf("the intent is for host %q", i.Host.ID)
		}
	})
}

// Limits by numbers mean other things on another host: they end, and a note says so. A limit to a number of nodes
// stays.
func TestAlone_Limits(t *testing.T) {
	g := ofXen(topology.GiB, 2, 3)
	spec := guest.Spec{Name: "vm", VCPUs: 2, Memory: topology.GiB, Limits: guest.Limits{
		Nodes: topology.SetOf[topology.NodeID](3), CPUs: topology.SetOf[topology.CPUID](6, 7), MaxNodes: 1}}
	normal, err := spec.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	g.Managed, g.Spec = true, &normal
	a := Alone{Guest: g, Source: xenHost(t, "source", "nodes:4 cores:2 memory:2G"),
		Target: xenHost(t, "target", "nodes:2 cores:4 memory:4G")}
	i, _, notes, err := a.Decide()
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "those of this host") {
		t.Fatalf("notes %q, error %v", notes, err)
	}
	if l := i.Spec.Limits; !l.Nodes.IsEmpty() || !l.CPUs.IsEmpty() || l.MaxNodes != 1 {
		t.Errorf("limits on the target are %+v", l)
	}
	g.Can.Migrate = false
	if _, _, _, err := a.Decide(); err == nil || !strings.Contains(err.Error(), "fleet") {
		t.Errorf("a VM whose hypervisor does not migrate: error %v", err)
	}
}
