package place

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// Why explains a placement.
type Why struct {
	Guest   string           `json:"guest"`
	Summary string           `json:"summary"` // one sentence
	Nodes   topology.NodeSet `json:"nodes"`   // of CPUs and memory
	// SharingCores is how many vCPUs must share a core with another vCPU of the guest.
	SharingCores int `json:"vcpus_sharing_cores,omitempty"`
	// Overload is how many vCPUs exceed the CPUs of their nodes, with the demand of others
	// counted first: every placement overloads a node.
	Overload int     `json:"vcpus_overloading,omitempty"`
	Cost     float64 `json:"cost"`
	Terms    []Term  `json:"terms"`
	// Alternatives are rejected sets of nodes: the next best ones, those that are
	// closest to fitting, and fewer nodes.
	Alternatives []Alternative `json:"alternatives,omitempty"`
	// Considered is the number of search steps; Pruned is the number of node sets
	// that bounds excluded without evaluation.
	Considered int `json:"considered"`
	Pruned     int `json:"pruned"`
	// Optimal says that no better placement exists. It is false if the search
	// stopped at policy.SearchSteps; Gap then bounds how much better another
	// placement could be.
	Optimal bool `json:"optimal"`
	Gap     *Gap `json:"gap,omitempty"`
	// Access names the source of the access terms.
	Access string `json:"access_source"`
	// Grow are huge pages that must be added to pools before the guest starts.
	Grow []Growth `json:"grow,omitempty"`
	// Overlaps are guests whose CPU sets contain CPUs that become exclusive: they
	// must first be bound to other CPUs.
	Overlaps []Overlap `json:"overlaps,omitempty"`
}

// Term is one term of the cost: Cost is Value times Weight.
type Term struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Weight float64 `json:"weight"`
	Cost   float64 `json:"cost"`
	Note   string  `json:"note,omitempty"`
}

// Gap is the first figure of the objective in which a placement that the search
// did not evaluate could be better.
type Gap struct {
	Figure string  `json:"figure"` // "overload", "shared cores" (both in vCPUs), "nodes" or "cost"
	Most   float64 `json:"most"`   // the largest possible improvement
}

// gapOf compares the best key found with the lowest key that is not excluded.
func gapOf(best, open key) *Gap {
	switch {
	case open >= best:
		return nil
	case shortfallOf(open) < shortfallOf(best):
		return &Gap{"shared cores", float64(shortfallOf(best) - shortfallOf(open))}
	case nodeCountOf(open) < nodeCountOf(best):
		return &Gap{"nodes", float64(nodeCountOf(best) - nodeCountOf(open))}
	}
	return &Gap{"cost", (costOf(best) - costOf(open)).Float()}
}

// Alternative is a rejected set of nodes.
type Alternative struct {
	Nodes topology.NodeSet `json:"nodes,omitzero"`
	// Cost is the cost of the alternative; nil if it does not fit.
	Cost *float64 `json:"cost,omitempty"`
	// Decided is the reason for its rejection: a term of the cost, "shared cores",
	// "nodes" or a constraint.
	Decided string `json:"decided"`
	Reason  string `json:"reason"`
}

// Growth is the number of pages by which a huge page pool must grow.
type Growth struct {
	Node     topology.NodeID `json:"node"`
	PageSize topology.Bytes  `json:"page_size"`
	Pages    uint64          `json:"pages"`
}

// Overlap is a guest that may run on CPUs that become exclusive to another guest.
type Overlap struct {
	Guest   string          `json:"guest"`
	CPUs    topology.CPUSet `json:"cpus"`
	Managed bool            `json:"managed"`
}

// why explains a solution.
func (p *problem) why(sol *solution, placed *guest.Placement) Why {
	w := Why{
		Guest: p.spec.Name, Nodes: p.nodesOf(sol.slots), SharingCores: p.sharingCores(sol.slots, sol),
		Overload:   p.overload(sol.slots, sol),
		Cost:       costOf(sol.key).Float(),
		Considered: sol.considered, Pruned: sol.pruned, Optimal: sol.proven(), Gap: gapOf(sol.key, sol.open),
		Access: "SLIT, damped",
	}
	if p.access.Measured() {
		w.Access = "measured latency"
	}
	if p.aim == leastOverload && w.Gap != nil && w.Gap.Figure == "shared cores" {
		w.Gap = &Gap{Figure: "overload", Most: w.Gap.Most / 2} // the shortfall counts each vCPU twice
	}
	chosen := p.bill(sol.slots, sol)
	w.Terms = p.termList(chosen, sol)
	w.Alternatives = slices.Concat(p.fewer(sol), p.runnersUp(sol, chosen), p.tooSmall(sol))
	for i, c := range sol.cells {
		n := &p.nodes[sol.slots[i].mem]
		if pages := p.growth(n, c.take); pages > 0 {
			w.Grow = append(w.Grow, Growth{n.node.ID, p.spec.PageSize, pages})
		}
	}
	w.Overlaps = p.overlaps(placed.Exclusive())
	w.Summary = w.summary(&p.spec, sol)
	return w
}

func (p *problem) nodesOf(slots []slot) topology.NodeSet {
	ids := make([]topology.NodeID, 0, 2*len(slots))
	for _, s := range slots {
		ids = append(ids, p.nodes[s.cpu].node.ID, p.nodes[s.mem].node.ID)
	}
	return topology.SetOf(ids...)
}

// bill adds up all terms of cells in the given slots.
func (p *problem) bill(slots []slot, sol *solution) cost.Terms {
	var t cost.Terms
	for i, a := range slots {
		da := sol.demandOf(i)
		t = t.Add(p.terms(a, da, len(slots)))
		for j, b := range slots[:i] {
			db := sol.demandOf(j)
			latency := cost.Micro(
				(traffic(da, db)*int64(p.wayLatency(a, b)) + traffic(db, da)*int64(p.wayLatency(b, a))) >> shareBits)
			t[cost.Latency] += latency
			t[cost.Bandwidth] += p.between(a, da, b, db) - latency
		}
	}
	return t
}

func (p *problem) termList(t cost.Terms, sol *solution) []Term {
	var out []Term
	for i := range t {
		term := cost.Term(i)
		weight := p.list.Weight(term)
		if weight == 0 || t[i] == 0 {
			continue
		}
		out = append(out, Term{
			Name: term.String(), Value: t[i].Float() / weight, Unit: term.Unit(),
			Weight: weight, Cost: t[i].Float(), Note: p.note(term, sol),
		})
	}
	return out
}

// note gives the figure of the host that determines a term.
func (p *problem) note(term cost.Term, sol *solution) string {
	switch term {
	case cost.Latency:
		return p.farthest(sol.slots)
	case cost.Bandwidth:
		text, busiest := p.narrowest(sol.slots), 0.0
		for _, s := range sol.slots {
			busiest = max(busiest, p.nodes[s.mem].busy)
		}
		if busiest > 0 {
			text += fmt.Sprintf("; others use up to %.0f %% of it", 100*busiest)
		}
		return text
	case cost.Load:
		var run, mem float64
		for i, c := range sol.cells {
			run = max(run, p.nodes[sol.slots[i].cpu].demand(c.vcpus))
			mem = max(mem, p.nodes[sol.slots[i].mem].use(0, c.take).Memory)
		}
		return fmt.Sprintf("fullest node after placing: CPUs %.0f %%, memory %.0f %%", 100*run, 100*mem)
	case cost.Growth:
		return "huge pages that must first be added to pools"
	default: // the host has no figure for the term
		return ""
	}
}

// farthest gives the longest distance between two of the slots.
func (p *problem) farthest(slots []slot) string {
	text, worst := "", 0.0
	for _, a := range slots {
		for _, b := range slots {
			if l := p.access.Latency(a.cpu, b.mem); a.cpu != b.mem && l > worst {
				worst = l
				text = fmt.Sprintf("distance %d", p.access.SLIT(a.cpu, b.mem))
				if ns, ok := p.host.Topology.Latency(p.nodes[a.cpu].node.ID, p.nodes[b.mem].node.ID); ok &&
					p.access.Measured() {
					text = fmt.Sprintf("%.0f ns", ns)
				}
			}
		}
	}
	return text
}

// narrowest gives the lowest bandwidth between two of the slots.
func (p *problem) narrowest(slots []slot) string {
	text, worst := "", 0.0
	for _, a := range slots {
		for _, b := range slots {
			if r := p.access.Bandwidth(a.cpu, b.mem); r > worst {
				if mbps, ok := p.host.Topology.Bandwidth(p.nodes[a.cpu].node.ID, p.nodes[b.mem].node.ID); ok {
					worst, text = r, fmt.Sprintf("%.0f MB/s", mbps)
				}
			}
		}
	}
	return text
}

// alternativesShown is the number of alternatives of each kind to report.
const alternativesShown = 3

// fewer explains why one node fewer is not enough.
func (p *problem) fewer(sol *solution) []Alternative {
	if len(sol.smaller) == 0 || len(sol.slots) == 1 {
		return nil
	}
	last := sol.smaller[len(sol.smaller)-1]
	short := p.nameHolders(p.closest(p.shortages(last.kinds)))
	reason := "no set of that size satisfies all limits"
	decided := string(NotAllowed)
	if last.fitting < last.cells && len(short) > 0 {
		if i := slices.IndexFunc(short, func(s Shortage) bool { return s.Constraint == Overloaded }); i > 0 {
			short[0] = short[i] // else the guest would fit there
		}
		reason, decided = short[0].String(), string(short[0].Constraint)
	}
	return []Alternative{
		{
			Decided: decided,
			Reason:  fmt.Sprintf("%s not enough: %s", text.Count(last.cells, "node is", "nodes are"), reason),
		},
	}
}

// shortages returns for each candidate node why the least demanding kind of cell
// does not fit there. It omits nodes where one fits.
func (p *problem) shortages(kinds []demand) []Shortage {
	var out []Shortage
	fits := map[topology.NodeID]bool{}
	for _, s := range p.slots {
		best := Shortage{}
		for k := len(kinds) - 1; k >= 0; k-- { // the least demanding kind first
			short, ok := p.fit(s, &kinds[k])
			if ok {
				fits[p.nodes[s.cpu].node.ID], fits[p.nodes[s.mem].node.ID] = true, true
				break
			}
			if best.Constraint == "" || short.tightness() < best.tightness() {
				best = short
			}
		}
		known := slices.ContainsFunc(out, func(o Shortage) bool { return o.Node == best.Node })
		if !fits[best.Node] && !known && best.Constraint != NotAllowed && best.Constraint != "" {
			out = append(out, best)
		}
	}
	return slices.DeleteFunc(out, func(s Shortage) bool { return fits[s.Node] })
}

// nameHolders adds who holds the scarce resources.
func (p *problem) nameHolders(shorts []Shortage) []Shortage {
	for i := range shorts {
		shorts[i].Holders = p.holders(shorts[i])
	}
	return shorts
}

// closest sorts shortages by tightness, the smallest first.
func (p *problem) closest(shorts []Shortage) []Shortage {
	slices.SortStableFunc(shorts, func(a, b Shortage) int { return cmp.Compare(a.tightness(), b.tightness()) })
	return shorts
}

// tooSmall lists the nodes that are closest to having enough resources for a cell.
func (p *problem) tooSmall(sol *solution) []Alternative {
	var out []Alternative
	for _, short := range p.nameHolders(p.closest(p.shortages(sol.kinds))) {
		if len(out) < alternativesShown {
			out = append(
				out,
				Alternative{
					Nodes:   topology.SetOf(short.Node),
					Decided: string(short.Constraint),
					Reason:  short.lack(),
				},
			)
		}
	}
	return out
}

// runnersUp evaluates the placements that differ by one node and lists the best.
func (p *problem) runnersUp(sol *solution, chosen cost.Terms) []Alternative {
	type runnerUp struct {
		key   key
		slots []slot
	}
	var found []runnerUp
	taken := p.nodesOf(sol.slots)
	for _, s := range p.slots {
		if taken.Contains(p.nodes[s.cpu].node.ID) || taken.Contains(p.nodes[s.mem].node.ID) {
			continue
		}
		best := runnerUp{key: impossible}
		for cell := range sol.slots {
			if k := p.exchanged(sol, cell, s); k < best.key {
				slots := slices.Clone(sol.slots)
				slots[cell] = s
				best = runnerUp{k, slots}
			}
		}
		// Uneven cells were sized for their nodes: other nodes would get other cells.
		if best.key < impossible && best.key >= sol.key {
			found = append(found, best)
		}
	}
	slices.SortStableFunc(found, func(a, b runnerUp) int { return cmp.Compare(a.key, b.key) })
	var out []Alternative
	for _, r := range found[:min(len(found), alternativesShown)] {
		out = append(out, p.compare(sol, chosen, r.key, r.slots))
	}
	return out
}

// exchanged returns the key of a solution with one cell in another slot.
func (p *problem) exchanged(sol *solution, cell int, s slot) key {
	d := sol.demandOf(cell)
	old := sol.slots[cell]
	single := p.single(s, d, len(sol.slots))
	if single >= impossible {
		return impossible
	}
	k := sol.key + single - p.single(old, d, len(sol.slots))
	for i, other := range sol.slots {
		if i == cell {
			continue
		}
		if !p.together(s, other) {
			return impossible
		}
		do := sol.demandOf(i)
		k += key(p.between(s, d, other, do) - p.between(old, d, other, do))
	}
	return k
}

// compare explains why an alternative was rejected.
func (p *problem) compare(sol *solution, chosen cost.Terms, k key, slots []slot) Alternative {
	figure := costOf(k).Float()
	alt := Alternative{Nodes: p.nodesOf(slots), Cost: &figure}
	switch {
	case !p.keepsConditions(slots):
		alt.Decided = string(NotAllowed)
		alt.Reason = "lacks the node of a required device or uses more nodes than allowed"
		return alt
	case shortfallOf(k) > shortfallOf(sol.key):
		alt.Decided, alt.Reason = p.compareShortfall(sol, slots)
		return alt
	case p.nodesOf(slots).Len() > p.nodesOf(sol.slots).Len():
		alt.Decided, alt.Reason = "nodes", "uses more nodes than necessary"
		return alt
	case k == sol.key:
		alt.Decided, alt.Reason = "none", fmt.Sprintf("same cost %.3g, and as much is left over", figure)
		return alt
	}
	theirs := p.bill(slots, sol)
	worst := cost.Term(0)
	for i := range theirs {
		if theirs[i]-chosen[i] > theirs[worst]-chosen[worst] {
			worst = cost.Term(i)
		}
	}
	alt.Decided = worst.String()
	alt.Reason = fmt.Sprintf("cost %.3g (%s %.3g instead of %.3g)", figure, worst, theirs[worst].Float(),
		chosen[worst].Float())
	here, there := "", ""
	switch worst {
	case cost.Latency:
		here, there = p.farthest(slots), p.farthest(sol.slots)
	case cost.Bandwidth:
		here, there = p.narrowest(slots), p.narrowest(sol.slots)
	default: // the costs are explanation enough
	}
	if here != there && there != "" {
		alt.Reason = fmt.Sprintf("cost %.3g (%s instead of %s)", figure, here, strings.TrimPrefix(there, "distance "))
	}
	return alt
}

// compareShortfall explains why an alternative has a larger shortfall.
func (p *problem) compareShortfall(sol *solution, slots []slot) (decided, reason string) {
	ours, theirs := p.overload(sol.slots, sol), p.overload(slots, sol)
	if p.aim == leastOverload && theirs > ours {
		return string(Overloaded), fmt.Sprintf("demand would exceed its CPUs by %s, instead of %d",
			text.Count(theirs, "vCPU", "vCPUs"), ours)
	}
	return "shared cores", fmt.Sprintf("%s would share cores, instead of %d",
		text.Count(p.sharingCores(slots, sol), "vCPU", "vCPUs"), p.sharingCores(sol.slots, sol))
}

// sharingCores returns how many vCPUs of the cells share a core.
func (p *problem) sharingCores(slots []slot, sol *solution) (sum int) {
	for cell, s := range slots {
		sum += p.sharing(&p.nodes[s.cpu], sol.demandOf(cell))
	}
	return sum
}

func (p *problem) keepsConditions(slots []slot) bool {
	nodes := p.nodesOf(slots)
	return p.required.SubsetOf(nodes) && (p.spec.Limits.MaxNodes == 0 || nodes.Len() <= p.spec.Limits.MaxNodes)
}

// holders names the guests that hold most of the scarce resource, greatest first.
func (p *problem) holders(short Shortage) []string {
	type share struct {
		text string
		size float64
	}
	var shares []share
	for i := range p.nodes {
		if p.nodes[i].node.ID != short.Node {
			continue
		}
		if pools := poolBytes(p.nodes[i].node); short.Constraint == TooLittle && pools > 0 {
			shares = append(shares, share{fmt.Sprintf("huge page pools (%v)", pools), float64(pools)})
		}
		for _, h := range p.nodes[i].room.Holders {
			s := share{}
			switch short.Constraint {
			case TooLittle, TooFewPages:
				if h.PageSize != short.PageSize {
					continue // it holds none of these pages
				}
				s = share{fmt.Sprintf("%s (%v)", h.Name, h.Memory()), float64(h.Memory())}
			case Overcommitted, Overloaded:
				s = share{fmt.Sprintf("%s (%s)", h.Name, some(h.VCPUs, "vCPU")), h.VCPUs}
			default:
				own := h.Exclusive.Union(h.Pinned)
				s = share{fmt.Sprintf("%s (CPUs %v)", h.Name, own), float64(own.Len())}
			}
			if s.size > 0 {
				shares = append(shares, s)
			}
		}
	}
	slices.SortStableFunc(shares, func(a, b share) int { return cmp.Compare(b.size, a.size) })
	var out []string
	for _, s := range shares[:min(len(shares), alternativesShown)] {
		out = append(out, s.text)
	}
	return out
}

// poolBytes is the memory that a node's huge page pools take from small pages.
func poolBytes(n *topology.Node) topology.Bytes {
	var sum topology.Bytes
	for _, pool := range n.HugePages {
		sum += topology.Bytes(pool.Total) * pool.Size
	}
	return sum
}

// overlaps finds guests that may run on CPUs that become exclusive.
func (p *problem) overlaps(exclusive topology.CPUSet) []Overlap {
	if exclusive.IsEmpty() {
		return nil
	}
	var out []Overlap
	for i := range p.host.Guests {
		g := &p.host.Guests[i]
		var all topology.CPUSet
		if g.Placement != nil {
			for _, v := range g.Placement.VCPUs {
				all = all.Union(v.CPUs)
			}
			all = all.Union(g.Placement.Emulator).Union(g.Placement.IOThread)
		} else {
			for _, pin := range g.Config.Pins {
				all = all.Union(pin)
			}
			all = all.Union(g.Config.EmulatorPin)
		}
		if both := all.Intersect(exclusive); !both.IsEmpty() && g.Name != p.spec.Name {
			out = append(out, Overlap{g.Name, both, g.Managed})
		}
	}
	return out
}
