package operatetest

import (
	"context"

	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Masked is a hypervisor that misreports its guests, as a restarting one may.
type Masked struct {
	observe.Hypervisor
	Show func([]inventory.Guest) []inventory.Guest
}

// Guests returns the result of Show for the hypervisor's guests.
func (m Masked) Guests(ctx context.Context) ([]inventory.Guest, error) {
	guests, err := m.Hypervisor.Guests(ctx)
	return m.Show(guests), err
}
