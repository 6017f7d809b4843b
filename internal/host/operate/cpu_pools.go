package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/decide/pools"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// CPUPools changes the CPU pools of a hypervisor that has some.
type CPUPools interface {
	// ChangePool makes one step at once.
	ChangePool(ctx context.Context, s plan.PoolStep) error
}

// ErrPoolsChanged means that the CPU pools are not as the effect that is to be undone left them.
var ErrPoolsChanged = errors.New("the CPU pools were changed since")

// PoolRequest says how the CPU pools of the host change.
type PoolRequest struct {
	// Change returns the layout that is asked for.
	Change func(now plan.CPUPools, inv *inventory.Host) (plan.CPUPools, error)
	What   string // in the words of the user, for the journal
	DryRun bool
	Undoes string // ID of the effect that it reverts
}

// PoolsChanged is the result of ChangePools.
type PoolsChanged struct {
	Steps []plan.PoolStep    `json:"steps"`
	Done  int                `json:"done"` // number of steps that were carried out
	Pools plan.CPUPoolChange `json:"pools"`
	// Rebind are guests whose CPUs change: Xen may widen their hard affinity, and their placement may name CPUs that
	// they have no longer.
	Rebind []string `json:"rebind,omitempty"`
}

// ChangePools changes the CPU pools in steps, each of which leaves pools that work. No other decision is made
// meanwhile. The journal has both layouts before the first step.
func (h *Host) ChangePools(ctx context.Context, r PoolRequest) (PoolsChanged, error) {
	var c PoolsChanged
	err := h.Ledger.Locked(ctx, func(tx claim.Locked) error {
		claims, err := tx.Claims()
		if err != nil {
			return err
		}
		for i := range claims {
			if claims[i].PID == 0 && !r.DryRun {
				return fmt.Errorf("VM %s: %w by %s; wait until that has ended", claims[i].Name, ErrBusy,
					claims[i].HeldBy())
			}
		}
		inv, err := h.Observe(ctx)
		if err != nil {
			return err
		}
		if err := roomIsKnown(inv.HiddenBy()); err != nil {
			return err
		}
		if c, err = planPools(&inv, r); err != nil || r.DryRun || len(c.Steps) == 0 {
			return err
		}
		return h.carryOutPools(ctx, &c, r)
	})
	return c, err
}

func planPools(inv *inventory.Host, r PoolRequest) (c PoolsChanged, err error) {
	c.Pools.From = pools.Of(inv)
	if c.Pools.To, err = r.Change(c.Pools.From.Clone(), inv); err != nil {
		return c, err
	}
	err = errors.Join(pools.Check(&c.Pools.To, &inv.Topology), pools.CheckNames(&c.Pools.From, &c.Pools.To))
	if err != nil {
		return c, err
	}
	if c.Steps, err = pools.Steps(c.Pools.From, c.Pools.To); err != nil {
		return c, err
	}
	for i := range inv.Guests {
		g := &inv.Guests[i]
		from, to := c.Pools.From.Find(c.Pools.From.Guests[g.Name]), c.Pools.To.Find(c.Pools.To.Guests[g.Name])
		if from >= 0 && to >= 0 && !c.Pools.From.Pools[from].CPUs.Equal(c.Pools.To.Pools[to].CPUs) {
			c.Rebind = append(c.Rebind, g.Name)
		}
	}
	return c, nil
}

func (h *Host) carryOutPools(ctx context.Context, c *PoolsChanged, r PoolRequest) error {
	x, err := h.begin(journal.Entry{Effect: journal.EffectPools, What: r.What, Undoes: r.Undoes, Pools: &c.Pools})
	if err != nil {
		return err
	}
	for _, s := range c.Steps {
		if err = h.CPUPools.ChangePool(ctx, s); err != nil {
			break
		}
		c.Done++
		x.inPart = true
	}
	var left []string
	for _, s := range c.Steps[c.Done:] {
		left = append(left, s.String()+": not done")
	}
	if err == nil {
		err = CleanUp(ctx, func(ctx context.Context) error { return h.verifyPools(ctx, &c.Pools.To) })
	}
	return errors.Join(err, x.end(err, left))
}

// verifyPools reads the pools again.
func (h *Host) verifyPools(ctx context.Context, want *plan.CPUPools) error {
	inv, err := h.Observe(ctx)
	if err != nil {
		return err
	}
	if now := pools.Of(&inv); !now.Equal(want) {
		return fmt.Errorf("verifying the CPU pools: they are %s", describePools(&now))
	}
	return nil
}

func describePools(l *plan.CPUPools) string {
	all := make([]string, len(l.Pools))
	for i, p := range l.Pools {
		all[i] = fmt.Sprintf("%s: CPUs %s", p.Name, p.CPUs)
	}
	return strings.Join(all, "; ")
}

// UndoPools restores the layout from before an effect. It refuses pools that were changed since, unless the effect
// was interrupted or force is given.
func (h *Host) UndoPools(ctx context.Context, began journal.Entry, interrupted, force bool) (PoolsChanged, error) {
	return h.ChangePools(ctx, PoolRequest{Undoes: began.ID, What: "back: " + began.What,
		Change: func(now plan.CPUPools, _ *inventory.Host) (plan.CPUPools, error) {
			if !now.Equal(&began.Pools.To) && !interrupted && !force {
				return now, fmt.Errorf("%w: they are %s; --force restores the former ones anyway", ErrPoolsChanged,
					describePools(&now))
			}
			to := began.Pools.From.Clone()
			renamed := now.Pools[0].Name
			for name, pool := range now.Guests {
				switch {
				case to.Guests[name] != "" && pool != began.Pools.To.Guests[name] && !interrupted && !force:
					to.Guests[name] = pool // another command has moved it since
				case to.Guests[name] == "" && pool == renamed:
					to.Guests[name] = to.Pools[0].Name
				case to.Guests[name] == "":
					to.Guests[name] = pool // it came since
				}
			}
			for name := range to.Guests {
				if now.Guests[name] == "" {
					delete(to.Guests, name)
				}
			}
			return to, nil
		}})
}
