package order

import (
	"math"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestPull_Possible(t *testing.T) {
	well := Pull{Bytes: 100, Movable: 95, Free: 100, Targets: 1, Loses: 0.3, VCPUs: 1}
	for name, c := range map[string]struct {
		change func(*Pull, *policy.Balance)
		want   bool
	}{
		"the default policy":             {func(*Pull, *policy.Balance) {}, true},
		"nothing to copy":                {func(p *Pull, _ *policy.Balance) { p.Bytes, p.Movable = 0, 0 }, false},
		"a part is bound":                {func(p *Pull, _ *policy.Balance) { p.Movable = 89 }, false},
		"the target has too little room": {func(p *Pull, _ *policy.Balance) { p.Free = 99 }, false},
		"two targets":                    {func(p *Pull, _ *policy.Balance) { p.Targets = 2 }, false},
		"it loses little":                {func(p *Pull, _ *policy.Balance) { p.Loses = 0.01 }, false},
		"the policy limits the rate":     {func(_ *Pull, b *policy.Balance) { b.Pace = 1000 }, false},
	} {
		p, b := well, policy.Balance{}
		c.change(&p, &b)
		if got := p.Possible(b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Only anonymous memory with the default policy is moved by hinting faults.
func TestPullOf(t *testing.T) {
	var top topology.Topology
	to := plan.GuestMove{Placement: guest.Placement{Nodes: topology.SetOf[topology.NodeID](1)}}
	mapped := func(backing, policy string) inventory.Guest {
		return inventory.Guest{Seen: inventory.Seen{Ranges: []inventory.MemoryRange{
			{Backing: backing, Policy: policy, ByNode: topology.MemoryByNode{0: 90, 1: 10}}}}}
	}
	configured := func(c inventory.Config) inventory.Guest {
		return inventory.Guest{Config: c, Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{0: 90, 1: 10}}}
	}
	strict := &inventory.NUMATune{Mode: "strict", Nodes: topology.SetOf[topology.NodeID](0)}
	for name, c := range map[string]struct {
		guest   inventory.Guest
		movable topology.Bytes
	}{
		"anonymous":              {mapped("anonymous", "default"), 90},
		"bound":                  {mapped("anonymous", "bind:0"), 0},
		"memfd":                  {mapped("memfd", "default"), 0},
		"huge page pool":         {mapped("hugetlbfs", "default"), 0},
		"configured":             {configured(inventory.Config{}), 90},
		"configured, memfd":      {configured(inventory.Config{Source: "memfd"}), 0},
		"configured, shared":     {configured(inventory.Config{Shared: true}), 0},
		"configured, bound":      {configured(inventory.Config{NUMATune: strict}), 0},
		"configured, restricted": {configured(inventory.Config{NUMATune: &inventory.NUMATune{Mode: "restrictive"}}), 90},
	} {
		if p := PullOf(&c.guest, to, &top); p.Bytes != 90 || p.Movable != c.movable || p.Targets != 1 {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// A VM loses what remote accesses take from its vCPUs at the target, however long it waits for CPUs now. On nodes at
// distances 10 and 20, an access takes 2^0.65 = 1.57 times as long.
func TestPullOf_LosesAtTheTarget(t *testing.T) {
	top, err := topology.Synthetic("nodes:2 cores:2 memory:4G distances:10,20")
	if err != nil {
		t.Fatal(err)
	}
	remote := 1 - 1/math.Pow(2, 0.65)
	at := func(cpu topology.CPUID) plan.GuestMove {
		return plan.GuestMove{Saves: 0.9, Placement: guest.Placement{Nodes: topology.SetOf[topology.NodeID](1),
			VCPUs: []guest.VCPU{{CPUs: topology.SetOf(cpu)}}}}
	}
	load := func(cpu, wait, mbps float64) *inventory.GuestLoad {
		return &inventory.GuestLoad{CPU: cpu, Wait: wait, MemoryMBps: mbps}
	}
	for name, c := range map[string]struct {
		memory topology.MemoryByNode
		load   *inventory.GuestLoad
		demand float64 // of the move
		want   float64
	}{
		"not measured":            {topology.MemoryByNode{0: 100}, nil, 0, remote},
		"waits":                   {topology.MemoryByNode{0: 100}, load(0.5, 0.5, 0), 0, remote},
		"works half of the time":  {topology.MemoryByNode{0: 100}, load(0.5, 0, 0), 0, remote / 2},
		"as the move was planned": {topology.MemoryByNode{0: 100}, load(0.5, 0, 0), 0.8, 0.8 * remote},
		"three quarters local":    {topology.MemoryByNode{0: 25, 1: 75}, nil, 0, 1 - 1/(0.75+0.25*math.Pow(2, 0.65))},
		"memory is there":         {topology.MemoryByNode{1: 100}, nil, 0, 0},
		"hardly uses memory":      {topology.MemoryByNode{0: 100}, load(1, 0, 1), 0, 0},
	} {
		g, m := inventory.Guest{Seen: inventory.Seen{MemoryByNode: c.memory, Load: c.load}}, at(2)
		m.Demand = c.demand
		if p := PullOf(&g, m, &top); math.Abs(p.Loses-c.want) > 0.005 {
			t.Errorf("%s: loses %.3f CPUs, want %.3f", name, p.Loses, c.want)
		}
	}
}

func TestExposed(t *testing.T) {
	one := topology.SetOf[topology.CPUID](0)
	both := topology.SetOf[topology.CPUID](0, 1)
	v := guest.VCPUID(0)
	on := func(cpus topology.CPUSet, node topology.NodeID) inventory.Guest {
		return inventory.Guest{Name: "x", State: "running", Seen: inventory.Seen{
			Threads:      []inventory.Thread{{VCPU: &v, Affinity: cpus}},
			MemoryByNode: topology.MemoryByNode{node: 1000, 3: 10}}}
	}
	placed, paused := on(both, 1), on(both, 1)
	placed.Placement, paused.State = &guest.Placement{}, "paused"
	for name, c := range map[string]struct {
		guest     inventory.Guest
		balancing string
		moved     bool
		exposed   bool
	}{
		"pinned to its memory":           {on(one, 0), "0", false, false},
		"pinned elsewhere":               {on(one, 1), "0", false, true},
		"pinned elsewhere, with tiering": {on(one, 1), "2", false, true},
		"may run anywhere":               {on(both, 0), "0", false, true},
		"placed":                         {placed, "0", false, false},
		"paused":                         {paused, "0", false, false},
		"part of the move":               {on(one, 1), "0", true, false},
		"kernel balancing is on":         {on(one, 1), "1", false, false},
		"kernel balancing is on, and tiering is on": {on(one, 1), "3", false, false},
	} {
		h := inventory.Host{Kernel: inventory.Kernel{NUMABalancing: c.balancing}, Guests: []inventory.Guest{c.guest}}
		for id := range topology.NodeID(2) {
			h.Topology.Nodes = append(h.Topology.Nodes, topology.Node{ID: id, CPUs: topology.SetOf(topology.CPUID(id))})
		}
		if got := Exposed(&h, func(string) bool { return c.moved }); (len(got) > 0) != c.exposed {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// The kernel is the better mover where our thread shares its CPU, which its rate shows.
// One with a CPU of its own is better: VMs do nothing while they copy.
func TestPays(t *testing.T) {
	one := Pull{Bytes: 350 * topology.MiB, Loses: 0.35, VCPUs: 1}
	four := []Pull{one, one, one, one}
	large := Pull{Bytes: 64 * topology.GiB, Loses: 4, VCPUs: 16}
	for name, c := range map[string]struct {
		pulls []Pull
		rate  topology.Bytes
		want  bool
	}{
		"none":                          {nil, 30 * topology.MiB, false},
		"the rate is not known":         {four, 0, false},
		"one, in the lab":               {[]Pull{one}, 30 * topology.MiB, true},
		"two, in the lab":               {[]Pull{one, one}, 30 * topology.MiB, true},
		"one that loses little":         {[]Pull{{Bytes: one.Bytes, Loses: 0.02, VCPUs: 1}}, 100 * topology.MiB, false},
		"one, with a free CPU":          {[]Pull{one}, 2 * topology.GiB, false},
		"four, with a free CPU":         {four, 2 * topology.GiB, false},
		"a large one, with a free CPU":  {[]Pull{large}, 4 * topology.GiB, false},
		"a large one, on a loaded host": {[]Pull{large}, 100 * topology.MiB, true},
	} {
		if got := Pays(c.pulls, c.rate); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The rate of our own copy was measured before the VMs worked. When little more than what is not in use is left, the
// kernel goes on: to measure again takes longer than that. Readings of a run in the lab.
func TestPulling_TheLastPagesNeedNoRateOfOurOwn(t *testing.T) {
	var p Pulling
	for _, r := range []struct{ at, left float64 }{{2.7, 805}, {5, 632}, {7, 458}, {9, 294}, {10, 227}} {
		at := time.Duration(r.at * float64(time.Second))
		if !p.Continue(at, topology.Bytes(r.left)*topology.MiB, 1035*topology.MiB, 219*topology.MiB) {
			t.Errorf("ended after %v; slower than our copy: %v", at, p.Slower())
		}
	}
}

func TestPulling_Continue(t *testing.T) {
	const all = 1000 * topology.MiB
	for name, c := range map[string]struct {
		rate func(s float64) topology.Bytes // MiB brought a second
		own  topology.Bytes
		want float64 // seconds until it ends
		ebbs bool
	}{
		"all is brought":        {func(float64) topology.Bytes { return 100 }, 0, 10, false},
		"no faults":             {func(float64) topology.Bytes { return 0 }, 0, 5, false},
		"it ebbs":               {func(s float64) topology.Bytes { return topology.Bytes(max(5, 100-20*s)) }, 0, 8, true},
		"slower than our copy":  {func(float64) topology.Bytes { return 20 }, 50 * topology.MiB, 5, false},
		"slow, but all we know": {func(float64) topology.Bytes { return 2 }, 0, 350, true},
		"a part is not used": {func(s float64) topology.Bytes {
			if s > 4 {
				return 0
			}
			return 100
		}, 50 * topology.MiB, 9, true},
		"the last pages are slow": {func(s float64) topology.Bytes {
			if s > 9 {
				return 12
			}
			return 100
		}, 100 * topology.MiB, 16, false},
		"the last pages are not used": {func(s float64) topology.Bytes {
			if s > 9 {
				return 0
			}
			return 100
		}, 100 * topology.MiB, 12, true},
	} {
		var p Pulling
		left, at := all, time.Duration(0)
		for goesOn := true; goesOn; {
			at += 500 * time.Millisecond
			left -= min(left, c.rate(at.Seconds())*topology.MiB/2)
			goesOn = p.Continue(at, left, all, c.own)
		}
		if got := at.Seconds(); got < c.want-0.5 || got > c.want+1 {
			t.Errorf("%s: ended after %v s, want %v", name, got, c.want)
		}
		if p.Ebbed() != c.ebbs {
			t.Errorf("%s: ebbed %v", name, p.Ebbed())
		}
	}
}

// A VM whose vCPU used CPU time without its memory, in the lab: the kernel had brought 8 of 293 MiB in ten seconds, two
// passes over the VM's memory. Our own copy moved 4 MiB a second.
func TestPulling_Untouched(t *testing.T) {
	const all, own = 293 * topology.MiB, 4 * topology.MiB
	targets := topology.SetOf[topology.NodeID](1)
	for name, c := range map[string]struct {
		brought topology.Bytes // in 10 s
		passes  uint64
		touched topology.MemoryByNode
		want    bool
	}{
		"not used":                         {4 * topology.MiB, 2, topology.MemoryByNode{1: 30 * topology.MiB}, true},
		"not all mappings were taken away": {4 * topology.MiB, 1, nil, false},
		"the kernel cannot move it":        {0, 3, topology.MemoryByNode{0: 40 * topology.MiB}, false},
		"it is used slowly":                {120 * topology.MiB, 3, nil, false},
	} {
		var p Pulling
		at, left := time.Duration(0), all
		for range 2 {
			at += 5 * time.Second
			left -= c.brought / 2
			p.Continue(at, left, all, own)
		}
		before, now := inventory.HintFaults{Passes: 7}, inventory.HintFaults{Passes: 7 + c.passes, Memory: c.touched}
		if got := p.Untouched(before, now, targets, left); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
