package place

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
)

// NoFit is the error of a guest that finds no room: what is tightest on each
// node, and the smallest changes that would find it room.
type NoFit struct {
	Guest string `json:"guest"`
	// Cells is the number of parts the guest was divided into when it came nearest to fitting.
	Cells int `json:"cells"`
	// Nodes says for each node what a part lacks there.
	Nodes []Shortage `json:"nodes"`
	// Reason is set where the parts find room, but not together.
	Reason string `json:"reason,omitempty"`
	// Changes would each find room, as was tried; the least painful first.
	Changes []Change `json:"changes,omitempty"`
	// Unproven says that the search was cut off before all was tried.
	Unproven bool `json:"unproven,omitempty"`
}

// Change is one change of the request that makes it fit.
type Change struct {
	Text   string        `json:"text"`
	Spec   guest.Spec    `json:"spec"`
	Policy policy.Policy `json:"policy"`
}

// Error says it in one line: the tightest constraints and the first change.
func (e *NoFit) Error() string {
	var parts []string
	for _, n := range e.Nodes {
		if len(parts) == alternativesShown {
			parts = append(parts,
				fmt.Sprintf("and %s more", text.Count(len(e.Nodes)-alternativesShown, "node", "nodes")))
			break
		}
		parts = append(parts, n.String())
	}
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	text := fmt.Sprintf("guest %s: no room: %s", e.Guest, strings.Join(parts, "; "))
	if len(e.Changes) == 0 {
		return text + "; choose another host"
	}
	return text + "; would fit: " + e.Changes[0].Text
}

// Text lists everything for people.
func (e *NoFit) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "guest %s finds no room", e.Guest)
	if e.Cells > 0 {
		fmt.Fprintf(&b, ", divided into %s", text.Count(e.Cells, "part", "parts"))
	}
	b.WriteString(":\n")
	for _, n := range e.Nodes {
		fmt.Fprintf(&b, "  %v\n", n)
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, "  %s\n", e.Reason)
	}
	if len(e.Changes) > 0 {
		b.WriteString("it would fit with:\n")
	}
	for _, c := range e.Changes {
		fmt.Fprintf(&b, "  %s\n", c.Text)
	}
	return b.String()
}

// noFit explains why there is no room.
func (p *problem) noFit(r Request, refused []refusal) *NoFit {
	e := &NoFit{Guest: p.spec.Name}
	var nearest *refusal
	least := 0.0
	for i := range refused {
		e.Unproven = e.Unproven || refused[i].unproven
		shorts := p.closest(p.shortages(refused[i].kinds))
		if gap := refused[i].gap(shorts); nearest == nil || gap < least {
			nearest, least, e.Nodes = &refused[i], gap, shorts
		}
	}
	if nearest == nil || len(p.slots) == 0 {
		e.Reason = p.indivisible()
	} else {
		e.Cells = nearest.cells
		e.Reason = p.apartReason(nearest)
	}
	e.Changes = p.changes(r)
	return e
}

// gap is how far the division is from fitting: for the last of the cells that
// find no home, the share of what it asks for that is missing where least is.
// shorts are sorted by that. Cells beyond the number of nodes lack all.
func (f *refusal) gap(shorts []Shortage) float64 {
	homeless := f.cells - f.fitting
	switch {
	case homeless <= 0:
		return 0
	case homeless > len(shorts):
		return 1
	}
	return shorts[homeless-1].tightness()
}

// indivisible says why the guest cannot even be divided as it asks.
func (p *problem) indivisible() string {
	if len(p.slots) == 0 {
		limit, all := p.spec.Limits.Nodes, p.host.Topology.NodeSet()
		if !limit.IsEmpty() && !limit.Intersects(all) {
			return fmt.Sprintf("limits.nodes is %v; allowed: nodes of the host, %v", limit, all)
		}
		if limit.IsEmpty() {
			return "no node has CPUs that reach memory"
		}
		return fmt.Sprintf("none of the nodes %v (limits.nodes) has CPUs that reach memory", limit)
	}
	return fmt.Sprintf("%d vCPUs and %v cannot be divided into the cells that topology %q asks for", p.spec.VCPUs,
		p.spec.Memory, p.spec.Topology.Mode)
}

// apartReason explains a division whose parts find homes, but not together.
func (p *problem) apartReason(f *refusal) string {
	switch limits := &p.spec.Limits; {
	case limits.MaxNodes > 0 && f.cells > limits.MaxNodes:
		return fmt.Sprintf("%d cells need %d nodes; limits.max_nodes is %d", f.cells, f.cells, limits.MaxNodes)
	case f.cells > 1 && f.fitting < f.cells:
		return fmt.Sprintf("%d nodes with room needed, %d found", f.cells, f.fitting)
	case f.fitting < f.cells:
		return ""
	case !p.required.IsEmpty():
		return fmt.Sprintf("no set of %s holds nodes %v of the required devices", text.Count(f.cells, "node", "nodes"),
			p.required)
	case limits.MaxDistance > 0 || limits.MaxClass != "":
		return fmt.Sprintf("no %d nodes with room lie within max_distance %d, max_class %q of each other", f.cells,
			limits.MaxDistance, limits.MaxClass)
	}
	return "the cells find room each by itself, but not all at the same time"
}
