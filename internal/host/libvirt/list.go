package libvirt

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"libvirt.org/go/libvirt"
)

// Listed is one guest in the daemon's list.
type Listed struct {
	Name       string
	UUID       string
	ID         int    // changes with every start; -1 while it does not run
	State      string // running, paused, shutoff, crashed, ...
	Persistent bool   // has a stored configuration
}

// Running reports whether the guest has a process.
func (l Listed) Running() bool { return l.ID >= 0 }

// List returns all guests, running or not, ascending by name. It leaves out
// those that vanish meanwhile.
func (d *Driver) List(ctx context.Context) ([]Listed, error) {
	var all []Listed
	err := d.reads.read(ctx, func(c *libvirt.Connect) error {
		all = nil
		return eachListed(c, func(l Listed, _ *libvirt.Domain) error {
			all = append(all, l)
			return nil
		})
	})
	slices.SortFunc(all, func(a, b Listed) int { return strings.Compare(a.Name, b.Name) })
	return all, fail("listing VMs", "", err)
}

// eachListed calls yield for every guest until it fails. It asks which guests
// run and which are stored for all at once, since each call is a round trip to
// the daemon; only guests in rarer states are queried one by one.
func eachListed(c *libvirt.Connect, yield func(Listed, *libvirt.Domain) error) error {
	domains, err := c.ListAllDomains(0)
	if err != nil {
		return err
	}
	defer free(domains)
	// After the list: a guest that appears in between is then in neither set,
	// and no guest wrongly counts as one without a stored configuration.
	running, err := uuids(c, libvirt.CONNECT_LIST_DOMAINS_RUNNING)
	if err != nil {
		return err
	}
	stored, err := uuids(c, libvirt.CONNECT_LIST_DOMAINS_PERSISTENT)
	if err != nil {
		return err
	}
	for i := range domains {
		one, err := named(&domains[i])
		if err == nil {
			one.Persistent = stored[one.UUID]
			if one.State = "running"; !running[one.UUID] || !one.Running() {
				one.State, err = stateOf(&domains[i])
			}
		}
		switch {
		case err == nil:
			if err := yield(one, &domains[i]); err != nil {
				return err
			}
		case broken(err):
			return err
		}
	}
	return nil
}

// uuids names the guests that a filter selects.
func uuids(c *libvirt.Connect, filter libvirt.ConnectListAllDomainsFlags) (map[string]bool, error) {
	domains, err := c.ListAllDomains(filter)
	if err != nil {
		return nil, err
	}
	defer free(domains)
	all := make(map[string]bool, len(domains))
	for i := range domains {
		id, err := domains[i].GetUUIDString()
		if err != nil {
			return nil, err
		}
		all[id] = true
	}
	return all, nil
}

func free(domains []libvirt.Domain) {
	for i := range domains {
		domains[i].Free()
	}
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
	one, err := named(dom)
	if err != nil {
		return one, err
	}
	if one.State, err = stateOf(dom); err != nil {
		return one, err
	}
	one.Persistent, err = dom.IsPersistent()
	return one, err
}

// named is what the library knows of a guest without asking the daemon.
func named(dom *libvirt.Domain) (Listed, error) {
	one := Listed{ID: -1}
	var err error
	if one.Name, err = dom.GetName(); err != nil {
		return one, err
	}
	if one.UUID, err = dom.GetUUIDString(); err != nil {
		return one, err
	}
	if id, err := dom.GetID(); err == nil {
		one.ID = int(id)
	}
	return one, nil
}

func stateOf(dom *libvirt.Domain) (string, error) {
	state, _, err := dom.GetState()
	return stateName(state), err
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

// Guests lists all guests with the facts in their XML: of the running process
// for those that run, of the next start for others, ascending by name. A guest
// whose XML cannot be read is listed with its name alone, and its error joined
// into the result's, so that the others are not lost.
func (d *Driver) Guests(ctx context.Context) ([]inventory.Guest, error) {
	var guests []inventory.Guest
	var errs []error
	err := d.reads.read(ctx, func(c *libvirt.Connect) error {
		guests, errs = nil, nil
		return eachListed(c, func(l Listed, dom *libvirt.Domain) error {
			text, err := dom.GetXMLDesc(0)
			if broken(err) {
				return err
			}
			g, err := d.guest(l, text, fail("reading its XML", l.Name, err))
			if errors.Is(err, guest.ErrNotFound) {
				return nil
			}
			guests, errs = append(guests, g), append(errs, err)
			return nil
		})
	})
	if err != nil {
		return nil, fail("listing VMs", "", err)
	}
	d.readings.keep(guests)
	slices.SortFunc(guests, func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) })
	return guests, errors.Join(errs...)
}

// Guest returns one guest by name or UUID as Guests does.
func (d *Driver) Guest(ctx context.Context, name string) (inventory.Guest, error) {
	l, err := d.Find(ctx, name)
	if err != nil {
		return inventory.Guest{}, err
	}
	text, err := d.XML(ctx, l.UUID, Current)
	return d.guest(l, string(text), err)
}

// guest joins the list's and the XML's facts; unread is why there is no XML.
func (d *Driver) guest(l Listed, text string, unread error) (inventory.Guest, error) {
	g := inventory.Guest{
		Name:       l.Name,
		UUID:       l.UUID,
		Hypervisor: d.Name(),
		Can:        inventory.CapabilitiesOf(d.Name()),
		State:      l.State,
		Persistent: l.Persistent,
	}
	pid := 0
	if l.Running() {
		pid, _ = d.PID(l.Name) // 0 means unknown
	}
	g.PID = pid
	if unread != nil {
		return g, unread
	}
	domain, err := d.readings.read(l.UUID, text)
	if err != nil {
		return g, fail("reading its XML", l.Name, err)
	}
	g = domain.Guest()
	g.Name = l.Name // the XML has it without its line breaks: no guest has that name
	g.Can = inventory.CapabilitiesOf(d.Name())
	g.Hypervisor, g.State, g.Persistent, g.PID = d.Name(), l.State, l.Persistent, pid
	return g, nil
}
