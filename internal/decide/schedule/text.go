package schedule

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/text"
)

// Text explains a decision for people, in lines.
func (d *Decision) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: host %s, nodes %s; cost %.3g, of %s with room\n", d.Spec.Name, d.Host, d.Placement.Nodes,
		d.Why.Cost, text.Count(d.Why.Fitted, "host", "hosts"))
	for _, n := range d.Why.Next {
		switch {
		case n.Refused != "":
			fmt.Fprintf(&b, "  refused by %s: %s\n", n.Host, n.Refused)
		case n.Cost != nil && n.Behind == Cost:
			fmt.Fprintf(&b, "  next: %s, cost %.3g\n", n.Host, *n.Cost)
		case n.Cost != nil:
			fmt.Fprintf(&b, "  next: %s, cost %.3g, behind because of more %s\n", n.Host, *n.Cost, n.Behind)
		default:
			fmt.Fprintf(&b, "  next: %s, with cells that differ\n", n.Host)
		}
	}
	for _, x := range d.Why.Excluded {
		fmt.Fprintf(&b, "  %s: %s\n", text.Count(x.Hosts, "host", "hosts"), x.Reason)
	}
	fmt.Fprintf(&b, "  nodes: %s\n", d.Why.Place.Summary)
	return b.String()
}
