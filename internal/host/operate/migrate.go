package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
)

// Route leads to another host, to which the hypervisor's own tools migrate guests without a fleet.
type Route interface {
	// Inventory returns what the target has now.
	Inventory(ctx context.Context) (inventory.Host, error)
	// Migrate lets a running guest migrate, bound as placed, from the operator's definition or, if that is empty,
	// from the hypervisor's own. Without an error the guest runs on the target only. With one it runs here only,
	// unless the error says otherwise. Once begun, it does not end with the context. With itself, the target is this
	// host.
	Migrate(ctx context.Context, name string, placed guest.Placement, definition []byte, itself bool) error
	// Record stores the intent of a guest that has arrived.
	Record(ctx context.Context, name string, i guest.Intent) error
	// Arrived returns a guest as the target sees it.
	Arrived(ctx context.Context, name string) (inventory.Guest, error)
}

// MigrateRequest says which guest goes to which host.
type MigrateRequest struct {
	Name       string
	To         string // the target, as the operator names it
	Route      Route
	Definition []byte
	DryRun     bool
	Why        string // the reason, for the journal
}

// Migrated is the result of Migrate.
type Migrated struct {
	To        string             `json:"to"` // the target, as the operator names it
	Target    guest.HostIdentity `json:"target"`
	Placement guest.Placement    `json:"placement"`
	Why       place.Why          `json:"why"`
	Notes     []string           `json:"notes,omitempty"`
	Before    *Truth             `json:"before,omitempty"`
	Truth     *Truth             `json:"truth,omitempty"` // on the target; nil: it was not verified

	itself bool // the target is this host
}

// Migrate lets a running guest migrate to another host, without a fleet. It chooses the nodes from the target's
// inventory, and verifies the guest there. Nothing is reserved on the target before the hypervisor reserves the memory.
func (h *Host) Migrate(ctx context.Context, r MigrateRequest) (Migrated, error) {
	m := Migrated{To: r.To}
	target, err := r.Route.Inventory(ctx)
	if err != nil {
		return m, fmt.Errorf("migrating VM %s: what host %s has: %w", r.Name, r.To, err)
	}
	if err := RoomIsKnown(&target); err != nil {
		return m, fmt.Errorf("migrating VM %s: host %s: %w", r.Name, r.To, err)
	}
	m.Target = target.Identity()
	var want guest.Intent
	var x *effect
	err = h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		claims, err := tx.Claims()
		if err != nil {
			return err
		}
		if !r.DryRun && slices.ContainsFunc(claims, func(c inventory.Claim) bool { return c.Name == r.Name }) {
			return fmt.Errorf("VM %s: %w; wait until that has ended", r.Name, ErrBusy)
		}
		inv, g, err := h.find(ctx, r.Name)
		if err != nil {
			return err
		}
		if want, err = h.decideMigration(&m, &inv, &target, &g); err != nil || r.DryRun {
			return err
		}
		x, err = h.beginMigration(tx, r, &g, &want.Placement)
		return err
	})
	if err != nil || r.DryRun {
		return m, err
	}
	err = h.carryOutMigration(ctx, r, &m, &target, want, x)
	return m, errors.Join(err, x.end(err, m.Shortfalls()), h.Ledger.Release(r.Name))
}

// decideMigration chooses the nodes on the target. A migration to this host itself is a re-creation, which the policy
// must allow.
func (h *Host) decideMigration(
	m *Migrated, source, target *inventory.Host, g *inventory.Guest,
) (want guest.Intent, err error) {
	there, ok := target.Guest(g.Name)
	m.itself = source.ID != "" && source.ID == target.ID || ok && there.UUID == g.UUID
	if m.itself && h.Policy.WithDefaults().Movers.Recreate != policy.AnswerOperator {
		return want, fmt.Errorf("VM %s: host %s is this host: %w", g.Name, m.To, ErrRecreate)
	}
	before := TruthOf(*g, &source.Topology)
	m.Before = &before
	want, m.Why, m.Notes, err = migrate.Alone{Guest: g, Source: source, Target: target, Policy: h.Policy}.Decide()
	m.Placement = want.Placement
	return want, err
}

// beginMigration reserves the guest, so that no other process binds or moves it, and records the beginning.
func (h *Host) beginMigration(
	tx claim.Locked, r MigrateRequest, g *inventory.Guest, to *guest.Placement,
) (*effect, error) {
	here := guest.Placement{Guest: g.Name}
	if g.Placement != nil {
		here = *g.Placement
	}
	if err := tx.Put(h.claimFor(g.Name, here)); err != nil {
		return nil, err
	}
	x, err := h.begin(journal.Entry{Effect: journal.EffectMigrateOut, Guests: []string{g.Name}, Why: r.Why,
		What: fmt.Sprintf("migrate %s to nodes %s of %s", g.Name, to.Nodes, r.To)})
	if err != nil {
		return nil, errors.Join(err, h.Ledger.Release(g.Name))
	}
	return x, nil
}

// arrivalTime is the deadline of what follows a migration on the target: a dozen commands, each of which may need a
// connection of its own.
const arrivalTime = 5 * time.Minute

// carryOutMigration migrates the guest and verifies it on the target.
func (h *Host) carryOutMigration(
	ctx context.Context, r MigrateRequest, m *Migrated, target *inventory.Host, want guest.Intent, x *effect,
) error {
	if err := r.Route.Migrate(ctx, r.Name, want.Placement, r.Definition, m.itself); err != nil {
		return err
	}
	x.inPart = true
	return cleanUpWithin(ctx, arrivalTime, func(ctx context.Context) error {
		recorded := r.Route.Record(ctx, r.Name, want)
		g, err := r.Route.Arrived(ctx, r.Name)
		if err != nil {
			return errors.Join(recorded, fmt.Errorf("VM %s migrated to %s, but could not be verified: %w", r.Name, r.To,
				err))
		}
		g.Managed, g.Spec, g.Placement, g.PlacedFor = true, &want.Spec, &want.Placement, nil
		t := TruthOf(g, &target.Topology)
		m.Truth = &t
		return recorded
	})
}

// Shortfalls lists in words how the guest on the target differs from what was decided.
func (m *Migrated) Shortfalls() []string {
	if m.Truth == nil {
		return nil
	}
	all := make([]string, 0, len(m.Truth.Differences))
	for _, d := range m.Truth.Differences {
		all = append(all, d.String())
	}
	return all
}
