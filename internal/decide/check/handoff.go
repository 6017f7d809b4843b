package check

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/topology"
)

// handoff: each vCPU has one CPU of those that the policy names for hand-over, on its
// cell's node, and the guest starts with at least its minimum, on CPUs with which no
// other guest starts.
func (c *checker) handoff() {
	h := c.placed.Handoff
	if h == nil {
		c.fail(RuleHandoff, "guest", "has no home and no minimum")
		return
	}
	managed := c.policy.Handoff.CPUs.Intersect(c.topology.CPUSet())
	var mirrored topology.CPUSet
	for _, v := range c.placed.VCPUs {
		name := fmt.Sprintf("vCPU %d", v.ID)
		switch {
		case v.CPUs.Len() != 1:
			c.fail(RuleHandoff, name, "has CPUs %q, not exactly one", v.CPUs)
		case v.CPUs.Intersects(mirrored):
			c.fail(RuleHandoff, name, "has CPU %v of another vCPU", v.CPUs)
		case !v.CPUs.SubsetOf(managed):
			c.fail(RuleHandoff, name, "CPU %v is not online, or not one of the policy's for hand-over (%s)", v.CPUs,
				managed)
		}
		if limits := c.spec.Limits.CPUs; !limits.IsEmpty() && !v.CPUs.SubsetOf(limits) {
			c.fail(RuleCPUs, name, "CPUs %v are outside the limits", v.CPUs.Minus(limits))
		}
		mirrored = mirrored.Union(v.CPUs)
		c.onItsNodes(name, v)
	}
	if n := h.Seen.CPUs(); n != len(c.placed.VCPUs) {
		c.fail(RuleHandoff, "guest", "sees %d CPUs, and has %d vCPUs", n, len(c.placed.VCPUs))
	}
	if !h.First.SubsetOf(mirrored) || h.First.Len() < h.Min {
		c.fail(RuleHandoff, "guest", "starts with CPUs %q; its minimum is %d of its CPUs", h.First, h.Min)
	}
	c.minimums(managed)
}

// minimums: no two guests start with one CPU, or, if cores are handed over as a whole,
// with CPUs of one core; and all of them together are guests that can share CPUs.
func (c *checker) minimums(managed topology.CPUSet) {
	own, ok := handoff.GuestOf(c.placed.Guest, c.placed)
	if !ok {
		return // reported by shape
	}
	units := c.placed.Handoff.First
	for id := range c.placed.Handoff.First.All() {
		if cpu, ok := c.topology.CPU(id); ok && c.policy.Handoff.WholeCores {
			units = units.Union(cpu.Siblings.Intersect(managed))
		}
	}
	if !units.Contains(own.Mirror[0]) {
		c.fail(RuleHandoff, "vCPU 0", "has CPU %d, with which the VM does not start", own.Mirror[0])
	}
	_, first := handoff.Placed(c.host, c.placed.Guest)
	for _, g := range first {
		if units.Contains(g.CPU) {
			c.fail(RuleHandoff, "guest", "starts with CPU %d, or its core; VM %s does, too", g.CPU, g.Guest)
		}
	}
	in := handoff.Input{Topology: c.topology, Rules: handoff.RulesOf(c.policy), Guests: []handoff.Guest{own}}
	if err := in.Check(); err != nil {
		c.fail(RuleHandoff, "guest", "%v", err)
	}
}

// handoffHelper: QEMU's own threads use no CPU that guests hand over, except the
// anchor, which the guest never releases.
func (c *checker) handoffHelper(name string, cpus topology.CPUSet) {
	if off := cpus.Minus(c.topology.CPUSet()); cpus.IsEmpty() || !off.IsEmpty() {
		c.fail(RuleHelpers, name, "has CPUs %q, of which %q are not online", cpus, off)
	}
	if theirs := cpus.Intersect(c.taken); !theirs.IsEmpty() {
		c.fail(RuleExclusive, name, "CPUs %v are dedicated to other VMs", theirs)
	}
	shared := cpus.Intersect(c.policy.Handoff.CPUs)
	if len(c.placed.VCPUs) > 0 && !shared.SubsetOf(c.placed.VCPUs[0].CPUs) {
		c.fail(RuleHelpers, name, "CPUs %v are handed over between VMs", shared)
	}
}
