package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// claim is the room of a VM that was decided on, whether its host's inventory shows the VM or
// not.
type claim struct {
	group     string
	spec      guest.Spec
	placement guest.Placement
	entered   entered
}

// entered is how a claim is entered into its host's inventory.
type entered int

const (
	notEntered entered = iota // the inventory shows the VM with the same placement
	asGuest                   // the inventory does not show the VM
	asClaim                   // the inventory shows the VM with another placement
)

// SetHost adds a host, or replaces what is known of one: inventory, loads, rack, preference and
// whether it gets VMs. The inventory is not changed. Claims remain: a VM that is claimed and
// in the inventory counts once, on nodes where the two differ with the greater amount.
func (f *Fleet) SetHost(h Host) {
	i, known := f.byName[h.Name]
	if !known {
		i = f.vacancy()
		f.byName[h.Name] = i
	}
	f.set(i, h)
	f.noteChange(i)
}

// Set is SetHost for an inventory with all VMs that count: earlier claims on the host end. groups
// has the groups of its VMs by name.
func (f *Fleet) Set(next Host, groups map[string]string) {
	if i, known := f.byName[next.Name]; known {
		f.dropMembers(i)
		f.hosts[i].claims = nil
	}
	f.SetHost(next)
	i := f.byName[next.Name]
	h := f.hosts[i]
	for g := range next.Inventory.Guests {
		vm := &next.Inventory.Guests[g]
		group := groups[vm.Name]
		if group == "" || vm.Placement == nil {
			continue
		}
		if h.claims == nil {
			h.claims = map[string]*claim{}
		}
		h.claims[vm.Name] = &claim{group: group, spec: specOf(vm), placement: *vm.Placement}
		f.groups[group] = append(f.groups[group], member{vm.Name, i, vm.Placement.Nodes})
	}
}

// specOf returns the spec of a VM as far as it is known.
func specOf(g *inventory.Guest) guest.Spec {
	if g.Spec != nil {
		return *g.Spec
	}
	return guest.Spec{Name: g.Name, VCPUs: g.Config.VCPUs, Memory: g.Config.Memory, PageSize: g.Config.PageSize}
}

// dropMembers removes the VMs of a host from their groups: each of them has a claim.
func (f *Fleet) dropMembers(i int) {
	for _, c := range f.hosts[i].claims {
		if c.group != "" {
			f.setGroup(c.group, slices.DeleteFunc(f.groups[c.group], func(m member) bool { return m.host == i }))
		}
	}
}

// vacancy returns a position for a new host.
func (f *Fleet) vacancy() int {
	if n := len(f.vacant); n > 0 {
		i := f.vacant[n-1]
		f.vacant = f.vacant[:n-1]
		return i
	}
	f.hosts = append(f.hosts, &host{})
	return len(f.hosts) - 1
}

// LookUp has the fleet ask for the inventory of a host when it needs more than its summary, instead of having all of
// them: with 10,000 hosts they are much memory. look returns the inventory as Set would get it now, which may be newer
// than the last Set, in memory of its own; nil: the host has left. It is only called in calls of the fleet's methods.
func (f *Fleet) LookUp(look func(host string) *inventory.Host) { f.look = look }

// inventory returns the inventory of a host with its claims; nil: the host has left.
func (f *Fleet) inventory(h *host) *inventory.Host {
	if h.Inventory != nil || f.look == nil {
		return h.Inventory
	}
	seen := f.look(h.Name)
	if seen != nil {
		sortGuests(seen)
	}
	return seen
}

// hold makes sure that the fleet has the inventory of a host until the next Set, since it is to differ from what look
// returns.
func (f *Fleet) hold(h *host) error {
	if h.Inventory = f.inventory(h); h.Inventory == nil {
		return fmt.Errorf("host %s has left the fleet", h.Name)
	}
	return nil
}

func sortGuests(h *inventory.Host) {
	byName := func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(h.Guests, byName) {
		slices.SortStableFunc(h.Guests, byName)
	}
}

// set replaces the host at a position.
func (f *Fleet) set(i int, h Host) {
	old := f.hosts[i]
	f.tally(old, -1)
	if !old.known {
		for g := range h.Inventory.Guests {
			f.mix.add(shapeOfGuest(&h.Inventory.Guests[g]))
		}
	}
	if f.look == nil || len(old.claims) > 0 { // else it is only summarized
		seen := *h.Inventory
		seen.Claims = slices.Clone(seen.Claims)
		seen.Guests = slices.Clone(seen.Guests)
		sortGuests(&seen)
		h.Inventory = &seen
	}
	old.Host, old.known, old.makes = h, true, h.Inventory.Makes()
	f.tally(old, 1)
	for vm, c := range old.claims {
		old.reserve(vm, c)
	}
	old.cores = coresOf(&h.Inventory.Topology)
	was := old.size
	old.size = f.sizeOf(&h.Inventory.Topology)
	f.resized(was, old.size)
	f.summarizeHost(old)
	if f.look != nil && len(old.claims) == 0 {
		old.Inventory = nil
	}
}

// RemoveHost removes a host with its claims. A host that the fleet does not have is
// no error.
func (f *Fleet) RemoveHost(name string) {
	i, known := f.byName[name]
	if !known {
		return
	}
	old := f.hosts[i]
	f.tally(old, -1)
	for s := range old.fits {
		f.left[s] -= old.fits[s].vms
	}
	f.dropMembers(i)
	f.hosts[i] = &host{}
	f.vacant = append(f.vacant, i)
	delete(f.byName, name)
	f.resized(old.size, size{})
	f.noteChange(i)
}

// SetCordoned says whether a host gets no new VMs by an operator's wish. The error says that
// the fleet does not have the host.
func (f *Fleet) SetCordoned(name string, cordoned bool) error {
	return f.setClosed(name, func(h *host) { h.Cordoned = cordoned })
}

// SetUnreachable says whether a host gets no new VMs because its daemon does not report.
// The error says that the fleet does not have the host.
func (f *Fleet) SetUnreachable(name string, unreachable bool) error {
	return f.setClosed(name, func(h *host) { h.Unreachable = unreachable })
}

func (f *Fleet) setClosed(name string, set func(*host)) error {
	i, known := f.byName[name]
	if !known {
		return fmt.Errorf("host %s is not in the fleet", name)
	}
	h := f.hosts[i]
	f.tally(h, -1)
	set(h)
	f.tally(h, 1)
	f.noteChange(i)
	return nil
}

// tally counts a host among those that get no new VMs, or by what it makes; n is 1 or -1.
func (f *Fleet) tally(h *host, n int) {
	if !h.known {
		return
	}
	if why := h.closed(); why != "" {
		f.closed[why] += n
		return
	}
	f.open[strings.Join(h.makes, " ")] += n
}

// others is the number of hosts that get new VMs, but none of a type.
func (f *Fleet) others(machine string) (n int) {
	for makes, hosts := range f.open {
		if !slices.Contains(strings.Fields(makes), machine) {
			n += hosts
		}
	}
	return n
}

// closed returns why a host gets no new VMs; "": it gets some.
func (h *Host) closed() reason {
	switch {
	case h.Cordoned:
		return cordoned
	case h.Unreachable:
		return unreachable
	}
	return ""
}

// Add reserves the room of a VM on a host, as a decision placed it, whether the host's
// inventory shows the VM or not. It replaces an earlier claim of the VM on the host.
func (f *Fleet) Add(d *Decision) error {
	i, known := f.byName[d.Host]
	if !known {
		return fmt.Errorf("VM %s: host %s is not in the fleet", d.Spec.Name, d.Host)
	}
	h := f.hosts[i]
	if err := f.hold(h); err != nil {
		return fmt.Errorf("VM %s: %w", d.Spec.Name, err)
	}
	if _, claimed := h.claims[d.Spec.Name]; claimed {
		f.release(i, d.Spec.Name)
	}
	if h.claims == nil {
		h.claims = map[string]*claim{}
	}
	c := &claim{group: d.Group, spec: d.Spec, placement: d.Placement}
	h.claims[d.Spec.Name] = c
	h.reserve(d.Spec.Name, c)
	if d.Group != "" {
		f.groups[d.Group] = append(f.groups[d.Group], member{d.Spec.Name, i, d.Placement.Nodes})
	}
	f.changed(i)
	return nil
}

// Remove releases the claim of a VM on a host, and removes the VM from the host's inventory until
// SetHost replaces it.
func (f *Fleet) Remove(hostName, vm string) error {
	i, known := f.byName[hostName]
	if !known {
		return fmt.Errorf("VM %s: host %s is not in the fleet", vm, hostName)
	}
	h := f.hosts[i]
	if err := f.hold(h); err != nil {
		return fmt.Errorf("VM %s: %w", vm, err)
	}
	_, claimed := h.claims[vm]
	if claimed {
		f.release(i, vm)
	}
	at, found := find(h.Inventory.Guests, vm)
	if found {
		h.Inventory.Guests = slices.Delete(h.Inventory.Guests, at, at+1)
	}
	if !claimed && !found {
		return fmt.Errorf("VM %s is not on host %s", vm, hostName)
	}
	f.changed(i)
	return nil
}

// release removes a claim. What the inventory showed of the VM remains.
func (f *Fleet) release(i int, vm string) {
	h := f.hosts[i]
	c := h.claims[vm]
	delete(h.claims, vm)
	if c.group != "" {
		isIt := func(m member) bool { return m.host == i && m.vm == vm }
		f.setGroup(c.group, slices.DeleteFunc(f.groups[c.group], isIt))
	}
	switch c.entered {
	case notEntered:
	case asGuest:
		at, _ := find(h.Inventory.Guests, vm)
		h.Inventory.Guests = slices.Delete(h.Inventory.Guests, at, at+1)
	case asClaim:
		at := slices.IndexFunc(h.Inventory.Claims, func(c inventory.Claim) bool {
			return c.Name == vm && c.By == claimedBy
		})
		h.Inventory.Claims = slices.Delete(h.Inventory.Claims, at, at+1)
	}
}

func (f *Fleet) setGroup(group string, members []member) {
	if f.groups[group] = members; len(members) == 0 {
		delete(f.groups, group)
	}
}

// claimedBy is the holder of a claim that differs from what the inventory shows.
const claimedBy = "the fleet's scheduler"

// Claimed is the state of a VM that is claimed and that its host's inventory does not show.
const Claimed = "claimed"

// reserve enters a claim into a host's inventory: as a VM unless it shows one, else as a
// reservation in addition, as for a move, if the VM's placement differs.
func (h *host) reserve(vm string, c *claim) {
	at, found := find(h.Inventory.Guests, vm)
	c.entered = notEntered
	if !found {
		c.entered = asGuest
		h.Inventory.Guests = slices.Insert(h.Inventory.Guests, at, inventory.Guest{
			Name: vm, State: Claimed, Managed: true, Spec: &c.spec, Placement: &c.placement,
			Config: inventory.Config{VCPUs: c.spec.VCPUs, Memory: c.spec.Memory, PageSize: c.spec.PageSize},
		})
		return
	}
	if p := h.Inventory.Guests[at].Placement; p == nil || !equalRoom(p, &c.placement) {
		c.entered = asClaim
		h.Inventory.Claims = append(h.Inventory.Claims,
			inventory.Claim{Name: vm, By: claimedBy, Placement: c.placement})
	}
}

// size is what a host has in all.
type size struct{ vcpus, memory float64 }

func (f *Fleet) sizeOf(t *topology.Topology) size {
	memory := topology.Bytes(0)
	for i := range t.Nodes {
		memory += t.Nodes[i].Memory
	}
	return size{f.policy.Overcommit * float64(len(t.CPUs)), float64(memory)}
}

// resized updates the size of the fleet's largest host when one had a size and has
// another one now.
func (f *Fleet) resized(was, now size) {
	if was == now {
		return
	}
	if was.vcpus == f.largest.vcpus || was.memory == f.largest.memory {
		f.largest = size{}
		for _, h := range f.hosts {
			f.largest = size{max(f.largest.vcpus, h.size.vcpus), max(f.largest.memory, h.size.memory)}
		}
		return
	}
	f.largest = size{max(f.largest.vcpus, now.vcpus), max(f.largest.memory, now.memory)}
}

// equalRoom reports whether two placements take the same.
func equalRoom(a, b *guest.Placement) bool {
	equal := func(x, y guest.Reservation) bool {
		return x.Node == y.Node && x.Memory == y.Memory && x.PageSize == y.PageSize && x.VCPUs == y.VCPUs &&
			x.Exclusive.Equal(y.Exclusive)
	}
	return a.CPUMode == b.CPUMode && slices.EqualFunc(a.Reservations, b.Reservations, equal)
}

// changed brings a host's summary up to date.
func (f *Fleet) changed(i int) {
	f.summarizeHost(f.hosts[i])
	f.noteChange(i)
}

// summarizeHost computes what is free on a host.
func (f *Fleet) summarizeHost(h *host) {
	h.rooms, h.others = rooms(h.Inventory, h.cores, &f.policy)
	f.count(h)
}

// Names returns the names of the hosts, ascending.
func (f *Fleet) Names() []string { return slices.Sorted(maps.Keys(f.byName)) }

// Host returns a host with all VMs that count on it: those of its inventory, and claims, whose
// state is Claimed. Its inventory must not be changed.
func (f *Fleet) Host(name string) (Host, bool) {
	i, known := f.byName[name]
	if !known {
		return Host{}, false
	}
	out := f.hosts[i].Host
	out.Inventory = f.inventory(f.hosts[i])
	return out, out.Inventory != nil
}

// Policy returns the policy of all hosts, with its defaults.
func (f *Fleet) Policy() policy.Policy { return f.policy }
