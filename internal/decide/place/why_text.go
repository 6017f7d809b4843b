package place

import (
	"fmt"
	"math"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/text"
)

// summary returns one sentence: the placement and its cost.
func (w *Why) summary(s *guest.Spec, sol *solution) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s %v: %s and %v", w.Guest, text.Plural(w.Nodes.Len(), "node", "nodes"), w.Nodes,
		text.Count(s.VCPUs, "vCPU", "vCPUs"), s.Memory)
	switch {
	case sol.uneven:
		fmt.Fprintf(&b, " in %d uneven parts", len(sol.cells))
	case len(sol.cells) > 1:
		fmt.Fprintf(&b, " in %d parts", len(sol.cells))
	}
	fmt.Fprintf(&b, ", cost %.3g", w.Cost)
	var parts []string
	for _, t := range w.Terms {
		parts = append(parts, fmt.Sprintf("%s %.3g", t.Name, t.Cost))
	}
	if len(parts) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(parts, ", "))
	}
	if w.SharingCores > 0 {
		fmt.Fprintf(&b, "; %s share cores, because no set of nodes has a core for each",
			text.Count(w.SharingCores, "vCPU must", "vCPUs must"))
	}
	if w.Overload > 0 {
		fmt.Fprintf(&b, "; demand exceeds the CPUs that the VM may use by %s", text.Count(w.Overload, "vCPU", "vCPUs"))
	}
	return b.String()
}

// Text explains the placement: the summary, the rejected alternatives, the terms of
// the cost, the actions required first, and how complete the search was.
func (w *Why) Text() string {
	var b strings.Builder
	b.WriteString(w.Summary)
	b.WriteByte('\n')
	for _, a := range w.Alternatives {
		if a.Nodes.IsEmpty() {
			fmt.Fprintf(&b, "  %s\n", a.Reason)
		} else {
			fmt.Fprintf(&b, "  %s %v rejected: %s\n", text.Plural(a.Nodes.Len(), "node", "nodes"), a.Nodes, a.Reason)
		}
	}
	if len(w.Terms) > 0 {
		fmt.Fprintf(&b, "  cost terms (access from %s):\n", w.Access)
	}
	for _, t := range w.Terms {
		fmt.Fprintf(&b, "    %-10s %8.4f = %7.4f x %-5.4g %s", t.Name, t.Cost, t.Value, t.Weight, t.Unit)
		if t.Note != "" {
			fmt.Fprintf(&b, "; %s", t.Note)
		}
		b.WriteByte('\n')
	}
	for _, g := range w.Grow {
		fmt.Fprintf(&b, "  first: add %s of %v to the pool of node %d\n", text.Count(int(g.Pages), "page", "pages"),
			g.PageSize, g.Node)
	}
	for _, o := range w.Overlaps {
		fmt.Fprintf(&b, "  first: rebind VM %s without CPUs %v, which become exclusive\n", o.Guest, o.CPUs)
	}
	fmt.Fprintf(&b, "  search: %s, %s pruned; %s\n", text.Count(w.Considered, "step", "steps"),
		text.Count(w.Pruned, "node set", "node sets"), w.proof())
	return b.String()
}

// proof says whether the placement is proven optimal, or how much better another
// one could be.
func (w *Why) proof() string {
	if w.Gap == nil {
		return "proven optimal"
	}
	better := fmt.Sprintf("cost up to %.4f lower", w.Gap.Most)
	switch w.Gap.Figure {
	case "shared cores":
		better = fmt.Sprintf("up to %s fewer sharing a core", text.Count(int(w.Gap.Most), "vCPU", "vCPUs"))
	case "overload":
		better = fmt.Sprintf("up to %s less overload", text.Count(int(math.Ceil(w.Gap.Most)), "vCPU", "vCPUs"))
	case "nodes":
		better = fmt.Sprintf("up to %s fewer", text.Count(int(w.Gap.Most), "node", "nodes"))
	}
	return "not proven optimal: the search reached the policy's search_steps; a better placement may exist (" +
		better + ")"
}
