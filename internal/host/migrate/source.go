package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// source takes the next step of the host that the VM leaves.
func (s *step) source(ctx context.Context) error {
	switch s.present {
	case guest.Departing:
		s.become(fleet.MigrationCopying)
		if s.m.Cancel != "" {
			return s.host.Port.AbortMigration(ctx, s.vm.Name)
		}
		return nil // a process that was killed began it
	case guest.Suspended:
		s.become(fleet.MigrationUndecided)
		return nil
	case guest.Absent, guest.Stored:
		s.become(fleet.MigrationGone)
		return s.host.gone(ctx, s.open)
	case guest.Changing:
		return fmt.Errorf("it is %s", s.present)
	case guest.Runs:
	}
	ended, err := s.host.ended(s.vm.Name, true, s.m.Began)
	switch {
	case err != nil:
		return err
	case s.open != nil:
		s.stay("the process that migrated it ended")
		return s.host.stays(s.open, s.part.Status.Message)
	case ended != nil:
		s.stay(ended.Why)
		return nil
	case s.m.Cancel != "":
		s.stay(s.m.Cancel)
		return nil
	case s.m.Ready == nil:
		return nil
	}
	return s.leave(ctx)
}

func (s *step) stay(why string) {
	s.become(fleet.MigrationStays)
	s.part.Status.Message = why
}

// leave has the VM copied, and then asks what is true here.
func (s *step) leave(ctx context.Context) error {
	h, record := s.host, s.record(true, s.m.Ready.Host)
	definition, err := s.define(ctx, record.Intent)
	if err != nil {
		s.stay(err.Error())
		return err
	}
	inv, before, err := h.Hold(ctx, s.vm.Name, func(g *inventory.Guest) (err error) {
		if g.Placement != nil && g.Placement.Handoff != nil {
			return guest.ErrMirrored
		}
		record.Intent.Adopted = !g.Created()
		what := fmt.Sprintf("%s leaves for %s", s.vm.Name, s.m.To)
		s.open, err = h.begin(journal.EffectMigrateOut, record, what, s.m.Why)
		return err
	})
	if errors.Is(err, operate.ErrBusy) {
		return err // it begins once the other command has ended: nothing is to be reported
	}
	if err != nil {
		s.stay(err.Error())
		return err
	}
	s.tell(guest.Transfer{})
	transfer, failed := h.Port.Migrate(ctx, guest.Departure{Name: s.vm.Name, Intent: record.Intent,
		Definition: definition, URI: s.m.Ready.URI, Data: s.m.Ready.Data, AutoConverge: h.AutoConverge,
		PostCopy:    s.m.Options.PostCopy,
		CopyStorage: s.m.Options.CopyStorage, MaxDowntime: s.m.Options.Downtime(), Progress: s.tell})
	s.part.Transfer = transfer
	return errors.Join(failed, operate.CleanUp(ctx, func(ctx context.Context) error {
		present, err := h.Port.Presence(ctx, s.vm.Name)
		if err != nil {
			return err // the part stays open: the next step asks again
		}
		switch present {
		case guest.Absent, guest.Stored:
			s.become(fleet.MigrationGone)
			s.open.Moved = transfer.Copied
			return h.left(s.open, before.Seen.MemoryByNode, inv.Topology.NodeSet())
		case guest.Runs:
			if failed == nil {
				failed = errors.New("the hypervisor reported success, but the VM still runs here")
			}
			s.stay(failed.Error())
			return h.stays(s.open, s.part.Status.Message)
		case guest.Suspended:
			s.become(fleet.MigrationUndecided)
		case guest.Departing:
			s.become(fleet.MigrationCopying)
		case guest.Changing: // the part stays open: the next step asks again
		}
		return nil
	}))
}

// define returns the definition of the VM for its target; none if the hypervisor has it.
func (s *step) define(ctx context.Context, i guest.Intent) ([]byte, error) {
	if s.host.Define == nil || s.vm.Adopted {
		return nil, nil
	}
	return s.host.Define(ctx, s.vm, i)
}

// tell reports the progress of the copy.
func (s *step) tell(t guest.Transfer) {
	if s.progress != nil {
		s.progress(fleet.MigrationStatus{Began: s.m.Began, Phase: fleet.MigrationCopying, Remaining: t.Remaining})
	}
}

// stays closes the part of a VM that continues to run on the source.
func (h *Host) stays(open *journal.Entry, why string) error {
	return errors.Join(h.Ledger.Release(open.Migration.Guest), h.close(open, errors.New(why), nil))
}

// gone closes the part of a VM that is no longer here, if it is open.
func (h *Host) gone(ctx context.Context, open *journal.Entry) error {
	if open == nil {
		return nil
	}
	inv, err := h.Observe(ctx)
	if err != nil {
		return err
	}
	// Where the VM's memory was is not known any more: its added pages are looked for on all nodes.
	return h.left(open, nil, inv.Topology.NodeSet())
}

// left gives back the pages that were added for a VM that has left, and closes its part. If
// that fails, the part stays open, and the next step tries again.
func (h *Host) left(open *journal.Entry, before topology.MemoryByNode, nodes topology.NodeSet) error {
	short, err := shortOf(h.Leave(open.Migration.Guest, before, nodes))
	if err != nil {
		return err
	}
	return h.closeInPart(open, nil, short)
}

// shortOf is a shortfall for pages that other VMs use now, which no retry changes soon.
func shortOf(err error) ([]string, error) {
	if errors.Is(err, operate.ErrPagesInUse) {
		return []string{err.Error()}, nil
	}
	return nil, err
}
