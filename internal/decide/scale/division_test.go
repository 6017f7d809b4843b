package scale

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// onTwoNodes is the placement of a VM of four vCPUs without visible cells, on both nodes of a host: CPUs 0 to 3 and
// 4 to 7.
func onTwoNodes(t testing.TB) (*guest.Placement, *topology.Topology) {
	t.Helper()
	topo, err := topology.Synthetic("nodes:2 cores:4")
	if err != nil {
		t.Fatal(err)
	}
	p := &guest.Placement{CPUMode: guest.CPURange, Scale: &guest.Scale{Min: 1, Weight: 100}, Cells: []guest.Cell{
		{Nodes: topology.SetOf[topology.NodeID](0, 1), VCPUs: topology.Range[guest.VCPUID](0, 3)},
	}}
	for v := range 4 {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: topo.CPUSet()})
	}
	return p, &topo
}

// swapped are accesses of vCPUs that all run far from their memory.
func swapped() []inventory.VCPUAccess {
	return []inventory.VCPUAccess{vcpu(0, 1, 90, 10), vcpu(1, 1, 80, 20), vcpu(2, 0, 10, 90), vcpu(3, 0, 20, 80)}
}

var wide = map[topology.NodeID]int{0: 4, 1: 4}

func TestDivisionIsCarriedOutWhenTwoSamplesAskForIt(t *testing.T) {
	p, topo := onTwoNodes(t)
	now := time.Unix(1_800_000_000, 0)
	once := Dividing{}.Next(p, topo, swapped(), wide, now)
	if len(once.Now) > 0 {
		t.Errorf("divided after one sample: %v", once.Now)
	}
	if other := once.Next(p, topo, nil, wide, now).Next(p, topo, swapped(), wide, now); len(other.Now) > 0 {
		t.Errorf("divided after two samples and one without accesses between them: %v", other.Now)
	}
	twice := once.Next(p, topo, swapped(), wide, now)
	if want := (Division{0: 0, 1: 0, 2: 1, 3: 1}); !maps.Equal(twice.Now, want) {
		t.Fatalf("%v, want %v", twice.Now, want)
	}
	low, high := topology.Range[topology.CPUID](0, 3), topology.Range[topology.CPUID](4, 7)
	for v, cpus := range twice.Now.CPUs(p, topo) {
		if want := map[bool]topology.CPUSet{true: low, false: high}[v < 2]; !cpus.Equal(want) {
			t.Errorf("vCPU %d runs on %s, want %s", v, cpus, want)
		}
	}
	if texts := (&inventory.Scaled{Divided: twice.Now.ByNode()}).DividedText(); texts != "0-1 on node 0, 2-3 on node 1" {
		t.Error(texts)
	}
}

// A vCPU that is idle for a moment stays bound: else each pause of a thread would change the division twice.
func TestAnIdleVCPUStaysBound(t *testing.T) {
	p, topo := onTwoNodes(t)
	want := Division{0: 0, 1: 0, 2: 1, 3: 1}
	d, now := Dividing{Now: want}, time.Unix(1_800_000_000, 0)
	for range 3 {
		if d = d.Next(p, topo, swapped()[:3], wide, now); !maps.Equal(d.Now, want) {
			t.Fatalf("%v, want %v", d.Now, want)
		}
	}
}

func TestDivisionEnds(t *testing.T) {
	p, topo := onTwoNodes(t)
	start := time.Unix(1_800_000_000, 0)
	divided := Dividing{Now: Division{0: 0, 1: 0, 2: 1, 3: 1}}
	even := []inventory.VCPUAccess{vcpu(0, 0, 51, 49), vcpu(1, 0, 50, 50), vcpu(2, 1, 50, 50), vcpu(3, 1, 49, 51)}
	for _, c := range []struct {
		name     string
		accesses []inventory.VCPUAccess
		room     map[topology.NodeID]int
		every    time.Duration
		samples  int
	}{
		{"when memory is spread evenly", even, wide, time.Second, 2},
		{"when the nodes have too few CPUs", swapped(), map[topology.NodeID]int{0: 2, 1: 1}, time.Second, 2},
		{"a minute after the last measured accesses", nil, wide, 10 * time.Second, 7},
		{"a minute after the last accesses", []inventory.VCPUAccess{vcpu(0, 0)}, wide, 10 * time.Second, 7},
	} {
		d := divided
		for i := range c.samples {
			if len(d.Now) == 0 {
				t.Errorf("%s: ended after %d samples", c.name, i)
			}
			d = d.Next(p, topo, c.accesses, c.room, start.Add(time.Duration(i)*c.every))
		}
		if len(d.Now) > 0 {
			t.Errorf("%s: continues: %v", c.name, d.Now)
		}
	}
}

// Noise of a fifth changes no division, and begins none of memory that is spread evenly.
func TestNoiseChangesNoDivision(t *testing.T) {
	p, topo := onTwoNodes(t)
	rapid.Check(t, func(t *rapid.T) {
		noise := func(of []inventory.VCPUAccess) []inventory.VCPUAccess {
			out := make([]inventory.VCPUAccess, len(of))
			for i, a := range of {
				out[i] = inventory.VCPUAccess{VCPU: a.VCPU, On: a.On, ByNode: map[topology.NodeID]float64{}}
				for _, n := range []topology.NodeID{0, 1} {
					out[i].ByNode[n] = a.ByNode[n] * rapid.Float64Range(0.8, 1.2).Draw(t, "noise")
				}
			}
			return out
		}
		apart, even := Dividing{}, Dividing{}
		now := time.Unix(1_800_000_000, 0)
		for i := range 20 {
			apart = apart.Next(p, topo, noise(swapped()), wide, now)
			if want := (Division{0: 0, 1: 0, 2: 1, 3: 1}); i > 0 && !maps.Equal(apart.Now, want) {
				t.Fatalf("sample %d: %v, want %v", i, apart.Now, want)
			}
			spread := []inventory.VCPUAccess{vcpu(0, topology.NodeID(i%2), 50, 50), vcpu(1, 0, 50, 50), vcpu(2, 1, 50, 50)}
			if even = even.Next(p, topo, noise(spread), wide, now); len(even.Now) > 0 {
				t.Fatalf("sample %d: memory that is spread evenly is divided: %v", i, even.Now)
			}
		}
	})
}

// Whatever is measured, vCPUs run on CPUs of their placement only, no node has more of them than room, and a vCPU out
// of use is not bound.
func TestDivisionLaws(t *testing.T) {
	p, topo := onTwoNodes(t)
	rapid.Check(t, func(t *rapid.T) {
		d, now := Dividing{}, time.Unix(1_800_000_000, 0)
		for range rapid.IntRange(1, 8).Draw(t, "samples") {
			var accesses []inventory.VCPUAccess
			for v := range 6 { // two vCPUs that the placement does not have
				if rapid.Bool().Draw(t, "measured") {
					count := func() float64 { return rapid.SampledFrom([]float64{0, 0, 1, 50, 1e3, 1e9}).Draw(t, "count") }
					accesses = append(accesses, vcpu(v, topology.NodeID(rapid.IntRange(0, 1).Draw(t, "on")), count(), count()))
				}
			}
			room := map[topology.NodeID]int{0: rapid.IntRange(0, 5).Draw(t, "room"), 1: rapid.IntRange(0, 5).Draw(t, "room")}
			before := d.Now
			d = d.Next(p, topo, accesses, room, now)
			now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "pause")) * time.Second)
			on, most := map[topology.NodeID]int{}, 1.0
			for _, a := range accesses {
				if a.VCPU < 4 {
					most = max(most, a.Total())
				}
			}
			for _, a := range accesses { // one that is idle takes no room
				if n, bound := d.Now[a.VCPU]; bound && a.Total() >= most/100 {
					on[n]++
				}
			}
			for v := range d.Now {
				unused := !slices.ContainsFunc(accesses, func(a inventory.VCPUAccess) bool { return a.VCPU == v && a.Total() > 0 })
				if _, bound := before[v]; v > 3 || unused && !bound {
					t.Fatalf("vCPU %d is bound: %v", v, d.Now)
				}
			}
			if !maps.Equal(d.Now, before) && (on[0] > room[0] || on[1] > room[1]) {
				t.Fatalf("%v, room %v", d.Now, room)
			}
			for v, cpus := range d.Now.CPUs(p, topo) {
				if cpus.IsEmpty() || !cpus.SubsetOf(p.VCPUs[v].CPUs) {
					t.Fatalf("vCPU %d runs on %s", v, cpus)
				}
			}
		}
	})
}

func TestDivisionOfAffinities(t *testing.T) {
	p, topo := onTwoNodes(t)
	var threads []inventory.Thread
	for v, cpus := range []topology.CPUSet{
		topology.Range[topology.CPUID](0, 3), topo.CPUSet(), topology.SetOf[topology.CPUID](5),
		topology.Range[topology.CPUID](4, 7),
	} {
		id := guest.VCPUID(v)
		threads = append(threads, inventory.Thread{TID: 10 + v, VCPU: &id, Affinity: cpus})
	}
	threads = append(threads, inventory.Thread{TID: 20, Affinity: topology.SetOf[topology.CPUID](0)}) // no vCPU
	if got, want := DivisionOf(p, topo, threads), (Division{0: 0, 3: 1}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	p.Cells[0].Nodes = topology.SetOf[topology.NodeID](0)
	if got := DivisionOf(p, topo, threads); len(got) > 0 {
		t.Errorf("vCPUs of a cell on one node are divided: %v", got)
	}
}
