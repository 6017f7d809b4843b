package libvirt

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"libvirt.org/go/libvirt"
)

// Listed is one guest as the daemon lists it.
type Listed struct {
	Name       string
	UUID       string
	ID         int    // changes with every start; -1 while it does not run
	State      string // running, paused, shutoff, crashed, ...
	Persistent bool   // has a stored configuration
}

// Running reports whether the guest has a process.
func (l Listed) Running() bool { return l.ID >= 0 }

// List returns all guests, running or not, ascending by name. Those that
// vanish meanwhile are left out.
func (d *Driver) List(ctx context.Context) ([]Listed, error) {
	var all []Listed
	err := d.reads.read(ctx, func(c *libvirt.Connect) error {
		all = nil
		domains, err := c.ListAllDomains(0)
		if err != nil {
			return err
		}
		for i := range domains {
			one, err := listed(&domains[i])
			domains[i].Free()
			switch {
			case err == nil:
				all = append(all, one)
			case broken(err):
				return err
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b Listed) int { return strings.Compare(a.Name, b.Name) })
	return all, fail("listing guests", "", err)
}

// Find returns one guest by name or UUID.
func (d *Driver) Find(ctx context.Context, name string) (Listed, error) {
	var one Listed
	err := d.read(ctx, "looking it up", name, func(dom *libvirt.Domain) (err error) {
		one, err = listed(dom)
		return err
	})
	return one, err
}

func listed(dom *libvirt.Domain) (Listed, error) {
	one := Listed{ID: -1}
	var err error
	if one.Name, err = dom.GetName(); err != nil {
		return one, err
	}
	if one.UUID, err = dom.GetUUIDString(); err != nil {
		return one, err
	}
	state, _, err := dom.GetState()
	if err != nil {
		return one, err
	}
	one.State = stateName(state)
	if id, err := dom.GetID(); err == nil {
		one.ID = int(id)
	}
	one.Persistent, err = dom.IsPersistent()
	return one, err
}

func stateName(s libvirt.DomainState) string {
	switch s {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED:
		return "running"
	case libvirt.DOMAIN_PAUSED:
		return "paused"
	case libvirt.DOMAIN_SHUTDOWN:
		return "stopping"
	case libvirt.DOMAIN_SHUTOFF:
		return "shutoff"
	case libvirt.DOMAIN_CRASHED:
		return "crashed"
	case libvirt.DOMAIN_PMSUSPENDED:
		return "suspended"
	default:
		return "unknown"
	}
}

// Guests lists all guests with what their XML says: of the running process for
// those that run, of the next start for others. A guest whose XML cannot be
// read is listed with its name alone, and joined into the error, so that the
// others are not lost.
func (d *Driver) Guests(ctx context.Context) ([]inventory.Guest, error) {
	all, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	var guests []inventory.Guest
	var errs []error
	for _, l := range all {
		g, err := d.guest(ctx, l)
		if errors.Is(err, ErrNoDomain) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
		}
		guests = append(guests, g)
	}
	return guests, errors.Join(errs...)
}

// Guest returns one guest by name or UUID as Guests does.
func (d *Driver) Guest(ctx context.Context, name string) (inventory.Guest, error) {
	l, err := d.Find(ctx, name)
	if err != nil {
		return inventory.Guest{}, err
	}
	return d.guest(ctx, l)
}

func (d *Driver) guest(ctx context.Context, l Listed) (inventory.Guest, error) {
	g := inventory.Guest{Name: l.Name, UUID: l.UUID, Hypervisor: d.Name(), State: l.State, Persistent: l.Persistent}
	pid := 0
	if l.Running() {
		pid, _ = d.PID(l.Name) // 0 says that it is not known
	}
	g.PID = pid
	text, err := d.XML(ctx, l.UUID, Current)
	if err != nil {
		return g, err
	}
	domain, err := ParseDomain(text)
	if err != nil {
		return g, fail("reading its XML", l.Name, err)
	}
	g = domain.Guest()
	g.Hypervisor, g.State, g.Persistent, g.PID = d.Name(), l.State, l.Persistent, pid
	return g, fail("reading its intent", l.Name, domain.IntentError)
}
