package check_test

import (
	"slices"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func set(list string) topology.CPUSet { return topology.MustParseSet[topology.CPUID](list) }

// handing is a host of two nodes with 4 cores of two threads each; all CPUs but the first core are handed over.
func handing(t *testing.T) (*inventory.Host, policy.Policy) {
	t.Helper()
	topo, err := topology.Synthetic("nodes:2 cores:4 threads:2 memory:8G")
	if err != nil {
		t.Fatal(err)
	}
	return &inventory.Host{Name: "host", Topology: topo}, policy.Policy{Handoff: policy.Handoff{CPUs: set("1-7,9-15")}}
}

// placed places a guest, legally.
func placed(t *testing.T, h *inventory.Host, p policy.Policy, s guest.Spec) (guest.Spec, guest.Placement) {
	t.Helper()
	s, err := s.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	at, _, err := place.Place(place.Request{Host: h, Spec: s, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	s = s.Resolve(&at)
	if broken := check.Placement(h, p, s, at); len(broken) > 0 {
		t.Fatalf("%s: %v", s.Name, broken)
	}
	return s, at
}

func mirrored(name string, least int) guest.Spec {
	return guest.Spec{Name: name, Memory: topology.GiB, CPU: guest.CPUSpec{Sharing: guest.SharingHandoff, MinVCPUs: least}}
}

// What a mirrored guest reserves is its minimum: neither less nor its number of vCPUs.
func TestPlacement_AMirroredGuestReservesItsMinimum(t *testing.T) {
	h, p := handing(t)
	s, at := placed(t, h, p, mirrored("m", 5))
	sum := 0
	for _, r := range at.Reservations {
		sum += r.VCPUs
	}
	if sum != 5 || len(at.VCPUs) != 14 {
		t.Fatalf("reserves %d of %d vCPUs: %+v", sum, len(at.VCPUs), at.Reservations)
	}
	for _, more := range []int{-1, 1, 9} {
		other := at
		other.Reservations = slices.Clone(at.Reservations)
		other.Reservations[0].VCPUs += more
		wantRule(t, check.Placement(h, p, s, other), check.RuleReservations)
	}
}

// wantRule wants a violation of a rule.
func wantRule(t *testing.T, broken []check.Violation, rule check.Rule) {
	t.Helper()
	if !slices.ContainsFunc(broken, func(v check.Violation) bool { return v.Rule == rule }) {
		t.Errorf("violations %v, want one of %s", broken, rule)
	}
}

// Each way to break the rule of hand-over is found.
func TestPlacement_RulesOfHandOver(t *testing.T) {
	for name, c := range map[string]struct {
		rule   check.Rule
		change func(h *inventory.Host, p *policy.Policy, at *guest.Placement)
	}{
		"no hand-over": {check.RuleHandoff, func(_ *inventory.Host, _ *policy.Policy, at *guest.Placement) {
			at.Handoff = nil
		}},
		"two CPUs for a vCPU": {check.RuleHandoff, func(_ *inventory.Host, _ *policy.Policy, at *guest.Placement) {
			at.VCPUs[3].CPUs = at.VCPUs[3].CPUs.Union(at.VCPUs[4].CPUs)
		}},
		"a CPU of two vCPUs": {check.RuleHandoff, func(_ *inventory.Host, _ *policy.Policy, at *guest.Placement) {
			at.VCPUs[3].CPUs = at.VCPUs[4].CPUs
		}},
		"a CPU that is not handed over": {check.RuleHandoff, func(_ *inventory.Host, p *policy.Policy,
			at *guest.Placement,
		) {
			p.Handoff.CPUs = p.Handoff.CPUs.Minus(at.VCPUs[2].CPUs)
		}},
		"fewer first CPUs than the minimum": {check.RuleHandoff, func(_ *inventory.Host, _ *policy.Policy,
			at *guest.Placement,
		) {
			at.Handoff.First = at.VCPUs[0].CPUs
		}},
		"without the anchor": {check.RuleHandoff, func(_ *inventory.Host, _ *policy.Policy, at *guest.Placement) {
			at.Handoff.First = at.VCPUs[1].CPUs.Union(at.VCPUs[2].CPUs)
		}},
		"the CPUs of another guest": {check.RuleHandoff, func(h *inventory.Host, _ *policy.Policy,
			at *guest.Placement,
		) {
			theirs := *at
			theirs.Guest = "other"
			h.Guests = append(h.Guests, inventory.Guest{Name: "other", State: "running", Managed: true, Placement: &theirs})
		}},
		"another number of CPUs than the guest sees": {check.RuleHandoff, func(_ *inventory.Host, _ *policy.Policy,
			at *guest.Placement,
		) {
			at.Handoff.Seen.Cores++
		}},
		"an emulator on CPUs of vCPUs": {check.RuleHelpers, func(_ *inventory.Host, _ *policy.Policy,
			at *guest.Placement,
		) {
			at.Emulator = at.VCPUs[5].CPUs
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h, p := handing(t)
			s, at := placed(t, h, p, mirrored("m", 2))
			c.change(h, &p, &at)
			wantRule(t, check.Placement(h, p, s, at), c.rule)
		})
	}
}

// Other guests use no CPU that is handed over, shared or dedicated.
func TestPlacement_OthersStayOffCPUsOfHandOver(t *testing.T) {
	for _, binding := range []guest.CPUMode{guest.CPURange, guest.CPUExclusive} {
		h, p := handing(t)
		p.Handoff.CPUs = set("2-7,10-15")
		s, at := placed(t, h, p, guest.Spec{Name: "o", VCPUs: 1, Memory: topology.GiB,
			CPU: guest.CPUSpec{Binding: binding}})
		p.Handoff.CPUs = p.Handoff.CPUs.Union(at.VCPUs[0].CPUs)
		if broken := check.Placement(h, p, s, at); len(broken) == 0 {
			t.Errorf("%s: legal on CPUs %s, of which %s are handed over", binding, at.VCPUs[0].CPUs, p.Handoff.CPUs)
		}
	}
}
