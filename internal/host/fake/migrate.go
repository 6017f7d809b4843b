package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Live migration between two fakes, as libvirt's peer to peer migration does it. Its steps
// are calls of their own, so that a fault can be before or after each:
//
//	Migrate           source  begins; After: the migration is complete, its answer lost
//	MigratePrepare    target  the guest exists, paused
//	MigrateCopy       source  its memory is copied while it runs
//	MigrateSwitch     source  it is paused; all of its memory is on the target
//	MigrateFinish     target  it runs there
//	MigrateConfirm    source  its copy is removed
//
// A fault up to before MigrateSwitch leaves the guest running on the source. Later, neither side can
// know what the other has done: the source stays paused; the target, if it has not
// reached MigrateFinish, removes the guest because the connection broke.

// Connect makes another fake reachable for migrations at a URI.
func (h *Host) Connect(uri string, to *Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.peers == nil {
		h.peers = map[string]*Host{}
	}
	h.peers[uri] = to
}

// transit is the state of a guest in a migration.
type transit int

const (
	settled transit = iota
	departing
	suspended
)

// Executes reports whether the vCPUs of a guest run on this host.
func (h *Host) Executes(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, ok := h.domains[name]
	return ok && d.process != nil && d.transit != suspended
}

// Departures returns the migrations that have begun here.
func (h *Host) Departures() []guest.Departure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.departures)
}

// Migrate migrates a running guest to a connected host. If ctx has ended after the copy, the
// migration is aborted.
func (h *Host) Migrate(ctx context.Context, m guest.Departure) (guest.Transfer, error) {
	var t guest.Transfer
	begin := func() error {
		d, err := h.domain(m.Name)
		switch {
		case err != nil:
			return err
		case d.process == nil || d.transit != settled:
			return fmt.Errorf("guest %s: it does not run: %w", m.Name, guest.ErrRefused)
		case h.peers[m.URI] == nil:
			return fmt.Errorf("guest %s: no connection to %s", m.Name, m.URI)
		}
		return ctx.Err()
	}
	var done bool
	err := h.call("Migrate", func() error {
		err := begin()
		done = err == nil
		return err
	})
	if !done {
		return t, err
	}
	h.mu.Lock()
	h.departures = append(h.departures, m)
	h.mu.Unlock()
	lost := err // the answer of a complete migration is lost
	t, err = h.migrate(ctx, m)
	return t, errors.Join(err, lost)
}

// errConnection is that of a broken connection between the two.
var errConnection = errors.New("the connection broke")

func (h *Host) migrate(ctx context.Context, m guest.Departure) (t guest.Transfer, err error) {
	h.mu.Lock()
	d, to := h.domains[m.Name], h.peers[m.URI]
	live, stored, touched := *d.live, d.stored != nil, d.process.touched()
	d.transit = departing
	h.mu.Unlock()
	stay := func(err error) (guest.Transfer, error) {
		to.drop(m.Name)
		h.set(m.Name, settled)
		return t, errors.Join(err, errConnection)
	}
	err = to.call("MigratePrepare", func() error { return to.receive(live.bound(m.Intent), stored, touched) })
	if err == nil {
		err = h.call("MigrateCopy", func() error { return nil })
	}
	if m.Progress != nil {
		m.Progress(guest.Transfer{Copied: touched.sum() / 2, Remaining: touched.sum() / 2})
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return stay(err)
	}
	paused := false
	err = h.call("MigrateSwitch", func() error {
		paused = true
		return h.place(m.Name, suspended)
	})
	if err != nil && !paused {
		return stay(err)
	}
	t.Copied = touched.sum()
	if err == nil {
		err = to.call("MigrateFinish", func() error { return to.place(m.Name, settled) })
	}
	if err == nil {
		err = h.call("MigrateConfirm", func() error { return h.remove(m.Name) })
	}
	if !to.Executes(m.Name) {
		to.drop(m.Name)
	}
	return t, err
}

// memoryOf is the touched memory of each cell.
type memoryOf map[guest.CellID]topology.Bytes

func (m memoryOf) sum() (all topology.Bytes) {
	for _, bytes := range m {
		all += bytes
	}
	return all
}

func (p *process) touched() memoryOf {
	all := memoryOf{}
	for _, m := range p.mappings {
		if !m.own {
			all[m.cell] += m.touched()
		}
	}
	return all
}

// receive makes an arriving guest, paused, with the memory that it had touched.
func (h *Host) receive(d Definition, stored bool, touched memoryOf) error {
	if _, taken := h.domains[d.Name]; taken {
		return fmt.Errorf("guest %s: receiving it: %w", d.Name, guest.ErrExists)
	}
	p, err := h.launch(d, h.nextPID())
	if err != nil {
		return err
	}
	local := topology.NoNode
	if cpu, ok := h.topology.CPU(p.threads[0].LastCPU); ok { // QEMU's main thread loads the memory
		local = cpu.Node
	}
	for _, m := range p.mappings {
		more := min(touched[m.cell], m.Size) - min(m.touched(), touched[m.cell], m.Size)
		if !m.own && h.touch(m, more, local, p.threads[0].Mems) < more {
			h.end(p)
			return fmt.Errorf("guest %s does not start: memory of cell %d: %w", d.Name, m.cell, unix.ENOMEM)
		}
	}
	arriving := &domain{live: &d, process: p, transit: suspended}
	if stored {
		next := d
		arriving.stored = &next
	}
	h.domains[d.Name] = arriving
	return nil
}

func (h *Host) place(name string, t transit) error {
	d, err := h.domain(name)
	if err == nil {
		d.transit = t
	}
	return err
}

func (h *Host) set(name string, t transit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.place(name, t) // a guest that has ended meanwhile has no state
}

// drop removes an arriving guest whose migration failed.
func (h *Host) drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, ok := h.domains[name]; ok && d.transit == suspended {
		_ = h.remove(name)
	}
}

func (h *Host) remove(name string) error {
	d, err := h.domain(name)
	if err != nil {
		return err
	}
	if d.process != nil {
		h.end(d.process)
	}
	delete(h.domains, name)
	return nil
}

// Presence returns what this host has of a guest that migrates.
func (h *Host) Presence(ctx context.Context, name string) (p guest.Presence, err error) {
	err = h.call("Presence", func() error {
		d, ok := h.domains[name]
		switch {
		case !ok:
			p = guest.Absent
		case d.process == nil:
			p = guest.Stored
		case d.transit == departing:
			p = guest.Departing
		case d.transit == suspended:
			p = guest.Suspended
		default:
			p = guest.Runs
		}
		return ctx.Err()
	})
	return p, err
}

// AbortMigration is refused: the steps of a fake's migration end by themselves.
func (h *Host) AbortMigration(ctx context.Context, name string) error {
	return h.tune(ctx, "AbortMigration", name, func(*domain) error {
		return fmt.Errorf("guest %s: it is not being migrated: %w", name, guest.ErrRefused)
	})
}

// Arrived returns what the migration by which a guest came has copied, and a downtime.
func (h *Host) Arrived(ctx context.Context, name string) (t guest.Transfer, err error) {
	err = h.tune(ctx, "Arrived", name, func(d *domain) error {
		if d.process != nil {
			t = guest.Transfer{Copied: d.process.touched().sum(), Downtime: downtime}
		}
		return nil
	})
	return t, err
}

// downtime is that of every migration of fakes.
const downtime = 40_000_000 // 40 ms

// RunsAt reports whether a connected host runs a guest of this host.
func (h *Host) RunsAt(ctx context.Context, uri, name string) (runs bool, err error) {
	var at *Host
	err = h.tune(ctx, "RunsAt", name, func(*domain) error {
		if at = h.peers[uri]; at == nil {
			return fmt.Errorf("no connection to %s", uri)
		}
		return nil
	})
	return err == nil && at.Executes(name), err
}

// Resume lets a guest run again that is paused.
func (h *Host) Resume(ctx context.Context, name string) error {
	return h.tune(ctx, "Resume", name, func(d *domain) error {
		d.transit = settled
		return nil
	})
}

// DiscardSuspended removes what a migration left of a guest; it refuses a guest that runs.
func (h *Host) DiscardSuspended(ctx context.Context, name string) error {
	return h.tune(ctx, "DiscardSuspended", name, func(d *domain) error {
		if d.process != nil && d.transit != suspended {
			return fmt.Errorf("guest %s runs: %w", name, guest.ErrRefused)
		}
		return h.remove(name)
	})
}
