package operate

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// given checks a placement that was decided elsewhere.
func (h *Host) given(inv *inventory.Host, s guest.Spec, p guest.Placement) error {
	if p.Guest != s.Name {
		return fmt.Errorf("%w: it is for VM %q, not %q", ErrPlacement, p.Guest, s.Name)
	}
	if err := h.legal(inv, s, p); err != nil {
		return fmt.Errorf("%w: %w", ErrPlacement, err)
	}
	return nil
}
