package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// planner makes one plan.
type planner struct {
	Request
	policy   policy.Policy
	limits   Limits
	base     map[string]*balance.View // hosts with the migrations in progress made
	views    map[string]*balance.View // and those of the plan
	busy     map[string]int           // migrations in progress and of the plan, by host
	begun    int
	claims   []claim // to release at the end
	out      Plan
	excluded map[string]bool // VMs whose migrations are needless
}

type claim struct{ host, vm string }

// source is a host whose degraded VMs its own plan cannot relieve.
type source struct {
	name     string
	host     *inventory.Host
	degraded map[string]bool
	lost     float64
}

// Rebalance returns the migrations that are worth making now. The same request gives
// the same plan.
func Rebalance(r Request) (Plan, error) {
	needless := map[string]bool{}
	for {
		p := newPlanner(r)
		p.excluded = needless
		err := p.rebalance()
		drop := p.needless()
		p.release()
		if err != nil || drop == "" {
			return p.out, err
		}
		needless[drop] = true
	}
}

func newPlanner(r Request) *planner {
	p := &planner{Request: r, policy: r.Fleet.Policy(), base: map[string]*balance.View{},
		views: map[string]*balance.View{}, busy: map[string]int{}}
	p.limits = r.Limits.WithDefaults(len(r.Fleet.Names()))
	for _, m := range r.Running {
		p.busy[m.From]++
		p.busy[m.To]++
		p.begun++
	}
	p.out = Plan{Migrations: []Migration{}, Local: map[string]balance.Past{}}
	return p
}

// release removes the claims of the plan.
func (p *planner) release() {
	for _, c := range p.claims {
		_ = p.Fleet.Remove(c.host, c.vm) // it was added by this plan
	}
	p.claims = nil
}

func (p *planner) rebalance() error {
	sources, err := p.sources()
	if err != nil {
		return err
	}
	for _, mode := range []policy.Mode{policy.ModeAuto, policy.ModeAdvise} {
		for _, s := range sources {
			for p.improve(s, mode) {
			}
		}
	}
	for _, s := range sources {
		p.explain(s)
	}
	return nil
}

// sources returns the hosts with VMs that only migrations can relieve, those that lose most first.
func (p *planner) sources() ([]*source, error) {
	var out []*source
	for _, name := range p.Fleet.Names() {
		h, _ := p.Fleet.Host(name)
		if h.Unreachable || !p.pressed(h.Inventory, p.Local[name]) {
			continue // there are no recent loads, or no reason
		}
		s, err := p.source(name, p.withoutPlan(name, h.Inventory))
		if err != nil {
			return nil, err
		}
		if len(s.degraded) > 0 {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b *source) int { return cmp.Compare(b.lost, a.lost) })
	return out, nil
}

// pressed reports whether a host may have degraded VMs: a plan of its own takes some milliseconds.
func (p *planner) pressed(h *inventory.Host, before balance.Past) bool {
	if len(before.Degraded) > 0 || p.Lasting {
		return true
	}
	return slices.ContainsFunc(h.Guests, func(g inventory.Guest) bool {
		return g.Seen.Load != nil && Pressed(p.policy.Balance, g.Seen.Load)
	})
}

// Pressed reports whether a VM with this load may be degraded. The policy has its defaults.
func Pressed(b policy.Balance, l *inventory.GuestLoad) bool {
	return l.Demand() >= b.MinCPUDemand && (l.Wait >= b.Clear*b.Wait*l.Demand() || l.MemoryMBps > 0 ||
		l.Remote != nil && l.Remote.Share >= b.Clear*b.Access)
}

// source plans a host's own moves, and returns what these do not relieve.
func (p *planner) source(name string, h *inventory.Host) (*source, error) {
	r := balance.Request{Host: h, Policy: p.policy, Past: p.Local[name], Now: p.Now, Lasting: p.Lasting}
	local, err := balance.Plan(r)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	if len(local.Degraded)+len(local.Waiting) > 0 {
		p.out.Local[name] = balance.Past{Moves: r.Past.Moves, Degraded: local.Degraded, Waiting: local.Waiting}
	}
	s := &source{name: name, host: h, degraded: map[string]bool{}}
	own := len(local.Moves) > 0
	for _, d := range local.Degraded {
		own = own || len(d.Proposed) > 0
	}
	// Before that the host's own plan has no moves, whatever they would save.
	lasts := max(p.limits.Lasts, time.Duration(p.policy.Balance.DegradedFor))
	for _, d := range local.Degraded {
		switch {
		case own:
			p.block(name, d.Guest, LocalFirst, "the host's own plan comes first")
		case !p.Lasting && p.Now.Sub(d.Since) < lasts:
			p.block(name, d.Guest, TooShort, fmt.Sprintf("degraded for less than %v", lasts))
		default:
			s.degraded[d.Guest] = true
		}
	}
	if len(s.degraded) > 0 {
		lost := p.view(name).Lost()
		s.lost = lost.Access() + lost.Wait()
	}
	return s, nil
}

func (p *planner) block(host, vm string, kind Obstacle, why string) {
	p.out.Blocked = append(p.out.Blocked, Blocked{VM: vm, Host: host, Kind: kind, Why: why})
}

// view returns the state of a host after the migrations in progress and those of the plan.
func (p *planner) view(name string) *balance.View {
	if v := p.views[name]; v != nil {
		return v
	}
	h, _ := p.Fleet.Host(name)
	v := balance.NewView(balance.Request{Host: p.withoutPlan(name, h.Inventory), Policy: p.policy, Now: p.Now,
		Past: p.Local[name]})
	for _, m := range p.Running {
		switch name {
		case m.From:
			v.Leave(m.VM)
		case m.To:
			v.Leave(m.VM) // its claim counts as all its vCPUs
			if from, known := p.Fleet.Host(m.From); known {
				g, runs := from.Inventory.Guest(m.VM)
				there, claimed := h.Inventory.Guest(m.VM)
				if runs && claimed && there.Placement != nil {
					v.Arrive(*g, specOf(g), *there.Placement)
				}
			}
		}
	}
	p.base[name], p.views[name] = v, v.Clone()
	return p.views[name]
}

// withoutPlan returns a copy of a host without the claims that this plan has added. The fleet
// changes its own when claims are added.
func (p *planner) withoutPlan(name string, h *inventory.Host) *inventory.Host {
	copied := *h
	copied.Guests = slices.DeleteFunc(slices.Clone(h.Guests), func(g inventory.Guest) bool {
		return slices.Contains(p.claims, claim{name, g.Name})
	})
	return &copied
}

// improve adds the best migration from a source to the plan. It returns false if no migration pays.
func (p *planner) improve(s *source, mode policy.Mode) bool {
	if p.limitsReached(s.name) && mode == policy.ModeAuto {
		return false
	}
	var best *candidate
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		if p.modeOf(g) != mode || p.excluded[g.Name] || p.planned(g.Name) {
			continue
		}
		if c, _ := p.candidate(s, g); c != nil && (best == nil || c.net > best.net) {
			best = c
		}
	}
	if best == nil {
		return false
	}
	best.Advised = mode == policy.ModeAdvise
	p.make(best)
	return true
}

func (p *planner) limitsReached(host string) bool {
	return p.begun >= p.limits.Fleet || p.busy[host] >= p.limits.PerHost
}

func (p *planner) planned(vm string) bool {
	return slices.ContainsFunc(p.out.Migrations, func(m Migration) bool { return m.VM == vm })
}

// make adds a migration to the plan and reserves its target.
func (p *planner) make(c *candidate) {
	d := &schedule.Decision{Host: c.To, Group: p.VMs[c.VM].Affinity.Group, Spec: c.Spec, Placement: c.Placement}
	if p.Fleet.Add(d) == nil {
		p.claims = append(p.claims, claim{c.To, c.VM})
	}
	p.view(c.From).Leave(c.VM)
	p.view(c.To).Arrive(*c.guest, c.Spec, c.Placement)
	if !c.Advised {
		p.busy[c.From]++
		p.busy[c.To]++
		p.begun++
	}
	p.out.Migrations = append(p.out.Migrations, c.Migration)
}

// explain names the degraded VMs of a source that the plan does not relieve, and why.
func (p *planner) explain(s *source) {
	costs, now := p.base[s.name].Costs(), p.views[s.name].Costs()
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		after, stays := now[g.Name]
		if !s.degraded[g.Name] || !stays || after < costs[g.Name]*(1-p.policy.Balance.MinGain) {
			continue
		}
		if p.limitsReached(s.name) {
			p.block(s.name, g.Name, AtLimit, "as many migrations run as may")
			continue
		}
		if _, why := p.candidate(s, g); why.Kind != "" {
			p.out.Blocked = append(p.out.Blocked, why)
		}
	}
}

// needless returns the VM of a migration without which the others of the plan would save as
// much; "": none.
func (p *planner) needless() string {
	all := p.lostAfter("")
	for _, m := range p.out.Migrations {
		h, _ := p.Fleet.Host(m.From)
		if g, ok := h.Inventory.Guest(m.VM); ok {
			if p.lostAfter(m.VM).Saved(all) < p.leastSaved(m.VM, m.To, p.base[m.From].Demand(g.Name)) {
				return m.VM
			}
		}
	}
	return ""
}

// lostAfter returns what the hosts of the plan lose after it, except for the migration of a VM.
func (p *planner) lostAfter(except string) balance.Lost {
	views := map[string]*balance.View{}
	for name, v := range p.base {
		views[name] = v.Clone()
	}
	for _, m := range p.out.Migrations {
		h, _ := p.Fleet.Host(m.From)
		g, ok := h.Inventory.Guest(m.VM)
		if !ok || m.VM == except {
			continue
		}
		views[m.From].Leave(m.VM)
		views[m.To].Arrive(*g, m.Spec, m.Placement)
	}
	var sum balance.Lost
	for _, name := range p.Fleet.Names() {
		if v := views[name]; v != nil {
			sum = sum.Plus(v.Lost())
		}
	}
	return sum
}

// benefit of a migration in the words of a plan.
func benefit(before, after balance.Lost, b policy.Balance) plan.Benefit {
	return plan.Benefit{AccessCPUs: before.Access() - after.Access(), WaitCPUs: before.Wait() - after.Wait(),
		Horizon: time.Duration(b.Horizon)}
}
