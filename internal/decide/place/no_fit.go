package place

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
)

// NoFitError is the error for a guest that does not fit: the shortage on each node, and
// the smallest changes that would make the guest fit.
type NoFitError struct {
	Guest string `json:"guest"`
	// Cells is the number of parts of the division that was closest to fitting.
	Cells int `json:"cells"`
	// Nodes gives for each node the shortage for a part.
	Nodes []Shortage `json:"nodes"`
	// Reason is set if each part fits, but not all of them together.
	Reason string `json:"reason,omitempty"`
	// Changes each make the guest fit, which was verified; the smallest first.
	Changes []Change `json:"changes,omitempty"`
	// Unproven says that the search stopped before it tried all placements.
	Unproven bool `json:"unproven,omitempty"`
}

// Change is one change of the request that makes it fit.
type Change struct {
	Text   string        `json:"text"`
	Spec   guest.Spec    `json:"spec"`
	Policy policy.Policy `json:"policy"`
}

// Error gives the tightest constraints and the first change in one line.
func (e *NoFitError) Error() string {
	if len(e.Changes) == 0 {
		return e.Shortages() + "; choose another host"
	}
	return e.Shortages() + "; would fit with: " + e.Changes[0].Text
}

// Shortages gives the tightest constraints in one line.
func (e *NoFitError) Shortages() string {
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
	return fmt.Sprintf("VM %s does not fit: %s", e.Guest, strings.Join(parts, "; "))
}

// Text lists everything for people.
func (e *NoFitError) Text() string {
	var b strings.Builder
	switch e.Cells {
	case 0:
		fmt.Fprintf(&b, "VM %s does not fit:\n", e.Guest)
	case 1:
		fmt.Fprintf(&b, "VM %s does not fit on any single node:\n", e.Guest)
	default:
		fmt.Fprintf(&b, "VM %s does not fit in %d parts:\n", e.Guest, e.Cells)
	}
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

// noFit explains why the guest does not fit.
func (p *problem) noFit(r Request, refused []refusal) *NoFitError {
	e := &NoFitError{Guest: p.spec.Name}
	var nearest *refusal
	least := 0.0
	for i := range refused {
		e.Unproven = e.Unproven || refused[i].unproven
		shorts := p.closest(p.shortages(refused[i].kinds))
		if gap := refused[i].gap(shorts); nearest == nil || gap < least {
			nearest, least, e.Nodes = &refused[i], gap, shorts
		}
	}
	p.nameHolders(e.Nodes)
	if nearest == nil || len(p.slots) == 0 {
		e.Reason = p.indivisible()
	} else {
		e.Cells = nearest.cells
		e.Reason = p.apartReason(nearest)
	}
	if !r.WithoutAdvice {
		e.Changes = p.changes(r)
	}
	return e
}

// gap returns how far a division is from fitting, 0 to 1. If n cells do not fit, it
// is the tightness of the n-th shortage; shorts must be sorted by tightness. With
// more such cells than shortages it is 1.
func (f *refusal) gap(shorts []Shortage) float64 {
	unplaced := f.cells - f.fitting
	switch {
	case unplaced <= 0:
		return 0
	case unplaced > len(shorts):
		return 1
	}
	return shorts[unplaced-1].tightness()
}

// indivisible explains why the guest cannot be divided as its spec requests.
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
	return fmt.Sprintf("%d vCPUs and %v cannot be divided into the cells that topology %q requests", p.spec.VCPUs,
		p.spec.Memory, p.spec.Topology.Mode)
}

// apartReason explains why the parts of a division do not fit together.
func (p *problem) apartReason(f *refusal) string {
	switch limits := &p.spec.Limits; {
	case limits.MaxNodes > 0 && f.cells > limits.MaxNodes:
		return fmt.Sprintf("%d cells need %d nodes; limits.max_nodes is %d", f.cells, f.cells, limits.MaxNodes)
	case f.cells > 1 && f.fitting < f.cells:
		return fmt.Sprintf("needs %d nodes with enough free resources, found %s", f.cells, countOrNone(f.fitting))
	case f.fitting < f.cells:
		return ""
	case !p.required.IsEmpty():
		return fmt.Sprintf("no set of %s contains the nodes %v of the required devices",
			text.Count(f.cells, "node", "nodes"), p.required)
	case limits.MaxDistance > 0 || limits.MaxClass != "":
		return fmt.Sprintf("no %d nodes with enough free resources are within max_distance %d and max_class %q of "+
			"each other", f.cells, limits.MaxDistance, limits.MaxClass)
	}
	return "each cell fits alone, but not all of them at the same time"
}

func countOrNone(nodes int) string {
	if nodes == 0 {
		return "none"
	}
	return strconv.Itoa(nodes)
}
