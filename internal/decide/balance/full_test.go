package balance

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/numavisor/numavisor/internal/policy"
)

// With the preference pack, free CPUs cost a little and demand beyond a node's
// CPUs costs much more. Rounding errors must not count as such demand: guests that
// fill a node cost the same after a move there and back.
func TestModel_RoundingDoesNotOverloadFullNode(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		h := machine("nodes:3 cores:4 memory:16G distances:10,16,28 flat")
		left := 4.0
		for i := range 5 {
			used := left
			if i < 4 {
				used = r.Float64()
			}
			left -= used
			add(h, vm{name: fmt.Sprintf("g%d", i), vcpus: 4, memory: gib, cpus: on(0), used: used})
		}
		m := newModel(Request{Host: h, Policy: policy.Policy{Overcommit: 8, Prefer: policy.PreferPack}, Now: noon})
		before := m.total()
		for i := range m.guests { // all leave, and come back in another order
			m.apply(change{i, len(m.guests[i].layouts) - 1})
		}
		for _, i := range r.Perm(len(m.guests)) {
			m.apply(change{i, 0})
		}
		if after := m.total(); after > before+1e-6 || after < before-1e-6 {
			t.Fatalf("put back they cost %v, were %v: node 0 is used by %v", after, before, m.use(0))
		}
	}
}
