package balance

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Every degraded guest that does not move has a kind of reason, so that no reader
// depends on the text.
func TestPlan_BlockKinds(t *testing.T) {
	away := topology.SetOf[topology.NodeID](0)
	moved := Past{Moves: []Moved{{"a", noon.Add(-4 * time.Minute), topology.SetOf[topology.NodeID](2), away, 2}}}
	for name, c := range map[string]struct {
		alter func(r *Request, g *inventory.Guest)
		want  plan.Blocked
	}{
		"cooldown": {func(r *Request, _ *inventory.Guest) { r.Past = moved }, plan.Blocked{Kind: plan.BlockedCooldown,
			Until: noon.Add(time.Minute)}},
		"degraded_for": {func(r *Request, _ *inventory.Guest) { r.Lasting = false },
			plan.Blocked{Kind: plan.BlockedNotYet}},
		"mode off": {func(r *Request, _ *inventory.Guest) {
			r.Policy.Balance.Guests = map[string]policy.Mode{"a": policy.ModeOff}
		}, plan.Blocked{Kind: plan.BlockedModeOff}},
		"paused": {func(_ *Request, g *inventory.Guest) { g.State = "paused" },
			plan.Blocked{Kind: plan.BlockedNotRunning}},
		"claimed": {func(r *Request, _ *inventory.Guest) { r.Host.Claims = []inventory.Claim{{Name: "a"}} },
			plan.Blocked{Kind: plan.BlockedBusy}},
		"unbound": {func(_ *Request, g *inventory.Guest) { g.Spec.CPU.Binding = guest.CPUNone },
			plan.Blocked{Kind: plan.BlockedUnbound}},
	} {
		t.Run(name, func(t *testing.T) {
			h := machine("nodes:4 cores:4 memory:16G")
			add(h, vm{name: "a", vcpus: 2, memory: 2 * gib, cpus: on(0), memOn: bytesOn(1, 2*gib), used: 1, wait: 1})
			r := Request{Host: h, Now: noon, Lasting: true}
			c.alter(&r, &h.Guests[0])
			p, err := Plan(r)
			if err != nil || len(p.Blocked) != 1 {
				t.Fatalf("%v; blocked %+v\n%s", err, p.Blocked, p.Text())
			}
			got := p.Blocked[0]
			if got.Why == "" {
				t.Error("blocked without a reason")
			}
			c.want.Guest, got.Why = "a", ""
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("blocked (-want +got):\n%s", diff)
			}
		})
	}
}

// If a cgroup above a VM excludes all nodes that would help it, the plan blocks the
// VM and names the file. If an allowed node helps as well, the VM moves there.
func TestPlan_NodeLimit(t *testing.T) {
	limit := func(list string) func(g *inventory.Guest) {
		return func(g *inventory.Guest) {
			g.Seen.NodeLimits = []inventory.NodeLimit{{File: "/sys/fs/cgroup/machine.slice/cpuset.mems",
				Nodes: topology.MustParseSet[topology.NodeID](list)}}
		}
	}
	crowded := func(list string) *inventory.Host {
		h := machine("nodes:4 cores:4 memory:16G")
		add(h, vm{name: "a", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2, change: limit(list)})
		add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2, change: limit(list)})
		return h
	}
	round := planned(t, crowded("0"), policy.Policy{})
	if len(round.Moves) > 0 || len(round.Blocked) != 2 {
		t.Fatalf("moves %v, blocked %+v", round.Moves, round.Blocked)
	}
	for _, blocked := range round.Blocked {
		if blocked.Kind != plan.BlockedNodeLimit || !strings.Contains(blocked.Why, "machine.slice/cpuset.mems") {
			t.Errorf("blocked %+v, want kind %s that names the file", blocked, plan.BlockedNodeLimit)
		}
	}
	round = planned(t, crowded("0,2"), policy.Policy{})
	to := goesTo(round, "a").Union(goesTo(round, "b"))
	if !to.Equal(topology.SetOf[topology.NodeID](2)) {
		t.Errorf("one of both must go to node 2, and went to %q\n%s", to, round.Text())
	}
}

// Legal refuses a move to nodes that a cgroup above the guest excludes.
func TestLegal_NodeLimit(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 2, memory: 2 * gib, cpus: on(1), memOn: bytesOn(0, 2*gib), used: 2})
	to := handmade(h, *h.Guests[0].Spec, on(1))
	moves := []plan.GuestMove{{Guest: "a", Placement: to}}
	var limit *inventory.NodeLimitError
	if err := Legal(h, policy.Policy{}, moves); errors.As(err, &limit) {
		t.Errorf("without a limit: %v", err)
	}
	h.Guests[0].Seen.NodeLimits = []inventory.NodeLimit{{File: "/x/cpuset.mems", Nodes: topology.SetOf(on(0)...)}}
	if err := Legal(h, policy.Policy{}, moves); !errors.As(err, &limit) || limit.File != "/x/cpuset.mems" {
		t.Errorf("error is %v, want a NodeLimitError", err)
	}
}

// A guest that has been degraded for too short a time for its copy to be repaid moves once it has been for long enough.
// The plan says when that is, and the reason has no digits that an operator cannot use.
func TestPlan_NotRepaid(t *testing.T) {
	planAt := func(rate topology.Bytes, now time.Time) plan.Plan {
		h := machine("nodes:4 cores:4 memory:16G")
		h.MoverBytesPerSecond = rate
		add(h, vm{name: "a", vcpus: 1, memory: 4 * gib, cpus: on(3), memOn: bytesOn(0, 4*gib), used: 1})
		add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 4})
		p := policy.Policy{Balance: policy.Balance{DegradedFor: policy.Duration(time.Second),
			Guests: map[string]policy.Mode{"b": policy.ModeOff}}}
		round, err := Plan(Request{Host: h, Policy: p, Now: now,
			Past: Past{Degraded: []plan.Degraded{{Guest: "a", Since: noon.Add(-2*time.Second - time.Microsecond)}}}})
		if err != nil {
			t.Fatal(err)
		}
		return round
	}
	fraction := regexp.MustCompile(`\d\.\d\d+s`)
	for _, rate := range []topology.Bytes{20 << 20, 60 << 20, 100 << 20} {
		first := planAt(rate, noon)
		if len(first.Moves) > 0 || len(first.Blocked) != 1 || first.Blocked[0].Kind != plan.BlockedNotRepaid {
			t.Fatalf("at %v a second: moves %v, blocked %+v", rate, first.Moves, first.Blocked)
		}
		if why := first.Blocked[0].Why; fraction.MatchString(why) {
			t.Errorf("at %v a second: the reason is %q", rate, why)
		}
		until := first.Blocked[0].Until
		if !until.After(noon) {
			t.Errorf("at %v a second: repaid from %v on, which is not after the plan", rate, until)
		}
		if early := planAt(rate, until.Add(-10*time.Millisecond)); len(early.Moves) > 0 {
			t.Errorf("at %v a second: moves before the copy is repaid: %v", rate, early.Moves)
		}
		if late := planAt(rate, until.Add(10*time.Millisecond)); len(late.Moves) != 1 {
			t.Errorf("at %v a second: no move once the copy is repaid: blocked %+v", rate, late.Blocked)
		}
	}
	if never := planAt(1<<20, noon); never.Blocked[0].Kind == plan.BlockedNotRepaid {
		t.Errorf("a copy that is never repaid is repaid later: %+v", never.Blocked[0])
	}
}

// A guest that has been degraded for 0.6 s will have been for longer when its memory is copied: a copy that is repaid
// by then is not refused.
func TestPlan_CountsTheTimeUntilTheCopy(t *testing.T) {
	h := machine("nodes:4 cores:4 memory:16G")
	h.MoverBytesPerSecond = 250 << 20
	add(h, vm{name: "a", vcpus: 1, memory: 4 * gib, cpus: on(3), memOn: bytesOn(0, 4*gib), used: 1})
	add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 4})
	p := policy.Policy{Balance: policy.Balance{DegradedFor: policy.Duration(500 * time.Millisecond),
		Guests: map[string]policy.Mode{"b": policy.ModeOff}}}
	round, err := Plan(Request{Host: h, Policy: p, Now: noon,
		Past: Past{Degraded: []plan.Degraded{{Guest: "a", Since: noon.Add(-600 * time.Millisecond)}}}})
	if err != nil || len(round.Moves) != 1 {
		t.Errorf("error %v, moves %v, blocked %+v", err, round.Moves, round.Blocked)
	}
}
