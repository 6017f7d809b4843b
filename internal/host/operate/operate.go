// Package operate joins observe, decide and apply for one action on one host:
// create, bind, delete, fixes of settings. Each action ends by verifying the
// result.
package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/check"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrNoGuest means that no guest of the name exists on the host.
var ErrNoGuest = errors.New("no such VM on this host")

// ErrUnseen means that a guest was not found but may exist: its hypervisor
// could not be queried.
var ErrUnseen = errors.New("cannot tell whether it exists")

// ErrExists means that the name is taken.
var ErrExists = errors.New("a VM of this name already exists")

// ErrNotOurs means that Numavisor did not create the guest, so deleting it
// requires force.
var ErrNotOurs = errors.New("was not created by Numavisor")

// ErrPlacement means that a placement that was decided elsewhere is not legal on this host now.
var ErrPlacement = errors.New("the host cannot give the placement")

// ErrBusy means that another process is creating, binding or moving the guest.
var ErrBusy = errors.New("the VM is being created, bound or moved already")

// Domains are the functions of a hypervisor for guests as a whole.
type Domains interface {
	// Start defines a guest (unless it is transient) and starts it.
	Start(ctx context.Context, d guest.Definition, transient bool) error
	// Remove ends a guest and removes its configuration.
	Remove(ctx context.Context, name string) error
	// Undefine removes the configuration of a guest that does not run. The variables of its
	// firmware stay, for the next guest of that name.
	Undefine(ctx context.Context, name string) error
	// Resize gives the stored configuration of a guest that does not run another number of vCPUs and amount of memory,
	// bound to the intent's placement. A guest without a stored configuration is guest.ErrTransient.
	Resize(ctx context.Context, name string, intent guest.Intent) error
	// Launch starts a guest that has a stored configuration and does not run.
	Launch(ctx context.Context, name string) error
	// ShutDown asks a guest to power off, and does not wait for it.
	ShutDown(ctx context.Context, name string) error
	// PowerOff ends a guest's run at once; its stored configuration stays. A guest that does
	// not run is no error.
	PowerOff(ctx context.Context, name string) error
}

// Host is one host with all drivers that act on it.
type Host struct {
	Sources  observe.Sources
	Kernel   apply.Kernel
	Control  apply.Hypervisor
	Domains  Domains
	Settings Settings
	CPUPools CPUPools // nil: the hypervisor has none
	// Journal records every effect before it begins; without a journal, no
	// effect begins.
	Journal Journal
	// By is the user of this Host, as the journal names it.
	By     string
	Ledger claim.Ledger
	Self   claim.Process // the running process, holder of claims
	Policy policy.Policy
	// Loads returns the loads that placing, binding and balancing count; nil: each
	// vCPU counts as busy.
	Loads Loads
	// AwaitStart waits until the CPUs with which a mirrored VM starts serve no other VM; nil: they
	// never do.
	AwaitStart func(ctx context.Context, name string, first topology.CPUSet) error
	Clock      func() time.Time
	Progress   apply.Progress
}

// Observe reads the host; it reads mappings only of the guests named in
// closely.
func (h *Host) Observe(ctx context.Context, closely ...string) (inventory.Host, error) {
	return observe.Host(ctx, h.Sources, closely...)
}

// ObserveAgain is Observe where an earlier observation is known, and nothing of it has changed since but what the
// guests named in closely show of themselves; see observe.Again.
func (h *Host) ObserveAgain(
	ctx context.Context, before inventory.Host, closely ...string,
) (inv inventory.Host, ok bool, err error) {
	return observe.Again(ctx, h.Sources, before, closely...)
}

// find observes the host and picks one guest, closely.
func (h *Host) find(ctx context.Context, name string) (inventory.Host, inventory.Guest, error) {
	inv, err := h.observeFor(ctx, name, name)
	if err != nil {
		return inv, inventory.Guest{}, err
	}
	if g, ok := inv.Guest(name); ok {
		return inv, *g, nil
	}
	return inv, inventory.Guest{}, Missing(inv, name)
}

// Limits of the wait for a guest that reboots.
const (
	rebootTime = time.Minute
	rebootPoll = 200 * time.Millisecond
)

// observeFor is Observe for the sake of one guest: if that guest is rebooting, observeFor observes the host again, for
// up to rebootTime, until the guest is there or has ended. xl has no domain of a guest that reboots for two seconds,
// and as long as it takes to build one.
func (h *Host) observeFor(ctx context.Context, name string, closely ...string) (inventory.Host, error) {
	began := time.Now()
	for {
		inv, err := h.Observe(ctx, closely...)
		if err != nil {
			return inv, err
		}
		if _, found := inv.Guest(name); found || !inv.ComesOrGoes(name) || time.Since(began) >= rebootTime {
			return inv, nil
		}
		select {
		case <-time.After(rebootPoll):
		case <-ctx.Done():
			return inv, nil
		}
	}
}

// Missing says why a guest was not found: if a hypervisor could not be queried,
// the guest may exist all the same.
func Missing(inv inventory.Host, name string) error {
	if hidden := inv.HiddenBy(); len(hidden) > 0 {
		return &HiddenError{Kind: ErrUnseen, Gaps: hidden,
			What: fmt.Sprintf("VM %s: %v: could not see %s", name, ErrUnseen, whatOf(hidden))}
	}
	for _, g := range inv.Gaps {
		if g.Object == inventory.GuestRef(name) {
			return fmt.Errorf("VM %s: %w: %s", name, ErrNoGuest, g.Why)
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

// CleanUp runs a function that must run even if the caller's context has ended,
// with a deadline of its own.
func CleanUp(ctx context.Context, do func(context.Context) error) error {
	return cleanUpWithin(ctx, CleanUpTime, do)
}

// cleanUpWithin is CleanUp with another deadline.
func cleanUpWithin(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return do(ctx)
}

const (
	// CleanUpTime is the deadline of CleanUp.
	CleanUpTime = 30 * time.Second
	// ObserveTime is the deadline of an observation of the host. On Xen it makes several calls of xl, which took more
	// than 30 seconds together on an emulated host with two busy VMs.
	ObserveTime = 2 * time.Minute
)

// claimFor is this process's claim on the room of a guest.
func (h *Host) claimFor(name string, p guest.Placement) claim.Claim {
	return claim.Claim{Name: name, Holder: h.Self, By: h.By, Since: h.Clock().UTC(), Placement: p}
}

// legal checks every new placement by code independent of the solver, before
// anything is changed.
func (h *Host) legal(inv *inventory.Host, spec guest.Spec, p guest.Placement) error {
	return check.Error(spec.Name, check.Placement(inv, h.Policy, spec, p))
}
