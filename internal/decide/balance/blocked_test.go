package balance

import (
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// The plan says by kind why a guest with a reason to move stays; readers do not
// have to look into the text.
func TestPlan_StayKinds(t *testing.T) {
	away := topology.SetOf[topology.NodeID](0)
	moved := Past{Moves: []Moved{{"a", noon.Add(-4 * time.Minute), topology.SetOf[topology.NodeID](2), away}}}
	for name, c := range map[string]struct {
		alter func(r *Request, g *inventory.Guest)
		want  plan.Blocked
	}{
		"cooldown": {func(r *Request, _ *inventory.Guest) { r.Past = moved }, plan.Blocked{Kind: plan.BlockedCooldown,
			Until: noon.Add(time.Minute)}},
		"degraded_for": {func(r *Request, _ *inventory.Guest) { r.Lasting = false }, plan.Blocked{Kind: plan.BlockedNotYet}},
		"mode off": {func(r *Request, _ *inventory.Guest) {
			r.Policy.Balance.Guests = map[string]policy.Mode{"a": policy.ModeOff}
		}, plan.Blocked{Kind: plan.BlockedModeOff}},
		"paused": {func(_ *Request, g *inventory.Guest) { g.State = "paused" }, plan.Blocked{Kind: plan.BlockedNotRunning}},
		"claimed": {func(r *Request, _ *inventory.Guest) { r.Host.Claims = []inventory.Claim{{Name: "a"}} },
			plan.Blocked{Kind: plan.BlockedBusy}},
		"unbound": {func(_ *Request, g *inventory.Guest) { g.Spec.CPU.Binding = guest.CPUNone },
			plan.Blocked{Kind: plan.BlockedUnbound}},
	} {
		t.Run(name, func(t *testing.T) {
			h := machine("nodes:4 cores:4 memory:16G")
			add(h, vm{name: "a", vcpus: 2, memory: 2 * gib, cpus: on(0), lies: lies(1, 2*gib), used: 1, wait: 1})
			r := Request{Host: h, Now: noon, Lasting: true}
			c.alter(&r, &h.Guests[0])
			p, err := Plan(r)
			if err != nil || len(p.Blocked) != 1 {
				t.Fatalf("%v; stays %+v\n%s", err, p.Blocked, p.Text())
			}
			if got := p.Blocked[0]; got.Guest != "a" || got.Kind != c.want.Kind || !got.Until.Equal(c.want.Until) ||
				got.Why == "" {
				t.Errorf("blocked %+v, want %+v", got, c.want)
			}
		})
	}
}
