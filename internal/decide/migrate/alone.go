package migrate

import (
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Alone asks for the place of one running VM on another host, without a fleet. The hypervisor's own tools
// migrate it.
type Alone struct {
	Guest          *inventory.Guest // on the source
	Source, Target *inventory.Host
	Policy         policy.Policy
}

// Decide chooses the nodes on the target. The VM gets no more nodes than those that hold its memory now: to a VM
// that sees one node, a second one would be memory of another distance that it cannot know. The notes name wishes
// of the VM's spec that mean nothing on another host.
func (a Alone) Decide() (i guest.Intent, why place.Why, notes []string, err error) {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("VM %s cannot migrate to %s: %w", a.Guest.Name, a.Target.Name, fmt.Errorf(format, args...))
	}
	if err := a.refusal(); err != nil {
		return i, why, nil, fail("%w", err)
	}
	spec := specOf(a.Guest)
	if !spec.Limits.Nodes.IsEmpty() || !spec.Limits.CPUs.IsEmpty() {
		notes = append(notes, "the nodes and CPUs to which it was limited are those of this host; the target's are "+
			"chosen afresh")
	}
	spec.Limits.Nodes, spec.Limits.CPUs = topology.NodeSet{}, topology.CPUSet{}
	spec.Limits.Pool = a.Guest.Pool
	if most := a.nodes(); spec.Limits.MaxNodes == 0 || spec.Limits.MaxNodes > most {
		spec.Limits.MaxNodes = most
	}
	if len(spec.Devices) > 0 {
		notes = append(notes, "the devices near which it was placed are those of this host")
		spec.Devices = nil
	}
	// Both copies exist until the migration ends: the VM's own room on the target does not count as free, should
	// the target be this host.
	p, why, err := place.Place(place.Request{Host: a.Target, Spec: spec, Policy: a.Policy})
	if err != nil {
		return i, why, nil, fail("%w", err)
	}
	return guest.Intent{Host: a.Target.Identity(), Spec: spec.Resolve(&p), Placement: p, Adopted: !a.Guest.Created()},
		why, notes, nil
}

// nodes is the number of nodes that the VM may have on the target.
func (a Alone) nodes() int {
	if n := a.Guest.HomeNodes().Len(); n > 0 {
		return n
	}
	if a.Guest.Placement != nil {
		return max(1, a.Guest.Placement.Nodes.Len())
	}
	return 1
}

// refusal says why the VM cannot migrate to any host, or not to this one.
func (a Alone) refusal() error {
	g := a.Guest
	switch {
	case !g.Can.Migrate:
		return errors.New("its hypervisor does not migrate VMs by itself; hosts of a fleet do ('numavisor migrate " +
			"--server')")
	case g.State != "running":
		return fmt.Errorf("it is %s: resume it first", g.State)
	case len(g.Config.Cells) > 0:
		return errors.New("it has virtual NUMA nodes (vnuma), and its hypervisor migrates no such VM: shut it down, " +
			"and create it on the target")
	case len(g.Config.Devices) > 0:
		return fmt.Errorf("the device %s is assigned to it: detach it first", g.Config.Devices[0])
	}
	if there, ok := a.Target.Guest(g.Name); ok && there.UUID != g.UUID {
		return errors.New("the target has another VM of this name")
	}
	if c, ok := a.Target.Claim(g.Name); ok {
		return fmt.Errorf("the target has a reservation for a VM of this name, held by %s", c.HeldBy())
	}
	return nil
}
