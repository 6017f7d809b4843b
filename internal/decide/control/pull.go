package control

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// mayPull reports whether the policy lets the kernel bring memory to vCPUs.
func mayPull(m policy.Movers) bool {
	return m.KernelCopies == policy.AnswerAuto && m.KernelBalancing != policy.AnswerOff
}

// canPull reports whether the kernel can bring the memory of all guests of a move to
// their vCPUs, by what is known before it begins: the move itself looks at the mappings
// of the guests, and at how fast a first slice is copied.
func (c *Controller) canPull(h *inventory.Host, m plan.Move) bool { return c.cannotPull(h, m) == "" }

// cannotPull returns why the kernel cannot bring the memory of all guests of a move to their vCPUs; empty: it can.
func (c *Controller) cannotPull(h *inventory.Host, m plan.Move) string {
	p := c.rules.policy
	if !mayPull(p.Movers) || h.Kernel.NUMABalancing == "" {
		return "the policy or the kernel does not allow it"
	}
	not := slices.Concat(m.Names(), c.unexposed(h))
	exposed := order.Exposed(h, func(name string) bool { return slices.Contains(not, name) })
	if len(exposed) > 0 {
		return fmt.Sprintf("kernel balancing would act on %q, too", exposed)
	}
	var pulls []order.Pull
	for _, g := range m.Guests {
		seen, ok := h.Guest(g.Guest)
		if !ok {
			return fmt.Sprintf("VM %q is not known", g.Guest)
		}
		pulls = append(pulls, order.PullOf(seen, g, &h.Topology))
	}
	order.Level(pulls)
	for i, g := range m.Guests {
		if each := pulls[i]; each.Bytes > 0 && !each.Possible(p.Balance) {
			return fmt.Sprintf("VM %q has memory that the kernel does not bring: %+v", g.Guest, each)
		}
	}
	pulls = slices.DeleteFunc(pulls, func(p order.Pull) bool { return p.Bytes == 0 })
	switch {
	case len(pulls) == 0:
		return "no memory is copied"
	case h.MoverBytesPerSecond > 0 && !order.Pays(pulls, h.MoverBytesPerSecond):
		return "the daemon's own copy costs the VMs less"
	}
	return ""
}

// idle returns the guests whose measured demand is below min_cpu_demand. The kernel takes
// the mapping of a process's memory away in proportion to the CPU time that it uses, and
// moves only what it touches then.
func (c *Controller) idle(h *inventory.Host) (names []string) {
	least := c.rules.policy.Balance.WithDefaults().MinCPUDemand
	for i := range h.Guests {
		if g := &h.Guests[i]; g.Seen.Load != nil && g.Seen.Load.Demand() < least {
			names = append(names, g.Name)
		}
	}
	return names
}

// unexposed returns the guests that kernel balancing for a move may act on: idle ones, and those that it serves ahead
// of their moves.
func (c *Controller) unexposed(h *inventory.Host) []string {
	names := c.idle(h)
	if c.pullsAhead() {
		names = slices.AppendSeq(names, maps.Keys(c.competition.aheadOf))
	}
	return names
}

// withExposed returns the moves of a plan. If the kernel could bring memory to vCPUs, but
// for VMs in mode auto that have no reason to move now and may run far from their
// memory, which kernel balancing would then move, it plans again with these as if they
// were degraded: by where they may run, not by where they happened to run. A plan that
// pins all of them and copies no more replaces the first one. It may copy more if kernel balancing is on: then
// the kernel brings the memory of these VMs to where they happen to run in any case.
// If such a VM is degraded, the plan may copy as much more as it has memory, also if that is not repaid yet by how long
// it has been degraded: it or another one has to leave its node. If moves began without it, the memory of all would be
// copied in turns, and that of this VM last. One that runs at its memory counts as degraded if the moves displace it.
func (c *Controller) withExposed(r balance.Request, first []plan.Move) []plan.Move {
	p := c.rules.policy
	pulls := func(m plan.Move) bool { return m.Cost.Bytes > 0 }
	if !mayPull(p.Movers) || r.Host.Kernel.NUMABalancing == "" || !slices.ContainsFunc(first, pulls) {
		return first
	}
	idle := c.idle(r.Host)
	exposed := order.Exposed(r.Host, func(name string) bool {
		return moves(first, name) || slices.Contains(idle, name)
	})
	if len(exposed) == 0 {
		return first
	}
	all := func(planned []plan.Move) bool {
		return !slices.ContainsFunc(exposed, func(name string) bool { return !moves(planned, name) })
	}
	second, ok := c.asDegraded(r, exposed, assumed{})
	if ok && all(second) && (copied(second) <= copied(first) || c.competition.holds()) {
		return second
	}
	degraded := slices.DeleteFunc(slices.Clone(exposed), func(name string) bool {
		return !c.isDegraded(name) && !displaces(r.Host, first, name)
	})
	most, why := copied(first)+memoryOf(r.Host, degraded), ""
	if len(degraded) > 0 {
		second, ok = c.asDegraded(r, exposed, assumed{lasting: degraded})
		if why = c.cannotPullAll(r.Host, second); ok && all(second) && copied(second) <= most && why == "" {
			return second
		}
	}
	c.log(Debug, "memory is copied in turns, as kernel balancing would act on other guests", "guests", exposed,
		"degraded", degraded, "moved", all(second), "copies", uint64(copied(second)), "at most", uint64(most),
		"also", why)
	return first
}

// displaces reports whether moves fill the node that has most of a guest's memory with guests that are bound to it.
// This guest, which may run anywhere and runs there, then has to leave the node.
func displaces(h *inventory.Host, planned []plan.Move, name string) bool {
	g, ok := h.Guest(name)
	if !ok || g.Seen.Load == nil {
		return false
	}
	id, ok := home(g)
	node, known := h.Topology.Node(id)
	if !ok || !known {
		return false
	}
	then := *h
	for _, m := range planned {
		then = balance.After(&then, m.Guests)
	}
	demand := g.Seen.Load.Demand()
	for i := range then.Guests {
		o := &then.Guests[i]
		if o.Name != name && o.Seen.Load != nil && o.VCPUNodes(&then.Topology).Equal(topology.SetOf(id)) {
			demand += o.Seen.Load.Demand()
		}
	}
	return demand > float64(node.CPUs.Len())
}

// cannotPullAll returns why the kernel cannot bring the memory of all moves of a plan at the same time; empty: it can.
func (c *Controller) cannotPullAll(h *inventory.Host, planned []plan.Move) string {
	copying := slices.DeleteFunc(plan.JoinPulled(planned), func(m plan.Move) bool { return m.Cost.Bytes == 0 })
	switch len(copying) {
	case 0:
		return ""
	case 1:
		return c.cannotPull(h, copying[0])
	}
	return "a VM has two moves"
}

// assumed is what a plan assumes of guests that it plans for as if they were degraded.
type assumed struct {
	busy    bool     // they use all their vCPUs
	lasting []string // those whose present load has lasted, so that a copy is repaid
}

// asDegraded plans as if guests were degraded: by where they may run, not by where they happened to run. ok is false if
// one of them may not be moved without an operator.
func (c *Controller) asDegraded(r balance.Request, names []string, as assumed) (planned []plan.Move, ok bool) {
	h := *r.Host
	h.Guests = slices.Clone(h.Guests)
	r.Host, r.Past.Degraded = &h, slices.Clone(r.Past.Degraded)
	for _, name := range names {
		g, ok := h.Guest(name)
		if !ok || g.Seen.Load == nil || c.modeOf(g) != policy.ModeAuto {
			return nil, false
		}
		load := *g.Seen.Load
		load.Remote, g.Seen.Load = nil, &load
		if as.busy {
			load.CPU, load.Wait = max(load.CPU, float64(g.Config.VCPUs)), 0
		}
		since := r.Now.Add(-c.degradedFor())
		if slices.Contains(as.lasting, name) {
			since = r.Now.Add(-time.Duration(c.rules.policy.Balance.WithDefaults().Horizon))
		}
		r.Past.Degraded = slices.DeleteFunc(r.Past.Degraded, func(d plan.Degraded) bool { return d.Guest == name })
		r.Past.Degraded = append(r.Past.Degraded, plan.Degraded{Guest: name, Since: since})
	}
	p, err := balance.Plan(r)
	advised := slices.ContainsFunc(p.Moves, func(m plan.Move) bool { return m.Advised })
	return p.Moves, err == nil && !advised
}

// withServed returns the moves of a plan after the kernel has brought memory ahead of it, as one round. It plans again
// with all guests to which the kernel has brought most of their memory as if they were degraded: they are local as long
// as they happen to run there, and nothing holds them.
func (c *Controller) withServed(r balance.Request, first []plan.Move) []plan.Move {
	o, idle := &c.competition, c.idle(r.Host)
	o.served = nil
	for name := range o.aheadOf {
		g, ok := r.Host.Guest(name)
		if ok && g.Placement == nil && g.State == "running" && !slices.Contains(idle, name) &&
			(gathered(g) || c.isDegraded(name)) {
			o.served = append(o.served, name)
		}
	}
	slices.Sort(o.served)
	o.aheadOf = nil
	if len(o.served) == 0 {
		return first
	}
	h := *r.Host
	rate := topology.Bytes(o.fastest) / topology.Bytes(len(o.served)) // as the kernel has brought the memory of each
	if own := h.MoverBytesPerSecond; rate > 0 && (own == 0 || rate < own) {
		h.MoverBytesPerSecond = rate // the trial of our own copy ran before they worked
	}
	r.Host = &h
	second, ok := c.asDegraded(r, o.served, assumed{})
	out := slices.ContainsFunc(first, func(m plan.Move) bool {
		return slices.ContainsFunc(m.Names(), func(name string) bool { return !moves(second, name) })
	})
	if !ok || out {
		return first
	}
	return plan.JoinPulled(second)
}

// oneRound returns the moves of a plan for all working guests that the kernel serves ahead of it, as one round: the
// kernel brings their memory in any case, and now to these places. Where they run by chance, vCPUs of one guest can be
// on several nodes, and what is brought to one is brought again to another. How much the guests will use is not known
// as long as their demand grows, so the round is planned as if they used all their vCPUs; where that is impossible, by
// what they use once that is known. Without a round, moves wait until the kernel has brought the memory.
func (c *Controller) oneRound(r balance.Request) []plan.Move {
	o, idle := &c.competition, c.idle(r.Host)
	var working []string
	for name := range o.aheadOf {
		g, ok := r.Host.Guest(name)
		if ok && g.Placement == nil && g.State == "running" && !slices.Contains(idle, name) {
			working = append(working, name)
		}
	}
	if len(working) == 0 { // they have their places, or one over a threshold in the last sample is idle in the mean
		o.decided = c.allPlaced(r.Host)
		return nil
	}
	slices.Sort(working)
	round, ok := c.roundOf(r, working, true)
	if !ok && !c.steadyAt().After(c.moment()) {
		round, ok = c.roundOf(r, working, false)
		o.decided = true
	}
	if !ok {
		return nil
	}
	o.served, o.aheadOf = working, nil
	return round
}

// allPlaced reports whether all guests that the kernel serves have been placed.
func (c *Controller) allPlaced(h *inventory.Host) bool {
	for name := range c.competition.aheadOf {
		if g, ok := h.Guest(name); ok && g.Placement == nil {
			return false
		}
	}
	return true
}

// roundOf returns the moves of a plan as one round. ok reports whether it has a place for each of the guests, and the
// kernel can bring the memory of all. How fast the daemon's own copy is does not count: the kernel brings this memory
// also without a round.
func (c *Controller) roundOf(r balance.Request, names []string, busy bool) (round []plan.Move, ok bool) {
	h := *r.Host
	h.MoverBytesPerSecond = 0
	brought := r
	brought.Host = &h
	round, ok = c.asDegraded(brought, names, assumed{busy: busy})
	round = plan.JoinPulled(round)
	out := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return moves(round, name) })
	why := c.cannotPullAll(r.Host, round)
	if !ok || len(out) > 0 || why != "" {
		c.log(Debug, "no round for all guests that the kernel serves", "guests", names, "busy", busy, "without", out,
			"why", why)
		return nil, false
	}
	return round, true
}

// isDegraded reports whether a guest is degraded by the last plan.
func (c *Controller) isDegraded(name string) bool {
	return slices.ContainsFunc(c.when.plan.Degraded, func(d plan.Degraded) bool { return d.Guest == name })
}

// moves reports whether one of the moves is of a guest.
func moves(all []plan.Move, guest string) bool {
	return slices.ContainsFunc(all, func(m plan.Move) bool { return slices.Contains(m.Names(), guest) })
}

// copied is what moves copy in all.
func copied(all []plan.Move) (sum topology.Bytes) {
	for _, m := range all {
		sum += m.Cost.Bytes
	}
	return sum
}

// memoryOf returns how much memory guests have.
func memoryOf(h *inventory.Host, names []string) (sum topology.Bytes) {
	for _, name := range names {
		if g, ok := h.Guest(name); ok {
			sum += g.Seen.MemoryByNode.Total()
		}
	}
	return sum
}

// holds reports whether kernel balancing is on because a move of this daemon has enabled it.
func (c *competition) holds() bool {
	return c.balancing != "" && c.set != "" && c.set != competitors.Off(c.balancing)
}

// restores reports whether kernel balancing is being restored.
func (c *competition) restores() bool {
	return c.changing != nil && c.changing.Kind == plan.RestoreSetting && c.changing.Path == plan.NUMABalancingPath
}

// pulls reports whether kernel balancing, which a move has left on, is to stay on: the move has left memory behind
// that its guests did not use. The kernel brings it once they do. It ends when the rest of the moves has been
// finished, if another guest would be exposed, or when a pause of these guests lasts.
func (c *Controller) pulls() bool {
	if !c.competition.holds() || len(c.rest.left) == 0 || c.held() != "" || c.turn.stopping {
		return false
	}
	if c.host.knowledge == outdated {
		return true // the guests that the move has placed seem exposed until the next observation
	}
	h, known := c.Inventory(c.turn.now)
	if !known || !mayPull(c.rules.policy.Movers) || c.rules.policy.Balance.Mode != policy.ModeAuto {
		return false
	}
	idle := c.idle(&h)
	return !c.pauseLasts(&h, idle) &&
		len(order.Exposed(&h, func(name string) bool { return slices.Contains(idle, name) })) == 0
}

// pauseLasts reports whether guests for whose pause kernel balancing has stayed on have paused for long, or whether
// another guest works meanwhile: hinting faults would cost it time.
func (c *Controller) pauseLasts(h *inventory.Host, idle []string) bool {
	at := c.competition.pausedAt
	if at.IsZero() {
		return false
	}
	return c.turn.now.Sub(at) >= aheadLasts || slices.ContainsFunc(h.Guests, func(g inventory.Guest) bool {
		return g.State == "running" && g.Seen.Load != nil && !slices.Contains(idle, g.Name) && !c.rest.left[g.Name]
	})
}

// ownBalancing returns kernel.numa_balancing as it is without this daemon's moves,
// which enable it for a time: as last observed when no move ran.
func (c *Controller) ownBalancing() string {
	r := c.jobs.running
	if c.competition.holds() {
		return c.competition.balancing
	}
	if r != nil && r.job.Kind == MoveJob || c.host.knowledge == outdated {
		return c.competition.found
	}
	return c.host.inventory.Kernel.NUMABalancing
}

const (
	// leads is how long before a degraded guest may move the daemon enables kernel balancing: the kernel begins to
	// bring memory after a second of the vCPUs' time (kernel/sched/fair.c, sysctl_numa_balancing_scan_delay).
	leads = 2 * time.Second
	// aheadLasts is how long kernel balancing stays on without a move once no guest that it serves is over a threshold
	// and it has brought no memory, or after a move whose guests pause. Loads often pause for some seconds. aheadRests
	// is the time from one begin to the next at least.
	aheadLasts, aheadRests = 30 * time.Second, 15 * time.Second
	// aheadMost is how long moves wait for the kernel at most; aheadStarts is how long it takes until memory comes, and
	// aheadEbbs how long none has come when the kernel has brought what the guests use.
	aheadMost, aheadStarts, aheadEbbs = time.Minute, 8 * time.Second, 4 * time.Second
	// aheadLeast is the rate in bytes a second, and aheadPart the part of the highest rate, below which memory that
	// the kernel brings does not count.
	aheadLeast, aheadPart = float64(4 * topology.MiB), 0.1
)

// pullAhead enables kernel balancing for the moves that the next plan is likely to make: those of guests that have
// been degraded by remote accesses for almost degraded_for, and whose memory is spread over nodes. Most of it must be
// copied wherever they go. Until the plan, the kernel brings it to where the vCPUs run. A guest whose load is not known
// yet may have worked for long, if degraded_for is short; if it is idle, the kernel brings nothing.
func (c *Controller) pullAhead() {
	o := &c.competition
	if len(c.when.plan.Degraded)+len(c.host.fresh) == 0 || c.turn.now.Sub(o.ahead) < aheadRests || c.State() != Idle ||
		o.changing != nil || len(o.wanted) > 0 || o.balancing != "" ||
		c.rules.policy.Balance.Mode != policy.ModeAuto {
		return
	}
	h, known := c.Inventory(c.turn.now)
	mode, err := strconv.Atoi(h.Kernel.NUMABalancing)
	if !known || err != nil || mode < 0 || mode&1 == 1 || !mayPull(c.rules.policy.Movers) || !c.soonPulled(&h) {
		return
	}
	c.beginAhead(c.spreadGuests(&h))
	o.pausedAt = time.Time{}
	for _, d := range c.when.plan.Degraded {
		o.loaded = latest(o.loaded, d.Since)
	}
	o.grew = o.loaded
	o.wanted = append(o.wanted, plan.Remedy{
		Kind: plan.WriteSetting, Path: plan.NUMABalancingPath,
		From: h.Kernel.NUMABalancing, Value: strconv.Itoa(mode | 1),
		Why: "the kernel begins to bring memory to the vCPUs of VMs that run far from it",
	})
}

// serveAfterPause lets the kernel go on to serve the guests of a move that pause: they are on their nodes, and when
// they work again, the kernel brings their memory. Another move would do no more, and cost them time. That holds for
// guests whose memory is spread or at home on those nodes: the vCPUs of others may then move to their memory instead.
// Where a copy has a CPU of its own, it is faster.
func (c *Controller) serveAfterPause(m *Moved) {
	h, known := c.Inventory(c.turn.now)
	if !known || m.Held == nil || !m.Pauses || order.Undisturbed(c.copyRate()) {
		return
	}
	served := map[string]bool{}
	for i := range m.Move.Guests {
		move := &m.Move.Guests[i]
		g, ok := h.Guest(move.Guest)
		if !ok || c.modeOf(g) != policy.ModeAuto || !order.Pullable(g, c.rules.policy.Balance) {
			return
		}
		if node, is := home(g); is && !move.To().Contains(node) {
			return
		}
		served[g.Name] = true
	}
	c.beginAhead(served)
}

// beginAhead notes that the kernel serves guests from now on.
func (c *Controller) beginAhead(served map[string]bool) {
	o := &c.competition
	o.ahead, o.brought, o.fastest, o.aheadOf = c.turn.now, time.Time{}, 0, served
	o.loaded, o.needed = time.Time{}, c.turn.now
	o.demands, o.decided, o.grew = map[string]float64{}, false, o.loaded
	for i := range c.host.sample.Guests {
		g := &c.host.sample.Guests[i]
		o.demands[g.Name] = g.Load.Demand()
	}
}

// soonPulled reports whether guests that the kernel can serve may move soon, and kernel balancing exposes no other.
func (c *Controller) soonPulled(h *inventory.Host) bool {
	degradedFor, soon := c.degradedFor(), false
	for name := range c.host.fresh {
		g, ok := h.Guest(name)
		soon = soon || degradedFor <= leads && ok && g.State == "running" && c.spread(g)
	}
	for _, d := range c.when.plan.Degraded {
		if g, ok := h.Guest(d.Guest); !ok || !slices.Contains(d.Reasons, plan.RemoteAccess) || !c.spread(g) {
			return false
		}
		left := d.Since.Add(degradedFor).Sub(c.turn.now)
		soon = soon || left > 0 && left <= leads
	}
	return soon && len(c.exposedBut(h, c.spreadGuests(h))) == 0
}

// spreadGuests returns the guests that the kernel can serve ahead of moves, also idle ones: they may begin to work
// meanwhile.
func (c *Controller) spreadGuests(h *inventory.Host) map[string]bool {
	all := map[string]bool{}
	for i := range h.Guests {
		if g := &h.Guests[i]; g.State == "running" && c.spread(g) {
			all[g.Name] = true
		}
	}
	return all
}

// exposedBut returns the guests that kernel balancing exposes, but those that it serves, and idle ones.
func (c *Controller) exposedBut(h *inventory.Host, served map[string]bool) []string {
	idle := c.idle(h)
	return order.Exposed(h, func(name string) bool { return served[name] || slices.Contains(idle, name) })
}

// spread reports whether the kernel can serve a guest ahead of its move: most of its memory must be copied wherever it
// goes.
func (c *Controller) spread(g *inventory.Guest) bool {
	return c.modeOf(g) == policy.ModeAuto && order.Pullable(g, c.rules.policy.Balance) && !gathered(g)
}

// gathered reports whether most of a guest's memory is on one node: its vCPUs may move there instead.
func gathered(g *inventory.Guest) bool {
	_, ok := home(g)
	return ok
}

// home returns the node that has most of a guest's memory: more than half of it. ok is false if none has.
func home(g *inventory.Guest) (node topology.NodeID, ok bool) {
	for id, bytes := range g.Seen.MemoryByNode {
		if bytes > g.Seen.MemoryByNode.Total()/2 {
			return id, true
		}
	}
	return 0, false
}

// watchAhead notes how fast the kernel brings memory ahead of moves. Guests that begin to work are served, too, if
// their memory is spread; if it is not, kernel balancing ends.
func (c *Controller) watchAhead() {
	o, s := &c.competition, &c.host.sample
	if !o.holds() || len(o.aheadOf) == 0 { // their moves have been decided
		return
	}
	if s.Window > 0 {
		rate := float64(s.Moves.Balancing) / s.Window.Seconds()
		if o.fastest = max(o.fastest, rate); rate >= max(aheadLeast, aheadPart*o.fastest) {
			o.brought = c.turn.now
		}
	}
	h, known := c.Inventory(c.turn.now)
	if !known {
		return
	}
	maps.Copy(o.aheadOf, c.spreadGuests(&h))
	c.noteLoad()
	if len(c.exposedBut(&h, o.aheadOf)) > 0 {
		c.endAhead()
	}
}

// endAhead lets kernel balancing that serves guests ahead of moves end: as if it had lasted for the longest time.
func (c *Controller) endAhead() {
	o, long := &c.competition, c.turn.now.Add(-aheadMost)
	o.ahead, o.loaded, o.needed, o.brought = long, long, long, time.Time{}
}

// noteLoad notes since when guests that are served ahead have been over a threshold, and when their demand grew. Of a
// guest whose accesses are not measured, the last plan says that; it is idle if it hardly uses CPUs.
func (c *Controller) noteLoad() {
	o, b := &c.competition, c.rules.policy.Balance
	over, loaded := balance.OverThreshold(c.host.sample.Guests, b), false
	o.partly = false
	for i := range c.host.sample.Guests {
		g := &c.host.sample.Guests[i]
		demand := g.Load.Demand()
		switch {
		case !o.aheadOf[g.Name]:
			continue
		case demand < b.MinCPUDemand:
			o.partly = true
			continue
		}
		loaded = loaded || over[g.Name] || g.Load.Remote == nil && c.isDegraded(g.Name)
		if balance.Grown(o.demands[g.Name], demand) {
			o.grew, o.decided = c.turn.now, false
		}
		o.demands[g.Name] = max(o.demands[g.Name], demand)
	}
	switch {
	case !loaded:
		o.loaded = time.Time{}
		return
	case o.loaded.IsZero(): // it begins again
		o.loaded, o.grew, o.decided = c.turn.now, c.turn.now, false
	}
	o.needed = c.turn.now
}

// aheadFrom is when kernel balancing began to serve the present load.
func (c *competition) aheadFrom() time.Time { return latest(c.ahead, c.loaded) }

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// pullsAhead reports whether kernel balancing is to stay on for moves that are not decided yet.
func (c *Controller) pullsAhead() bool {
	o, now := &c.competition, c.turn.now
	return o.holds() && now.Sub(latest(o.ahead, o.needed, o.brought)) < aheadLasts &&
		now.Sub(o.aheadFrom()) < aheadMost+aheadLasts && c.held() == "" && !c.turn.stopping
}

// servesAhead reports whether the kernel serves guests ahead of moves that are not decided yet.
func (c *Controller) servesAhead() bool { return len(c.competition.aheadOf) > 0 && c.pullsAhead() }

// bringsAhead reports whether the kernel still brings memory ahead of moves, or may soon.
func (c *Controller) bringsAhead() bool {
	o, now := &c.competition, c.turn.now
	since := o.aheadFrom()
	if o.loaded.IsZero() { // it pauses
		since = o.needed
	}
	starts := now.Sub(since) < aheadStarts
	return c.servesAhead() && now.Sub(o.aheadFrom()) < aheadMost && (starts || now.Sub(o.brought) < aheadEbbs)
}

// allServed reports whether a plan could only wait for the kernel: it brings memory to all guests over a threshold. To
// plan would take time from them.
func (c *Controller) allServed() bool {
	if !c.bringsAhead() || order.Undisturbed(c.copyRate()) {
		return false
	}
	for name := range balance.OverThreshold(c.host.sample.Guests, c.rules.policy.Balance) {
		if !c.competition.aheadOf[name] || c.waitsInPlace(name) {
			return false
		}
	}
	return true
}

// waitsInPlace reports whether a guest that has been placed waits for CPUs: the kernel does not help it.
func (c *Controller) waitsInPlace(name string) bool {
	at := slices.IndexFunc(c.host.sample.Guests, func(g inventory.GuestSample) bool { return g.Name == name })
	g, ok := c.host.inventory.Guest(name)
	if at < 0 || !ok || g.Placement == nil {
		return false
	}
	load := &c.host.sample.Guests[at].Load
	return load.Wait >= c.rules.policy.Balance.WithDefaults().Wait*load.Demand()
}

// roundDue reports whether all guests over a threshold are served ahead of moves, and have been over it for
// degraded_for: one plan can decide about all of them, before the kernel has brought their memory.
func (c *Controller) roundDue() bool { return c.awaitsRound() && !c.roundAt().After(c.moment()) }

// awaitsRound reports whether a round for the guests that are served ahead is still to be decided.
func (c *Controller) awaitsRound() bool {
	return !c.competition.decided && !c.competition.loaded.IsZero() && c.allServed()
}

// together is the time in which guests that begin to work together do so.
const together = time.Second

// roundAt is when guests that are served ahead may move. If some of them are idle, and the demand of another one has
// just grown, these may follow: a round for a part of them would give way soon, and cost as much as one for all.
func (c *Controller) roundAt() time.Time {
	o := &c.competition
	at := o.loaded.Add(c.degradedFor())
	if o.partly {
		at = latest(at, o.grew.Add(together))
	}
	return at
}

// steadyAt is when the demands of guests that are served ahead are known, unless one grows before.
func (c *Controller) steadyAt() time.Time { return c.competition.grew.Add(c.degradedFor()) }

// aheadEnded reports whether the kernel has brought what it brings ahead of moves, and they have not been decided yet.
// Where moves did not wait for it, there is nothing to decide, nor where the load ended before it brought anything.
func (c *Controller) aheadEnded() bool {
	o := &c.competition
	return o.holds() && len(o.aheadOf) > 0 && c.turn.now.Sub(o.aheadFrom()) < 2*aheadMost && !c.bringsAhead() &&
		(!o.loaded.IsZero() || !o.brought.IsZero()) && !order.Undisturbed(c.copyRate())
}

// awaitsKernel reports whether moves should wait for the memory that the kernel brings ahead of them. It serves all
// guests at the same time, and what it brings decides where they are pinned: a move that begins meanwhile serves some,
// and keeps the others waiting. Where a copy has a CPU of its own, it is faster.
func (c *Controller) awaitsKernel(moves []plan.Move) bool {
	o := &c.competition
	if len(moves) == 0 || !c.bringsAhead() || order.Undisturbed(c.copyRate()) {
		return false
	}
	return !slices.ContainsFunc(moves, func(m plan.Move) bool {
		other := slices.ContainsFunc(m.Names(), func(name string) bool { return !o.aheadOf[name] })
		return other || m.Benefit.WaitCPUs > m.Benefit.AccessCPUs
	})
}

// settles is how long memory may still move after kernel balancing has been disabled: the kernel makes up to 256 MiB of
// a VM inaccessible at once, and moves each page when it is next used.
const settles = 30 * time.Second

// drifts reports whether the kernel brings memory to vCPUs for moves, or did a moment ago.
func (c *Controller) drifts() bool {
	last := c.competition.stirred
	if ahead := c.competition.ahead; ahead.After(last) {
		last = ahead
	}
	return !last.IsZero() && c.turn.now.Sub(last) < settles
}

// handOver gives a move the setting that was enabled ahead of it, or that a move left on which gave way to it, or whose
// guests paused. Memory that another move has left behind may need it for longer: then the controller holds it.
func (c *Controller) handOver(j Job) *journal.SettingChange {
	o := &c.competition
	wanted := c.pullsAhead() || o.holds() && (!o.pausedAt.IsZero() || !c.pulls())
	if !wanted || o.changing != nil || j.By != Balancer {
		return nil
	}
	held := &journal.SettingChange{Path: plan.NUMABalancingPath, Former: o.balancing, Value: o.set, Held: true}
	o.balancing, o.set, o.aheadOf = "", "", nil
	o.wanted = slices.DeleteFunc(o.wanted, func(r plan.Remedy) bool { return r.Kind == plan.RestoreSetting })
	return held
}

// pullsNow reports whether the kernel brings memory for the running move, as far as was known when it began, or for one
// that gave way a moment ago: the next plan decides about its guests and about the others.
func (c *Controller) pullsNow() bool {
	if r := c.jobs.running; r != nil {
		return r.pulled
	}
	left := c.competition.leftOn
	return !left.IsZero() && c.turn.now.Sub(left) < leads+c.degradedFor()
}

// takeBack takes a setting back from a move that did not begin.
func (c *Controller) takeBack(j Job, e JobEnded) {
	if j.Held != nil && len(e.Moved) == 0 {
		c.competition.balancing, c.competition.set = j.Held.Former, j.Held.Value
	}
}
