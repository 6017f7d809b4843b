package observe

import (
	"context"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Again returns an earlier observation with the present claims, and with what the kernel shows of some guests now,
// closely. Mappings that the earlier observation has are not read again: the kernel walks all memory of a guest for
// them. Configuration and all else is as it was. ok is false if that cannot replace an observation:
// one of the guests has ended, has no process, or something of it was unknown.
func Again(
	ctx context.Context, s Sources, before inventory.Host, closely ...string,
) (h inventory.Host, ok bool, err error) {
	h = before
	h.Guests = slices.Clone(h.Guests)
	h.Gaps = slices.DeleteFunc(slices.Clone(h.Gaps), func(g inventory.Gap) bool {
		return g.Kind == inventory.ClaimsUnread
	})
	h.Claims = s.claims(&h)
	for _, name := range closely {
		g, found := h.Guest(name)
		unknown := func(gap inventory.Gap) bool { return gap.Object == inventory.GuestRef(name) }
		if !found || g.PID <= 0 || slices.ContainsFunc(h.Gaps, unknown) {
			return h, false, nil
		}
		mappings := g.Seen.Ranges
		seen, gaps, gone := s.see(ctx, *g, len(mappings) == 0)
		if gone {
			return h, false, nil
		}
		if len(mappings) > 0 {
			seen.Ranges = mappings
		}
		seen.HandedOver, seen.Scaled = g.Seen.HandedOver, g.Seen.Scaled
		g.Seen, h.Gaps = seen, append(h.Gaps, gaps...)
	}
	if err := ctx.Err(); err != nil {
		return h, false, fmt.Errorf("observing the host: %w", err)
	}
	return h, true, nil
}
