// Package operate joins observe, decide and apply for one action on one host:
// create, bind, move, delete. Each action ends with the truth read back.
package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
)

// ErrNoGuest means that no guest of the name is on the host.
var ErrNoGuest = errors.New("no such guest on this host")

// ErrUnseen means that a guest was not found and may be there: its hypervisor
// could not be asked.
var ErrUnseen = errors.New("it is not known whether it is on this host")

// ErrExists means that the name is taken.
var ErrExists = errors.New("a guest of this name is there already")

// ErrNotOurs means that Numavisor did not create the guest, so it is deleted only with force.
var ErrNotOurs = errors.New("was not created by Numavisor")

// ErrBusy means that the guest is being created, bound or moved by somebody else.
var ErrBusy = errors.New("the guest is being created, bound or moved already")

// Domains is what creating and deleting needs of the hypervisor.
type Domains interface {
	// Start defines a guest (unless it shall be transient) and starts it.
	Start(ctx context.Context, xml []byte, transient bool) error
	// Remove ends a guest and forgets its configuration.
	Remove(ctx context.Context, name string) error
}

// Host is one host with all that acts on it.
type Host struct {
	Sources  observe.Sources
	Kernel   apply.Kernel
	Control  apply.Hypervisor
	Domains  Domains
	Settings Settings
	// Journal records every effect before it begins; without one, none begins.
	Journal Journal
	// By is who acts through this Host, as the journal names it.
	By       string
	Ledger   claim.Ledger
	Self     claim.Process // the running process, holder of claims
	Policy   policy.Policy
	Clock    func() time.Time
	Progress apply.Progress
}

// Observe reads the host; mappings only of the guests named in closely.
func (h *Host) Observe(ctx context.Context, closely ...string) (inventory.Host, error) {
	return observe.Host(ctx, h.Sources, closely...)
}

// find observes the host and picks one guest, closely.
func (h *Host) find(ctx context.Context, name string) (inventory.Host, inventory.Guest, error) {
	inv, err := h.Observe(ctx, name)
	if err != nil {
		return inv, inventory.Guest{}, err
	}
	for _, g := range inv.Guests {
		if g.Name == name {
			return inv, g, nil
		}
	}
	return inv, inventory.Guest{}, Missing(inv, name)
}

// Missing says why a guest was not found: where a hypervisor could not be
// asked, it may be there all the same.
func Missing(inv inventory.Host, name string) error {
	if hidden := inv.HiddenBy(); len(hidden) > 0 {
		return fmt.Errorf("guest %s: %w: could not see %s", name, ErrUnseen, gapsText(hidden))
	}
	for _, g := range inv.Gaps {
		if g.Object == inventory.GuestRef(name) {
			return fmt.Errorf("guest %s: %w: %s", name, ErrNoGuest, g.Why)
		}
	}
	names := make([]string, len(inv.Guests))
	for i := range inv.Guests {
		names[i] = inv.Guests[i].Name
	}
	if near := text.Nearest(name, names); near != "" {
		return fmt.Errorf("VM %s: %w; did you mean %s? ('numavisor list' shows all)", name, ErrNoGuest, near)
	}
	return fmt.Errorf("VM %s: %w; 'numavisor list' shows all", name, ErrNoGuest)
}

// gapsText says of gaps what was not seen, and why.
func gapsText(gaps []inventory.Gap) string {
	var all []string
	for _, g := range gaps {
		all = append(all, g.What+": "+g.Why)
	}
	return strings.Join(all, "; ")
}

// CleanUp runs what must be done also where the caller's context has ended,
// with a deadline of its own.
func CleanUp(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanUpTime)
	defer cancel()
	return do(ctx)
}

// CleanUpTime is the deadline of CleanUp.
const CleanUpTime = 30 * time.Second

// claimFor is this process's claim on the room of a guest.
func (h *Host) claimFor(name string, p guest.Placement) claim.Claim {
	return claim.Claim{Name: name, Holder: h.Self, By: h.By, Since: h.Clock().UTC(), Placement: p}
}

// legal has every fresh placement checked by reckoning that is independent of
// the one that found it, before anything is touched.
func (h *Host) legal(inv *inventory.Host, spec guest.Spec, p guest.Placement) error {
	return check.Error(spec.Name, check.Placement(inv, h.Policy, spec, p))
}
