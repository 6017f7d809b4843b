package inventory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// CheckIntents removes every recorded intent that contradicts this host or the
// guest's own configuration. Otherwise a user with write access to a guest's
// metadata could reserve the whole host, or less than the guest uses. Such a
// guest counts as one without an intent, with its configured size. IntentError
// and a gap give the reason.
func (h *Host) CheckIntents() {
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.Placement != nil && g.IntentError == "" {
			if err := g.checkIntent(&h.Topology); err != nil {
				g.IntentError = err.Error()
			}
		}
		if g.IntentError != "" {
			g.Managed, g.Adopted, g.Spec, g.Placement = false, false, nil, nil
			if gap := intentGap(g); !slices.Contains(h.Gaps, gap) {
				h.Gaps = append(h.Gaps, gap)
			}
		}
	}
}

// intentGap is the gap of a guest whose recorded intent is not used.
func intentGap(g *Guest) Gap {
	return Gap{Kind: IntentUnused, Object: GuestRef(g.Name), What: "its recorded intent",
		Why: g.IntentError + "; the VM counts as one that Numavisor did not place, until it is bound again " +
			"('numavisor doctor' names the command)"}
}

// checkIntent returns why the recorded spec and placement cannot belong to this
// guest on this host.
func (g *Guest) checkIntent(t *topology.Topology) error {
	p := g.Placement
	if p.Guest != g.Name {
		return fmt.Errorf("placement.guest is %.60q, another VM", p.Guest)
	}
	if s := g.Spec; s != nil {
		if s.VCPUs != g.Config.VCPUs {
			return fmt.Errorf("spec.vcpus is %d, the VM has %d", s.VCPUs, g.Config.VCPUs)
		}
		if !g.fits(s.Memory) {
			return fmt.Errorf("spec.memory is %v, the VM has %v", s.Memory, g.Config.Memory)
		}
	}
	nodes := t.NodeSet()
	if p.Nodes.IsEmpty() || !p.Nodes.SubsetOf(nodes) {
		return fmt.Errorf("placement.nodes is %s, this host has nodes %s", orNone(p.Nodes), nodes)
	}
	c := intentCheck{guest: g, placement: p, topology: t, cpus: t.CPUSet().Union(t.Offline)}
	for _, check := range []func() error{c.modes, c.vcpus, c.helpers, c.cells, c.reservations} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// fits reports whether an amount can be the guest's memory: what it boots with,
// or also memory that was plugged in; rounded to pages in each cell.
func (g *Guest) fits(amount topology.Bytes) bool {
	boots := g.Config.Memory
	if len(g.Config.Cells) > 0 {
		boots = 0
		for _, c := range g.Config.Cells {
			boots = boots.Plus(c.Memory)
		}
	}
	each := max(4*topology.MiB, min(g.Config.PageSize, topology.GiB))
	slack := each
	for range g.Config.Cells {
		slack = slack.Plus(each)
	}
	return amount.Plus(slack) >= boots && amount <= g.Config.Memory.Plus(slack)
}

// intentCheck compares a placement with a guest's configuration and a host.
type intentCheck struct {
	guest     *Guest
	placement *guest.Placement
	topology  *topology.Topology
	cpus      topology.CPUSet // those of the host, online or offline
}

func (c *intentCheck) modes() error {
	switch m := c.placement.CPUMode; m {
	case guest.CPUNone, guest.CPURange, guest.CPUExclusive, guest.CPUHandoff:
	default:
		return fmt.Errorf("placement.cpu_binding is %.60q, which does not exist", m)
	}
	switch m := c.placement.MemoryMode; m {
	case guest.MemoryNone, guest.MemoryPreferred, guest.MemoryStrict, guest.MemoryInterleave, guest.MemoryRestrictive:
	default:
		return fmt.Errorf("placement.memory_binding is %.60q, which does not exist", m)
	}
	return nil
}

func (c *intentCheck) vcpus() error {
	v := c.placement.VCPUs
	if len(v) != c.guest.Config.VCPUs {
		return fmt.Errorf("placement.vcpus has %d vCPUs, the VM has %d", len(v), c.guest.Config.VCPUs)
	}
	for i := range v {
		if v[i].ID != guest.VCPUID(i) {
			return fmt.Errorf("placement.vcpus[%d].id is %d; wanted %d", i, v[i].ID, i)
		}
		if err := c.known(fmt.Sprintf("placement.vcpus[%d].cpus", i), v[i].CPUs); err != nil {
			return err
		}
		mode := c.placement.CPUMode
		if (mode == guest.CPUExclusive || mode == guest.CPUHandoff) && v[i].CPUs.Len() != 1 {
			return fmt.Errorf("placement.vcpus[%d].cpus is %s; %s binding gives each vCPU one CPU", i,
				orNone(v[i].CPUs), mode)
		}
	}
	return nil
}

func (c *intentCheck) helpers() error {
	if n := c.placement.IOThreads; n < 0 || n > maxVCPUs {
		return fmt.Errorf("placement.io_thread_count is %d", n)
	}
	return errors.Join(c.known("placement.emulator", c.placement.Emulator),
		c.known("placement.io_threads", c.placement.IOThread))
}

// known refuses CPUs that the host does not have.
func (c *intentCheck) known(field string, cpus topology.CPUSet) error {
	if cpus.SubsetOf(c.cpus) {
		return nil
	}
	return fmt.Errorf("%s has CPUs %.60s, which this host does not have", field, cpus.Minus(c.cpus))
}

func (c *intentCheck) cells() error {
	if len(c.placement.Cells) == 0 {
		return errors.New("placement.cells is empty")
	}
	all := topology.Range(0, guest.VCPUID(c.guest.Config.VCPUs-1))
	var sum topology.Bytes
	for i, cell := range c.placement.Cells {
		at := fmt.Sprintf("placement.cells[%d]", i)
		if cell.ID != guest.CellID(i) {
			return fmt.Errorf("%s.id is %d; wanted %d", at, cell.ID, i)
		}
		if !cell.VCPUs.SubsetOf(all) {
			return fmt.Errorf("%s.vcpus is %.60s, the VM has vCPUs %s", at, cell.VCPUs, all)
		}
		if cell.Nodes.IsEmpty() || !cell.Nodes.SubsetOf(c.placement.Nodes) {
			return fmt.Errorf("%s.nodes is %.60s, placement.nodes is %s", at, orNone(cell.Nodes), c.placement.Nodes)
		}
		sum = sum.Plus(cell.Memory)
	}
	if !c.guest.fits(sum) {
		return fmt.Errorf("placement.cells have %v of memory, the VM has %v", sum, c.guest.Config.Memory)
	}
	return nil
}

func (c *intentCheck) reservations() error {
	var memory topology.Bytes
	var seen topology.NodeSet
	may := c.mayOwn()
	vcpus, all := 0, c.guest.Config.VCPUs
	for i, r := range c.placement.Reservations {
		at := fmt.Sprintf("placement.reservations[%d]", i)
		node, ok := c.topology.Node(r.Node)
		switch {
		case !ok:
			return fmt.Errorf("%s.node is %d, this host has nodes %s", at, r.Node, c.topology.NodeSet())
		case seen.Contains(r.Node):
			return fmt.Errorf("%s.node is %d a second time", at, r.Node)
		case r.VCPUs < 0 || r.VCPUs > all:
			return fmt.Errorf("%s.vcpus is %d, the VM has %d", at, r.VCPUs, all)
		case r.PageSize != c.placement.PageSize && r.Memory > 0:
			return fmt.Errorf("%s.page_size is %v, placement.page_size is %v", at, r.PageSize, c.placement.PageSize)
		case !r.Exclusive.SubsetOf(may):
			return fmt.Errorf(
				"%s.exclusive is %.60s, more than the CPUs of its vCPUs and helper threads and their siblings", at,
				r.Exclusive)
		case !r.Exclusive.SubsetOf(node.CPUs.Union(c.topology.Offline)):
			return fmt.Errorf("%s.exclusive is %.60s, which are not CPUs of node %d", at, r.Exclusive, r.Node)
		}
		seen = seen.With(r.Node)
		memory, vcpus = memory.Plus(r.Memory), vcpus+r.VCPUs
	}
	if !c.guest.fits(memory) {
		return fmt.Errorf("placement.reservations have %v of memory, the VM has %v", memory, c.guest.Config.Memory)
	}
	if c.placement.Handoff != nil {
		all = c.placement.Handoff.Min
	}
	if vcpus != all {
		return fmt.Errorf("placement.reservations have %d vCPUs, the VM has %d", vcpus, all)
	}
	return errors.Join(c.handoff(), c.scale(), c.pageSize())
}

// scale: what the decision on the number of vCPUs relies on.
func (c *intentCheck) scale() error {
	s := c.placement.Scale
	if s != nil && (s.Weight < 1 || s.Min < 1 || s.Min > len(c.placement.VCPUs) || c.placement.Handoff != nil) {
		return fmt.Errorf("placement.scale has weight %d and min_vcpus %d; wanted 1 and more, at most %d vCPUs, and "+
			"no placement.handoff", s.Weight, s.Min, len(c.placement.VCPUs))
	}
	return nil
}

// handoff: what the decision on hand-overs relies on.
func (c *intentCheck) handoff() error {
	h := c.placement.Handoff
	if (h != nil) != (c.placement.CPUMode == guest.CPUHandoff) {
		return fmt.Errorf("placement.cpu_binding is %s, which does not agree with placement.handoff",
			c.placement.CPUMode)
	}
	if h == nil {
		return nil
	}
	mirror := c.placement.Mirror()
	cpus := topology.SetOf(mirror...)
	switch _, ok := c.topology.Node(h.Home); {
	case !ok:
		return fmt.Errorf("placement.handoff.home is %d, this host has nodes %s", h.Home, c.topology.NodeSet())
	case cpus.Len() != len(mirror):
		return errors.New("placement.vcpus give one CPU to several vCPUs")
	case h.Weight < 1 || h.Min < 1 || h.Min > len(mirror):
		return fmt.Errorf("placement.handoff has weight %d and min_vcpus %d; wanted 1 and more, and at most %d vCPUs",
			h.Weight, h.Min, len(mirror))
	case !h.First.SubsetOf(cpus) || !h.First.Contains(mirror[0]):
		return fmt.Errorf("placement.handoff.first is %.60s; wanted CPUs of its vCPUs, CPU %d among them",
			orNone(h.First), mirror[0])
	}
	return nil
}

func (c *intentCheck) pageSize() error {
	size := c.placement.PageSize
	if size == c.guest.Config.PageSize || size == 0 {
		return nil
	}
	return fmt.Errorf("placement.page_size is %v, the VM's is %v", size, c.guest.Config.PageSize)
}

// mayOwn returns the CPUs that the placement may use exclusively: those that
// are bound to one thread, and their siblings.
func (c *intentCheck) mayOwn() topology.CPUSet {
	var own topology.CPUSet
	if c.placement.CPUMode == guest.CPUExclusive {
		for _, v := range c.placement.VCPUs {
			own = own.Union(v.CPUs)
		}
	}
	if e := c.placement.Emulator; e.Len() == 1 {
		own = own.Union(e)
	}
	if t := c.placement.IOThread; t.Len() <= c.placement.IOThreads {
		own = own.Union(t)
	}
	with := own
	for _, cpu := range c.topology.CPUs {
		if own.Contains(cpu.ID) || own.Intersects(cpu.Siblings) {
			with = with.Union(cpu.Siblings)
		}
	}
	return with
}

func orNone[ID ~int](s topology.Set[ID]) string {
	if s.IsEmpty() {
		return "none"
	}
	return fmt.Sprintf("%.60s", s.String())
}
