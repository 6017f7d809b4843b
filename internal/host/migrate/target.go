package migrate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// target takes the next step of the host that the VM comes to.
func (s *step) target(ctx context.Context) error {
	switch s.present {
	case guest.Runs:
		return s.arrive(ctx)
	case guest.Suspended:
		s.become(fleet.MigrationPrepared)
		s.part.Status.Message = "its memory is arriving"
		return s.arrival(ctx)
	case guest.Departing, guest.Changing:
		return fmt.Errorf("it is %s", s.present)
	case guest.Stored:
		if came, err := s.came(); came || err != nil {
			return err
		}
	case guest.Absent:
		if s.m.Cancel != "" {
			err := s.host.giveBack(s.open, s.vm.Name, s.m.Cancel)
			if err == nil {
				s.become(fleet.MigrationGivenBack)
			}
			return err
		}
	}
	return s.prepare(ctx)
}

// came settles a VM that has come and was shut down since, and reports whether that is so. The fleet may not have heard
// of its arrival: then the VM is still here.
func (s *step) came() (is bool, err error) {
	if s.open == nil {
		ended, err := s.host.ended(s.vm.Name, false, s.m.Began)
		if err != nil || ended == nil || !ended.Takes() {
			return false, err
		}
	}
	s.become(fleet.MigrationArrived)
	s.part.Status.Message = "it was shut down since"
	if s.open == nil {
		return true, nil
	}
	return true, errors.Join(s.host.close(s.open, nil, []string{s.part.Status.Message}),
		s.host.Ledger.Release(s.vm.Name))
}

// prepare claims the room, unless that is done.
func (s *step) prepare(ctx context.Context) error {
	identity, err := s.host.identity(ctx)
	if err != nil {
		return err
	}
	if s.vm.Spec.IsHandoff() || s.m.Placement.Handoff != nil {
		return s.refuse(guest.ErrMirrored)
	}
	s.part.Status.Arrival = s.host.arrivalAt(identity)
	s.become(fleet.MigrationPrepared)
	if s.open != nil && s.host.holds(s.vm.Name) {
		return nil
	}
	if s.host.MakeFiles != nil && s.m.Options.CopyStorage && !s.vm.Adopted {
		if err := s.host.MakeFiles(ctx, s.vm); err != nil {
			return s.refuse(err)
		}
	}
	record := s.record(false, identity)
	err = s.host.Reserve(ctx, record.Intent, func() error {
		if s.open != nil {
			return nil // the process that began it was killed
		}
		s.open, err = s.host.begin(journal.EffectMigrateIn, record, fmt.Sprintf("%s comes from %s to nodes %s",
			s.vm.Name, s.vm.Host, s.m.Placement.Nodes), s.m.Why)
		return err
	})
	if err != nil {
		return s.refuse(err)
	}
	return nil
}

// refuse reports that the host does not take the VM, and closes the part if it is open.
func (s *step) refuse(why error) error {
	s.become(fleet.MigrationRefused)
	s.part.Status.Arrival = nil
	if s.open == nil {
		return why
	}
	return errors.Join(why, s.host.close(s.open, why, nil))
}

// arrival reports how this host is reached.
func (s *step) arrival(ctx context.Context) error {
	identity, err := s.host.identity(ctx)
	if err == nil {
		s.part.Status.Arrival = s.host.arrivalAt(identity)
	}
	return err
}

func (h *Host) arrivalAt(identity guest.HostIdentity) *fleet.Arrival {
	return &fleet.Arrival{Host: identity, URI: h.URI, Data: h.Data}
}

// identity is this host's, by which the intents of its VMs name it.
func (h *Host) identity(context.Context) (id guest.HostIdentity, err error) {
	if id.Name, err = h.Sources.HostName(); err != nil {
		return id, fmt.Errorf("reading this host's name: %w", err)
	}
	if h.Sources.HostID != nil {
		if id.ID, err = h.Sources.HostID(); err != nil {
			return id, fmt.Errorf("reading this host's identity: %w", err)
		}
	}
	return id, nil
}

// holds reports whether this process has a claim for the VM.
func (h *Host) holds(name string) bool {
	claims, err := h.Ledger.Claims()
	return err == nil && slices.ContainsFunc(claims, func(c inventory.Claim) bool {
		return c.Name == name && c.Holder == h.Self.PID
	})
}

// arrive settles a VM that runs here, once.
func (s *step) arrive(ctx context.Context) error {
	s.become(fleet.MigrationArrived)
	if s.open == nil {
		var err error
		s.part.Transfer, err = s.host.Port.Arrived(ctx, s.vm.Name)
		if err != nil {
			s.part.Transfer = guest.Transfer{} // libvirt has forgotten it: no reason to report a failure
		}
		return nil
	}
	truth, transfer, err := s.host.settle(ctx, s.open)
	s.part.Truth, s.part.Transfer = truth, transfer
	if err != nil {
		// A VM that ended while it was verified may be one that never ran: the source may have it still.
		if now, unknown := s.host.Port.Presence(ctx, s.vm.Name); unknown != nil || now != guest.Runs {
			s.become("")
			return errors.Join(err, unknown)
		}
	}
	return err
}

// settle records the intent of a VM that has arrived, verifies the VM, binds what is not in place, and closes the part.
// Whatever it finds, the VM runs here. The part stays open if the intent is not recorded, as this host would take the
// VM for one that the fleet did not create, or if ctx has ended: the next step continues.
func (h *Host) settle(ctx context.Context, open *journal.Entry) (*operate.Truth, guest.Transfer, error) {
	m := open.Migration
	transfer, unknown := h.Port.Arrived(ctx, m.Guest)
	if unknown != nil {
		transfer = guest.Transfer{}
	}
	if err := h.recordIntent(ctx, m.Intent); err != nil {
		return nil, transfer, err
	}
	// The VM's own intent now holds the room.
	err := h.Ledger.Release(m.Guest)
	var truth operate.Truth
	if err == nil {
		truth, err = h.Verify(ctx, m.Guest)
	}
	if err == nil && len(truth.Differences) > 0 {
		var bound operate.Bound
		bound, err = h.Bind(ctx, operate.BindRequest{Name: m.Guest, Why: "it arrived by migration"})
		if bound.Truth != nil {
			truth = *bound.Truth
		}
	}
	if ended := ctx.Err(); ended != nil {
		return &truth, transfer, errors.Join(err, ended)
	}
	var short []string
	for _, d := range truth.Differences {
		short = append(short, d.String())
	}
	open.Moved = transfer.Copied
	open.Shortfalls = nil
	err = errors.Join(err, h.closeInPart(open, err, short))
	return &truth, transfer, err
}

// recordIntent records the intent with the VM if it arrived without it.
func (h *Host) recordIntent(ctx context.Context, want guest.Intent) error {
	inv, err := h.Observe(ctx)
	if err != nil {
		return err
	}
	name := want.Placement.Guest
	want.Placement = h.PlacementNow(&inv, want)
	g, ok := inv.Guest(name)
	switch {
	case !ok:
		return operate.Missing(inv, name)
	case g.PlacedFor == nil && g.Placement != nil && reflect.DeepEqual(*g.Placement, want.Placement):
		return nil
	}
	want.Host = inv.Identity()
	return h.Control.Record(ctx, name, want)
}

// giveBack ends the claim of a VM that will not come.
func (h *Host) giveBack(open *journal.Entry, name, why string) error {
	if open == nil {
		return nil // nothing was claimed, or it was given back before
	}
	short, err := shortOf(h.Unreserve(name))
	if err != nil {
		return err
	}
	return h.close(open, errors.New(why), short)
}
