package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/journal"
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
	mine := vm.Host == h.Name
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
	case guest.Suspended, guest.Departing:
	}
	return fmt.Errorf("%w %s", errPending, present)
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
