package balance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// checks is how many random hosts a property is tested on.
func checks(all int) int {
	if testing.Short() {
		return all / 20
	}
	return all
}

// No VM that was placed moves alone: balancing does not undo what placing decided. Where every
// VM is on one node, nothing moves at all. Where one had to be divided, others may make room for
// it on nodes that had none when it was placed, because placing one VM moves no other. No
// VM asks for more CPUs than it has vCPUs, and no node is promised more vCPUs than CPUs.
func TestPlan_MovesNoVMThatWasPlaced(t *testing.T) {
	p := policy.Policy{Overcommit: 1}
	vms, moves, knows := 0, 0, 0
	for seed := range checks(10_000) {
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		h, before := placedHost(t, r, p)
		vms += len(h.Guests)
		round := planned(t, h, p)
		for i, move := range round.Moves {
			moves++
			for _, g := range move.Guests {
				if hadRoom(before[g.Guest], *g.Undo.Placement, p) {
					knows++ // hadRoom can also say yes
				}
			}
			if i == 0 && len(move.Guests) == 1 || !slices.ContainsFunc(move.Guests, func(g plan.GuestMove) bool {
				return g.Undo.Placement.Nodes.Len() > 1 && !hadRoom(before[g.Guest], g.Placement, p)
			}) {
				t.Fatalf("host %d: %s%s", seed, described(h), round.Text())
			}
		}
	}
	t.Logf("%d moves on %d hosts", moves, checks(10_000))
	if knows < moves {
		t.Errorf("%d VMs of %d moves had room where they were placed: the test misses its point", knows, moves)
	}
	if vms < 3*checks(10_000) {
		t.Errorf("%d VMs prove little", vms)
	}
}

// arrival is a VM and the host when it was placed.
type arrival struct {
	host inventory.Host
	spec guest.Spec
}

// hadRoom reports whether a VM could have been placed on the nodes of a placement at first.
func hadRoom(a arrival, placed guest.Placement, p policy.Policy) bool {
	_, err := place.On(place.Request{Host: &a.host, Spec: a.spec, Policy: p}, placed.Nodes.IDs())
	return err == nil
}

func placedHost(t *testing.T, r *rand.Rand, p policy.Policy) (h *inventory.Host, before map[string]arrival) {
	t.Helper()
	before = map[string]arrival{}
	h = machine(fmt.Sprintf("nodes:%d cores:8 memory:32G distances:10,16,28 square", 2+2*r.IntN(2)))
	for i := range 2 + r.IntN(8) {
		s, err := guest.Spec{Name: fmt.Sprintf("g%d", i), VCPUs: 1 + r.IntN(8),
			Memory: topology.Bytes(1+r.IntN(16)) * gib}.Normalize()
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := place.Place(place.Request{Host: h, Spec: s, Policy: p})
		if noFit := new(place.NoFitError); errors.As(err, &noFit) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		before[s.Name] = arrival{*h, s}
		g := inventory.Guest{Name: s.Name, Hypervisor: guest.LibvirtQEMU, State: "running", Managed: true,
			Can:    inventory.CapabilitiesOf(guest.LibvirtQEMU),
			Config: inventory.Config{VCPUs: s.VCPUs, Memory: s.Memory, Source: "memfd"}}
		for k := range s.VCPUs {
			id := guest.VCPUID(k)
			g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id})
		}
		g.Seen.MemoryByNode = topology.MemoryByNode{0: s.Memory}
		g.Seen.Load = &inventory.GuestLoad{CPU: float64(s.VCPUs) * r.Float64(), MemoryMBps: 4000 * r.Float64()}
		*h = with(*h, g, s, got) // with the memory on the nodes of the placement
	}
	return h, before
}

// No move of a plan is one without which the plan would relieve as much.
func TestPlan_NoMoveIsNeedless(t *testing.T) {
	drawn := rapid.Custom(func(t *rapid.T) *inventory.Host {
		return drawSmall(t, rapid.IntRange(2, 4).Draw(t, "nodes"), rapid.IntRange(1, 8).Draw(t, "guests"))
	})
	moves := 0
	for seed := range checks(10_000) {
		h := drawn.Example(seed)
		round := planned(t, h, policy.Policy{})
		m := newModel(Request{Host: h, Now: noon, Lasting: true})
		to := map[string]change{}
		for _, move := range round.Moves {
			moves++
			for _, g := range move.Guests {
				for i := range m.guests {
					for l := range m.guests[i].layouts {
						if m.guests[i].name() == g.Guest && l > 0 &&
							m.nodeSet(&m.guests[i].layouts[l]).Equal(g.Placement.Nodes) {
							to[g.Guest] = change{i, l}
						}
					}
				}
			}
		}
		began := m.lost()
		for _, move := range round.Moves {
			var rest []change
			for name, c := range to {
				if move.Guests[0].Guest != name && (len(move.Guests) == 1 || move.Guests[1].Guest != name) {
					rest = append(rest, c)
				}
			}
			if _, ok := m.try(rest...); !ok || len(move.Guests) > 2 {
				continue // it makes room for others
			}
			m.apply(rest...)
			without := m.lost()
			for _, g := range move.Guests {
				m.apply(to[g.Guest])
			}
			after := m.lost()
			for i := range m.guests {
				m.apply(change{i, 0})
			}
			if without.saved(after) < minSaved-1e-9 {
				t.Fatalf("host %d: %s%v lost at first, %v without %s, %v with it\n%s", seed, described(h), began, without, move,
					after, round.Text())
			}
		}
	}
	if moves < checks(10_000) {
		t.Errorf("%d moves prove little", moves)
	}
}
