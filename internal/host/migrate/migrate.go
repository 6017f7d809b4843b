package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// ErrTwice means that a VM runs here although the fleet's record names another host. Neither copy
// is touched: an operator must say which of them is to end.
var ErrTwice = errors.New("runs here although the fleet's record says that it runs on another host")

// Port is what migrations need of a hypervisor.
type Port interface {
	// Migrate copies a running guest to another host and starts it there. If ctx ends, it
	// aborts. Its error does not say where the guest is.
	Migrate(ctx context.Context, m guest.Departure) (guest.Transfer, error)
	// AbortMigration ends a copy in progress; the guest continues to run here.
	AbortMigration(ctx context.Context, name string) error
	Presence(ctx context.Context, name string) (guest.Presence, error)
	// Arrived returns the figures of the migration by which a guest came.
	Arrived(ctx context.Context, name string) (guest.Transfer, error)
	// RunsAt reports whether the hypervisor at a URI runs the guest that is known here, with the same
	// identity.
	RunsAt(ctx context.Context, uri, name string) (bool, error)
	// Resume lets a guest that is paused here after its migration run again.
	Resume(ctx context.Context, name string) error
	// DiscardSuspended removes a guest that is paused here after its migration, or is only
	// stored. It refuses a guest that runs.
	DiscardSuspended(ctx context.Context, name string) error
}

// Host is one host of a fleet with its part in migrations.
type Host struct {
	*operate.Host
	Port Port
	Name string // of the host in the fleet
	// URI and Data are by which other hosts' hypervisors reach this one's (fleet.Arrival).
	URI, Data string
	// Define returns the definition of a VM for its target, if the hypervisor stores none; nil: it stores them.
	Define func(ctx context.Context, vm *fleet.VM, i guest.Intent) ([]byte, error)
	// MakeFiles makes the files of a VM on the target of its migration that the hypervisor does not copy with its
	// disks; nil: there are none.
	MakeFiles func(ctx context.Context, vm *fleet.VM) error
	// AutoConverge slows down the vCPUs of VMs that leave, if need be; see guest.Departure.
	AutoConverge bool
}

// Part is this host's part of a migration after a step.
type Part struct {
	Status fleet.MigrationStatus
	// Transfer has what was copied, on the target also the downtime.
	Transfer guest.Transfer
	// Truth is where the VM is on the target, as verified; nil: it was not verified now.
	Truth *operate.Truth
}

// Act takes the next step of this host's part in a VM's migration, and returns what is true
// afterwards; ok is false if the host has no part. On the source it returns when the copy
// has ended; progress receives the statuses meanwhile, and may be nil. If ctx ends, a copy is
// aborted. Act may be called at any time with the last record; it is not called twice
// at once for one VM.
//
// The error says why the VM is not where the record wants it. The status is valid unless
// its phase is empty: then the hypervisor could not be asked, or nothing is to be reported yet.
func (h *Host) Act(
	ctx context.Context, vm *fleet.VM, progress func(fleet.MigrationStatus),
) (part Part, ok bool, err error) {
	open, err := h.open(vm.Name)
	if err != nil {
		return Part{}, false, err
	}
	m := vm.Migration
	if m != nil && m.To != h.Name && vm.Host != h.Name {
		m = nil // between two other hosts
	}
	if open != nil && (m == nil || !open.Migration.Began.Equal(m.Began)) {
		if err := h.conclude(ctx, vm, open); err != nil || m == nil {
			return Part{}, m != nil, h.about(vm.Name, err)
		}
		open = nil
	}
	if m == nil {
		return Part{}, false, nil
	}
	present, err := h.Port.Presence(ctx, vm.Name)
	if err != nil {
		return Part{}, true, h.about(vm.Name, err)
	}
	s := step{host: h, vm: vm, m: m, open: open, present: present, progress: progress}
	if m.To == h.Name {
		err = s.target(ctx)
	} else {
		err = s.source(ctx)
	}
	if s.part.Status.Phase != "" {
		s.part.Status.Began = m.Began
		if err != nil && s.part.Status.Message == "" {
			s.part.Status.Message = err.Error()
		}
	}
	return s.part, true, h.about(vm.Name, err)
}

func (h *Host) about(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("migrating VM %s: %w", name, err)
}

// step is one call of Act.
type step struct {
	host     *Host
	vm       *fleet.VM
	m        *fleet.Migration
	open     *journal.Entry // its beginning in the journal; nil: it has not begun here, or has ended
	present  guest.Presence
	progress func(fleet.MigrationStatus)
	part     Part
}

// become sets the phase that Act reports.
func (s *step) become(p fleet.MigrationPhase) { s.part.Status.Phase = p }

// intent is the VM's intent for the target.
func (s *step) intent(to guest.HostIdentity) guest.Intent {
	p := s.m.Placement
	p.Guest = s.vm.Name
	spec := s.vm.Spec
	spec.Name = s.vm.Name
	return guest.Intent{Host: to, Spec: spec, Placement: p, Adopted: s.vm.Adopted}
}

// record is this host's part, for the journal.
func (s *step) record(leave bool, to guest.HostIdentity) *plan.Migration {
	r := &plan.Migration{Guest: s.vm.Name, Began: s.m.Began, Created: s.vm.Created, Leave: leave, Peer: s.vm.Host,
		Intent: s.intent(to)}
	if leave {
		r.Peer, r.URI = s.m.To, s.m.Ready.URI
	}
	return r
}

// Open names the VMs whose migrations this host has not concluded.
func (h *Host) Open() ([]string, error) {
	entries, err := h.Journal.Entries()
	if err != nil {
		return nil, fmt.Errorf("looking for migrations: %w", err)
	}
	var names []string
	for _, e := range journal.OpenMigrations(entries) {
		names = append(names, e.Migration.Guest)
	}
	return names, nil
}

// Recover settles what can be settled without the fleet's record: of parts whose process
// was killed it claims the room again, verifies VMs that have arrived, and closes those
// that have left or stay. Parts that only the record can decide stay open for Act.
func (h *Host) Recover(ctx context.Context) error {
	entries, err := h.Journal.Entries()
	if err != nil {
		return fmt.Errorf("looking for interrupted migrations: %w", err)
	}
	var errs []error
	for _, e := range journal.OpenMigrations(entries) {
		errs = append(errs, h.about(e.Migration.Guest, h.recover(ctx, &e)))
	}
	return errors.Join(errs...)
}

func (h *Host) recover(ctx context.Context, open *journal.Entry) error {
	m := open.Migration
	present, err := h.Port.Presence(ctx, m.Guest)
	if err != nil {
		return err
	}
	switch {
	case m.Leave && present == guest.Runs:
		return h.stays(open, "the process that migrated it ended")
	case m.Leave && (present == guest.Absent || present == guest.Stored):
		return h.gone(ctx, open)
	case !m.Leave && present == guest.Runs:
		_, _, err := h.settle(ctx, open)
		return err
	case !m.Leave && present == guest.Absent && !h.holds(m.Guest):
		return h.Reserve(ctx, m.Intent, func() error { return nil })
	}
	return nil
}
