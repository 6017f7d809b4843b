package libxl_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/libxl"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// host has four nodes of two CPUs and 4 GiB, with free GiB and VMs of one vCPU pinned to nodes.
func host(t *testing.T, free [4]int, vms ...topology.NodeID) *inventory.Host {
	t.Helper()
	topo, err := topology.Synthetic("nodes:4 cores:2 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	h := &inventory.Host{Version: inventory.Version, Topology: topo}
	for i := range free {
		h.Topology.Nodes[i].Free = topology.Bytes(free[i]) * topology.GiB
	}
	for i, n := range vms {
		id := guest.VCPUID(0)
		h.Guests = append(h.Guests, inventory.Guest{Name: fmt.Sprintf("vm%d", i), State: "running", Hypervisor: guest.Xen,
			Can: inventory.CapabilitiesOf(guest.Xen), Config: inventory.Config{VCPUs: 1},
			Seen: inventory.Seen{Threads: []inventory.Thread{{Role: inventory.RoleVCPU, VCPU: &id,
				Affinity: topo.Nodes[n].CPUs}}}})
	}
	return h
}

func TestChoose(t *testing.T) {
	for name, c := range map[string]struct {
		host   *inventory.Host
		vcpus  int
		memory int // GiB
		want   string
	}{
		"one node is enough":              {host(t, [4]int{2, 3, 4, 1}), 2, 1, "2"},
		"fewest vCPUs before free memory": {host(t, [4]int{2, 3, 4, 1}, 2, 1), 2, 1, "0"},
		"fewest nodes before vCPUs":       {host(t, [4]int{1, 1, 4, 1}, 2, 2, 2), 2, 4, "2"},
		"two nodes for their memory":      {host(t, [4]int{2, 2, 3, 3}), 2, 6, "2-3"},
		"two nodes for their CPUs":        {host(t, [4]int{4, 4, 3, 4}), 4, 1, "0-1"},
		"nothing fits":                    {host(t, [4]int{1, 1, 1, 1}), 2, 9, ""},
		"more vCPUs than CPUs":            {host(t, [4]int{4, 4, 4, 4}), 9, 1, ""},
	} {
		s := &guest.Spec{VCPUs: c.vcpus, Memory: topology.Bytes(c.memory) * topology.GiB}
		got, ok := libxl.Choose(c.host, s)
		if got.String() != c.want || ok != (c.want != "") {
			t.Errorf("%s: nodes %q, %v; want %q", name, got, ok, c.want)
		}
	}
	pooled := host(t, [4]int{4, 4, 4, 4})
	pooled.Pools = []inventory.Pool{{Name: "a", CPUs: pooled.Topology.Nodes[0].CPUs},
		{Name: "b", CPUs: pooled.Topology.Nodes[3].CPUs}}
	got, _ := libxl.Choose(pooled, &guest.Spec{VCPUs: 2, Memory: topology.GiB, Limits: guest.Limits{Pool: "b"}})
	if got.String() != "3" {
		t.Errorf("in the pool of node 3: nodes %q", got)
	}
}

// random draws a Xen host with VMs that fit, and a request.
func random(t *testing.T, r *rand.Rand) (*inventory.Host, guest.Spec) {
	t.Helper()
	nodes, cores := 2+r.IntN(7), 2+r.IntN(7)
	topo, err := topology.Synthetic(fmt.Sprintf("nodes:%d cores:%d memory:16G", nodes, cores))
	if err != nil {
		t.Fatal(err)
	}
	h := &inventory.Host{Version: inventory.Version, Topology: topo}
	for i := range h.Topology.Nodes {
		h.Topology.Nodes[i].Free = h.Topology.Nodes[i].Memory
	}
	for i := range r.IntN(3 * nodes) {
		n := &h.Topology.Nodes[r.IntN(nodes)]
		vcpus, memory := 1+r.IntN(cores), topology.Bytes(1+r.IntN(4))*topology.GiB
		if n.Free < memory {
			continue
		}
		n.Free -= memory
		g := inventory.Guest{Name: fmt.Sprintf("vm%d", i), State: "running", Hypervisor: guest.Xen,
			Can: inventory.CapabilitiesOf(guest.Xen), Config: inventory.Config{VCPUs: vcpus, Memory: memory},
			Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{n.ID: memory}}}
		pinned := r.IntN(2) == 0
		for v := range vcpus {
			id := guest.VCPUID(v)
			thread := inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id, Affinity: topo.CPUSet(), Preferred: n.CPUs}
			if pinned {
				thread.Affinity = n.CPUs
				if g.Config.Pins == nil {
					g.Config.Pins = map[guest.VCPUID]topology.CPUSet{}
				}
				g.Config.Pins[id] = n.CPUs
			}
			g.Seen.Threads = append(g.Seen.Threads, thread)
		}
		h.Guests = append(h.Guests, g)
	}
	s := guest.Spec{Name: "new", VCPUs: 1 + r.IntN(2*cores), Memory: topology.Bytes(1+r.IntN(20)) * topology.GiB}
	return h, s
}

// published is libxl's rule written again from libxl_numa.c and libxl_dom.c, as one sorted list of all sets of
// nodes: a set is a candidate if its nodes have the memory and the CPUs together; numa_cmpf prefers fewer vCPUs, then
// more free memory; sets of more nodes count only if no smaller set is a candidate, and none with fewer nodes than
// the vCPUs need by the CPUs of a node; of equal sets the first in the order of their nodes stays.
func published(h *inventory.Host, s *guest.Spec) (topology.NodeSet, bool) {
	type set struct {
		nodes             []topology.NodeID
		cpus, load, count int
		free              topology.Bytes
	}
	all := h.Topology.Nodes
	if len(all) < 2 || len(all) > 16 {
		return topology.NodeSet{}, false
	}
	var sets []set
	for mask := 1; mask < 1<<len(all); mask++ {
		var c set
		for i := range all {
			if mask&(1<<i) == 0 {
				continue
			}
			c.nodes = append(c.nodes, all[i].ID)
			c.cpus += all[i].CPUs.Len()
			c.free += all[i].Free
			for _, g := range h.Guests {
				for _, v := range g.Seen.Threads { // nr_vcpus: on each node that the soft affinity allows
					soft := v.Preferred
					if soft.IsEmpty() {
						soft = v.Affinity
					}
					if soft.Intersects(all[i].CPUs) {
						c.load++
					}
				}
			}
		}
		c.count = len(c.nodes)
		if c.free >= s.Memory && c.cpus >= s.VCPUs && c.count*all[0].CPUs.Len() >= s.VCPUs {
			sets = append(sets, c)
		}
	}
	if len(sets) == 0 {
		return topology.NodeSet{}, false
	}
	best := slices.MinFunc(sets, func(a, b set) int {
		return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(a.load, b.load), cmp.Compare(b.free, a.free),
			slices.Compare(a.nodes, b.nodes))
	})
	return topology.SetOf(best.nodes...), true
}

// Where libxl's rule is chosen, the nodes are those of an independent implementation of its published order.
func TestChoose_IsThePublishedOrder(t *testing.T) {
	const hosts = 1000
	r := rand.New(rand.NewPCG(2, 30))
	var several, none int
	for range hosts {
		h, s := random(t, r)
		got, ok := libxl.Choose(h, &s)
		want, fits := published(h, &s)
		if ok != fits || !got.Equal(want) {
			t.Fatalf("%d vCPUs, %v: nodes %q, %v; want %q, %v", s.VCPUs, s.Memory, got, ok, want, fits)
		}
		if want.Len() > 1 {
			several++
		}
		if !fits {
			none++
		}
	}
	if several == 0 || none == 0 {
		t.Errorf("of %d requests %d needed several nodes and %d did not fit: the hosts are too easy", hosts, several, none)
	}
}

// uneven reports whether the guest's memory is divided into parts of unequal size, or in one part on several nodes.
func uneven(p *guest.Placement) bool {
	for _, c := range p.Cells {
		if c.Nodes.Len() > 1 || max(c.Memory, p.Cells[0].Memory)-min(c.Memory, p.Cells[0].Memory) > topology.GiB {
			return true
		}
	}
	return false
}

// By our objective our placement is never worse than the best one on the nodes that libxl chooses.
func TestChoose_IsNeverBetterThanOurs(t *testing.T) {
	const hosts = 1000
	r := rand.New(rand.NewPCG(1, 30))
	var compared, same, refused, parts int
	for range hosts {
		h, s := random(t, r)
		nodes, ok := libxl.Choose(h, &s)
		if !ok {
			continue
		}
		theirs := s
		theirs.Limits.Nodes = nodes
		there, whyThere, err := place.Place(place.Request{Host: h, Spec: theirs, WithoutAdvice: true})
		if err != nil {
			refused++ // libxl counts neither promised memory nor overcommit
			continue
		}
		ours, why, err := place.Place(place.Request{Host: h, Spec: s, WithoutAdvice: true})
		if err != nil {
			t.Fatalf("libxl's nodes %s fit, and Place finds none: %v", nodes, err)
		}
		if uneven(&ours) || uneven(&there) {
			parts++ // equal parts come before unequal ones, whatever they cost
			continue
		}
		compared++
		if ours.Nodes.Equal(there.Nodes) {
			same++
		}
		if worse := why.Overload > whyThere.Overload || why.Overload == whyThere.Overload &&
			(why.SharingCores > whyThere.SharingCores || why.SharingCores == whyThere.SharingCores &&
				why.Cost > whyThere.Cost+1e-9 && ours.Nodes.Len() >= there.Nodes.Len()); worse {
			t.Errorf("libxl's nodes %s are better: overload %d, cost %.4f; ours %s: overload %d, cost %.4f", nodes,
				whyThere.Overload, whyThere.Cost, ours.Nodes, why.Overload, why.Cost)
		}
	}
	t.Logf("of %d hosts %d were compared, %d with the same nodes; on %d our rules refuse libxl's nodes, on %d the VM has "+
		"unequal parts", hosts, compared, same, refused, parts)
	if compared < hosts/2 {
		t.Errorf("only %d of %d hosts were compared", compared, hosts)
	}
}
