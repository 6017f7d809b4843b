package balance

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// crowded returns a host with guests on arbitrary nodes: some wait for CPUs,
// some have remote memory.
func crowded(nodes, guests int) *inventory.Host {
	h := machine(fmt.Sprintf("nodes:%d cores:48 threads:2 memory:1T distances:10,16,28 by-socket sockets:2", nodes))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range guests {
		n := topology.NodeID(r.IntN(nodes))
		if r.IntN(3) == 0 {
			n /= 2
		}
		v := vm{
			name:   fmt.Sprintf("g%03d", i),
			vcpus:  1 + r.IntN(4),
			memory: topology.Bytes(1+r.IntN(8)) * gib,
			cpus:   on(n),
		}
		v.used = float64(v.vcpus) * r.Float64()
		v.wait = (float64(v.vcpus) - v.used) * r.Float64() / 2
		if r.IntN(4) == 0 {
			v.memOn = bytesOn(topology.NodeID(r.IntN(nodes)), v.memory)
		}
		add(h, v)
	}
	return h
}

// The target is less than 50 ms for 500 guests on 8 nodes.
func BenchmarkPlan500On8(b *testing.B) {
	h := crowded(8, 500)
	for b.Loop() {
		if round := mustPlan(b, h); len(round.Moves) == 0 {
			b.Fatal("nothing to move")
		}
	}
}

func BenchmarkPlan500On64(b *testing.B) {
	h := crowded(64, 500)
	for b.Loop() {
		mustPlan(b, h)
	}
}

// In the lab, an emulated CPU that others share is a hundred times slower, and the VMs wait for the plan.
func BenchmarkPlanSmearedOver8(b *testing.B) {
	h, _ := smearedOverEight()
	for b.Loop() {
		if round := mustPlan(b, h); len(round.Moves) == 0 {
			b.Fatal("nothing to move")
		}
	}
}

func TestManyNodesManyGuests(t *testing.T) {
	h := crowded(64, 500)
	round := planned(t, h, policy.Policy{})
	if len(round.Moves) == 0 || round.After >= round.Before {
		t.Errorf("a quarter of 500 guests is far from its memory\n%s", round.Text())
	}
	guests := 0
	for _, m := range round.Moves {
		guests += len(m.Guests)
	}
	if guests > 8 {
		t.Errorf("%d guests in one round", guests)
	}
}

func mustPlan(b *testing.B, h *inventory.Host) plan.Plan {
	b.Helper()
	round, err := Plan(Request{Host: h, Now: noon, Lasting: true})
	if err != nil {
		b.Fatal(err)
	}
	return round
}
