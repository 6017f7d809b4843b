package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// errPending means that the record has ended a migration that the hypervisor has not.
var errPending = errors.New("the fleet's record has no such migration any more, but the VM is")

// conclude ends a part whose migration the fleet's record has ended: the host that the
// record names has the VM.
func (h *Host) conclude(ctx context.Context, vm *fleet.VM, open *journal.Entry) error {
	present, err := h.Port.Presence(ctx, vm.Name)
	if err != nil {
		return err
	}
	mine := vm.Host == h.Name && isOf(vm, open.Migration)
	if open.Migration.Leave {
		return h.concludeSource(ctx, vm, open, present, mine)
	}
	switch present {
	case guest.Runs:
		if !mine {
			return fmt.Errorf("%w: %s", ErrTwice, vm.Host)
		}
		_, _, err := h.settle(ctx, open)
		return err
	case guest.Absent, guest.Stored:
		if mine {
			return errors.Join(h.Ledger.Release(vm.Name), h.close(open, errors.New("the VM has ended"), nil))
		}
		return h.giveBack(open, vm.Name, "the migration was given up")
	case guest.Suspended, guest.Departing, guest.Changing:
	}
	return fmt.Errorf("%w %s", errPending, present)
}

// isOf reports whether a part is one of this VM, and not of a former one of its name.
func isOf(vm *fleet.VM, m *plan.Migration) bool {
	return m.Created.IsZero() || m.Created.Equal(vm.Created)
}

// Forgotten ends a part whose VM the desired state of this host does not have any more. That is not so as long as the
// server knows that the VM may have left something here. A paused copy is removed only if the target's hypervisor
// confirms that the VM runs there: the desired state may be that of a restored server.
func (h *Host) Forgotten(ctx context.Context, name string) error {
	open, err := h.open(name)
	if err != nil || open == nil {
		return h.about(name, err)
	}
	present, err := h.Port.Presence(ctx, name)
	if err != nil {
		return h.about(name, err)
	}
	m := open.Migration
	switch {
	case m.Leave && present == guest.Suspended:
		runs, unknown := h.Port.RunsAt(ctx, m.URI, name)
		if err = unknown; runs {
			return h.about(name, h.concludeSource(ctx, &fleet.VM{Name: name, Host: m.Peer}, open, present, false))
		}
		err = errors.Join(fmt.Errorf("%w %s", errPending, present), err)
	case m.Leave && present == guest.Runs:
		err = h.stays(open, "the fleet has no record of the VM on this host any more")
	case m.Leave && (present == guest.Absent || present == guest.Stored):
		err = h.gone(ctx, open)
	case !m.Leave && (present == guest.Absent || present == guest.Stored):
		err = h.giveBack(open, name, "the migration was given up")
	case !m.Leave && present == guest.Runs:
		_, _, err = h.settle(ctx, open) // it has arrived: the server will hear of it
	default:
		err = fmt.Errorf("%w %s", errPending, present)
	}
	return h.about(name, err)
}

func (h *Host) concludeSource(
	ctx context.Context, vm *fleet.VM, open *journal.Entry, present guest.Presence, mine bool,
) error {
	const givenUp = "the migration was given up"
	switch {
	case present == guest.Suspended && mine:
		if err := h.Port.Resume(ctx, vm.Name); err != nil {
			return err
		}
		return h.stays(open, givenUp)
	case present == guest.Runs && mine:
		return h.stays(open, givenUp)
	case present == guest.Runs:
		return fmt.Errorf("%w: %s", ErrTwice, vm.Host)
	case (present == guest.Suspended || present == guest.Stored) && !mine:
		if err := h.Port.DiscardSuspended(ctx, vm.Name); err != nil {
			return err
		}
		return h.gone(ctx, open)
	case present == guest.Absent || present == guest.Stored:
		return h.gone(ctx, open)
	case present == guest.Departing && mine:
		return h.Port.AbortMigration(ctx, vm.Name)
	}
	return fmt.Errorf("%w %s", errPending, present)
}
