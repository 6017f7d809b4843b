package share_test

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/share"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// drawHost draws a host with two nodes of four CPUs, and running VMs with random CPUs: they share them, or have them
// for themselves.
func drawHost(t *rapid.T) *inventory.Host {
	topo, err := topology.Synthetic("nodes:2 cores:4 memory:8G")
	if err != nil {
		t.Fatal(err)
	}
	h := &inventory.Host{Topology: topo}
	free := topo.CPUSet().IDs()
	for i := range rapid.IntRange(1, 5).Draw(t, "VMs") {
		name := fmt.Sprintf("vm%d", i)
		p := guest.Placement{Guest: name, CPUMode: guest.CPURange}
		draw := func(what string) (set topology.CPUSet) {
			for _, id := range rapid.SliceOfDistinct(rapid.IntRange(0, 7), rapid.ID).Draw(t, name+" "+what) {
				set = set.With(topology.CPUID(id))
			}
			return set
		}
		own := min(len(free), rapid.IntRange(0, 3).Draw(t, name+" own"))
		if own > 0 && rapid.Bool().Draw(t, name+" alone") {
			p.CPUMode = guest.CPUExclusive
			for v, cpu := range free[:own] {
				p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: topology.SetOf(cpu)})
				p.Reservations = append(p.Reservations, guest.Reservation{
					Node: topology.NodeID(cpu / 4), Exclusive: topology.SetOf(cpu), VCPUs: 1})
			}
			free = free[own:]
		} else {
			run := draw("vCPUs")
			for v := range rapid.IntRange(1, 3).Draw(t, name+" number of vCPUs") {
				p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: run})
			}
			p.Reservations = []guest.Reservation{{Node: 0, VCPUs: len(p.VCPUs)}}
		}
		p.Emulator, p.IOThread = draw("emulator"), draw("I/O")
		h.Guests = append(h.Guests, inventory.Guest{Name: name, State: "running", Managed: true, Placement: &p,
			Spec: &guest.Spec{Name: name}})
	}
	return h
}

// threads calls check with the former and the present CPUs of each thread that may share CPUs.
func threads(before, now *guest.Placement, check func(what string, former, now topology.CPUSet)) {
	check("emulator", before.Emulator, now.Emulator)
	check("I/O threads", before.IOThread, now.IOThread)
	if before.CPUMode == guest.CPURange {
		for i := range before.VCPUs {
			check(fmt.Sprintf("vCPU %d", i), before.VCPUs[i].CPUs, now.VCPUs[i].CPUs)
		}
	}
}

// A thread leaves CPUs that are dedicated to other VMs, if its nodes share others; all else stays. CPUs are looked up
// one by one.
func TestNow_LeavesDedicatedCPUs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t)
		owner := map[topology.CPUID]string{}
		for i := range h.Guests {
			for cpu := range h.Guests[i].Placement.Exclusive().All() {
				owner[cpu] = h.Guests[i].Name
			}
		}
		displaced := share.Displaced(h, policy.Policy{})
		for i := range h.Guests {
			g := &h.Guests[i]
			dedicated := func(cpu topology.CPUID) bool { return owner[cpu] != "" && owner[cpu] != g.Name }
			before := *g.Placement
			now := share.Now(h, policy.Policy{}, guest.Limits{}, before)
			if !reflect.DeepEqual(share.Now(h, policy.Policy{}, guest.Limits{}, now), now) {
				t.Errorf("%s: not the same when it is asked again: %+v", g.Name, now)
			}
			leaves := false
			threads(&before, &now, func(what string, former, cpus topology.CPUSet) {
				stays, others := true, before.CPUMode == guest.CPUExclusive // it may run on the VM's own
				for cpu := range former.All() {
					stays = stays && !dedicated(cpu)
					first := cpu / 4 * 4
					for other := first; other < first+4; other++ {
						others = others || owner[other] == ""
					}
				}
				switch {
				case stays && !cpus.Equal(former):
					t.Errorf("%s: %s moved from CPUs %v to %v for nothing", g.Name, what, former, cpus)
				case stays:
					return
				}
				for cpu := range cpus.All() {
					if others && dedicated(cpu) {
						t.Errorf("%s: %s runs on CPU %d of %s; former CPUs %v, now %v", g.Name, what, cpu, owner[cpu],
							former, cpus)
					}
				}
				leaves = leaves || others
			})
			if _, is := displaced[g.Name]; leaves != is {
				t.Errorf("%s can leave CPUs of others: %v; displaced: %+v", g.Name, leaves, displaced)
			}
		}
	})
}

// A binding to the CPUs that are left settles a VM: it is not displaced again.
func TestDisplaced_EndsWithNow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHost(t)
		for i := range h.Guests {
			p := share.Now(h, policy.Policy{}, guest.Limits{}, *h.Guests[i].Placement)
			h.Guests[i].Placement = &p
		}
		if left := share.Displaced(h, policy.Policy{}); len(left) > 0 {
			t.Errorf("still displaced: %v", left)
		}
	})
}

func TestDisplaced(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:4 memory:8G")
	if err != nil {
		t.Fatal(err)
	}
	cpus := topology.MustParseSet[topology.CPUID]
	host := func(state string, sharing, own string) *inventory.Host {
		all := cpus(sharing)
		p := guest.Placement{Guest: "shared", CPUMode: guest.CPURange, VCPUs: []guest.VCPU{{CPUs: all}}, Emulator: all,
			Reservations: []guest.Reservation{{VCPUs: 1}}}
		alone := guest.Placement{Guest: "alone", CPUMode: guest.CPUExclusive,
			Reservations: []guest.Reservation{{Exclusive: cpus(own), VCPUs: cpus(own).Len()}}}
		return &inventory.Host{Topology: topo, Guests: []inventory.Guest{
			{Name: "alone", State: "running", Managed: true, Placement: &alone, Spec: &guest.Spec{}},
			{Name: "shared", State: state, Managed: true, Placement: &p, Spec: &guest.Spec{}}}}
	}
	for _, c := range []struct {
		name, state, sharing, own string
		policy                    policy.Policy
		want                      string
	}{
		{"it can leave two CPUs", "running", "0-3", "2-3", policy.Policy{}, "2-3"},
		{"it runs on others", "running", "0-1", "2-3", policy.Policy{}, ""},
		{"its node has no others", "running", "0-3", "0-3", policy.Policy{}, ""},
		{"it does not run", "shutoff", "0-3", "2-3", policy.Policy{}, ""},
		{"the policy dedicates CPUs to hand-over", "running", "0-3", "6",
			policy.Policy{Handoff: policy.Handoff{CPUs: cpus("3,7")}}, "3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := share.Displaced(host(c.state, c.sharing, c.own), c.policy)
			if cpus := got["shared"].String(); cpus != c.want || len(got) > 1 {
				t.Errorf("displaced: %v, want CPUs %q of VM shared", got, c.want)
			}
		})
	}
}
