package check

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// cpus: every vCPU may run on the CPUs of its nodes and on no others.
func (c *checker) cpus() {
	online := c.topology.CPUSet()
	for _, v := range c.placed.VCPUs {
		name := fmt.Sprintf("vCPU %d", v.ID)
		if c.placed.CPUMode == guest.CPUNone {
			if !v.CPUs.IsEmpty() {
				c.fail(RuleCPUs, name, "is bound to CPUs %v; the spec requests no binding", v.CPUs)
			}
			continue
		}
		if v.CPUs.IsEmpty() {
			c.fail(RuleCPUs, name, "has no CPU")
		}
		c.cpuSet(name, v.CPUs, online)
		c.onItsNodes(name, v)
	}
	c.enough()
}

// cpuSet: the CPUs are online, not for housekeeping, within the limits and not
// dedicated to other guests.
func (c *checker) cpuSet(name string, cpus, online topology.CPUSet) {
	if off := cpus.Minus(online); !off.IsEmpty() {
		c.fail(RuleCPUs, name, "CPUs %v are not online", off)
	}
	if house := cpus.Intersect(c.housekeeping); !house.IsEmpty() {
		c.fail(RuleCPUs, name, "CPUs %v are for housekeeping", house)
	}
	if limits := c.spec.Limits.CPUs; !limits.IsEmpty() && !cpus.SubsetOf(limits) {
		c.fail(RuleCPUs, name, "CPUs %v are outside the limits", cpus.Minus(limits))
	}
	if theirs := cpus.Intersect(c.taken); !theirs.IsEmpty() {
		c.fail(RuleExclusive, name, "CPUs %v are dedicated to other VMs", theirs)
	}
}

// onItsNodes: a vCPU runs on the nodes of its cell's memory, unless one of
// these has no CPUs, or it runs on a node that has no memory.
func (c *checker) onItsNodes(name string, v guest.VCPU) {
	cell, ok := c.placed.CellOf(v.ID)
	if !ok {
		return // reported by shape
	}
	home := cell.Nodes
	for id := range c.topology.NodesOf(v.CPUs).All() {
		if n, _ := c.topology.Node(id); !home.Contains(id) && n.Memory > 0 && !c.cpuless(home) {
			c.fail(RuleCPUs, name, "may run on node %d, but its memory is on nodes %v", id, home)
		}
		if limits := c.spec.Limits.Nodes; !limits.IsEmpty() && !limits.Contains(id) {
			c.fail(RuleCPUs, name, "may run on node %d, outside the limits %v", id, limits)
		}
	}
}

func (c *checker) cpuless(nodes topology.NodeSet) bool {
	for id := range nodes.All() {
		if n, ok := c.topology.Node(id); ok && n.CPUs.IsEmpty() {
			return true
		}
	}
	return false
}

// enough: a guest has no more vCPUs on a node than CPUs that it may use there.
func (c *checker) enough() {
	for _, r := range c.placed.Reservations {
		n, ok := c.topology.Node(r.Node)
		if !ok || r.VCPUs == 0 {
			continue
		}
		usable := n.CPUs.Minus(c.housekeeping).Minus(c.taken)
		if limits := c.spec.Limits.CPUs; !limits.IsEmpty() {
			usable = usable.Intersect(limits)
		}
		if c.placed.CPUMode != guest.CPUExclusive {
			usable = usable.Minus(c.mine)
		}
		if r.VCPUs > usable.Len() {
			c.fail(RuleCPUs, node(r.Node), "has %d vCPUs on %d usable CPUs", r.VCPUs, usable.Len())
		}
	}
}

// exclusive: each vCPU has one CPU of its own, which is reserved and which no
// other guest uses.
func (c *checker) exclusive() {
	if c.mine.Intersects(c.taken) {
		c.fail(RuleExclusive, "guest", "CPUs %v are dedicated to other VMs", c.mine.Intersect(c.taken))
	}
	if c.mine.Intersects(c.pinned) {
		c.fail(RuleExclusive, "guest", "CPUs %v run vCPUs of other VMs that are pinned to them",
			c.mine.Intersect(c.pinned))
	}
	if c.mine.Intersects(c.housekeeping) {
		c.fail(RuleExclusive, "guest", "CPUs %v are for housekeeping", c.mine.Intersect(c.housekeeping))
	}
	var used topology.CPUSet
	for _, v := range c.placed.VCPUs {
		name := fmt.Sprintf("vCPU %d", v.ID)
		if c.placed.CPUMode != guest.CPUExclusive {
			if v.CPUs.Intersects(c.mine) {
				c.fail(RuleExclusive, name, "shares CPUs %v, which are dedicated to the emulator or an I/O thread",
					v.CPUs.Intersect(c.mine))
			}
			continue
		}
		switch {
		case v.CPUs.Len() != 1:
			c.fail(RuleExclusive, name, "has CPUs %q, not exactly one", v.CPUs)
		case used.Intersects(v.CPUs):
			c.fail(RuleExclusive, name, "has CPU %v of another vCPU", v.CPUs)
		case !v.CPUs.SubsetOf(c.mine):
			c.fail(RuleExclusive, name, "CPU %v is not reserved", v.CPUs)
		}
		used = used.Union(v.CPUs)
	}
	c.othersHaveEnough()
}

// othersHaveEnough: exclusive CPUs leave each managed VM that shares CPUs of the node one CPU for each of its vCPUs
// there: without them, the placement of that VM would break the rule of enough. A VM that has these CPUs already makes
// nothing worse.
func (c *checker) othersHaveEnough() {
	var had topology.CPUSet
	if g, ok := c.host.Guest(c.placed.Guest); ok && g.Placement != nil {
		had = g.Placement.Exclusive()
	}
	for _, n := range c.topology.Nodes {
		if c.mine.Intersect(n.CPUs).SubsetOf(had) {
			continue
		}
		shared := n.CPUs.Minus(c.housekeeping).Minus(c.taken).Minus(c.mine).Len()
		for _, o := range c.others {
			if o.Node == n.ID && o.Managed && o.VCPUs > float64(shared) {
				c.fail(RuleExclusive, "VM "+o.Name, "has %v vCPUs on node %d, where %d shared CPUs would be left",
					o.VCPUs, n.ID, shared)
			}
		}
	}
}

// smt: require and isolate reserve whole cores. isolate runs one vCPU on each
// core. require fills cores: at most one core of a node is filled in part, because
// the number of vCPUs need not be a multiple of the number of siblings.
func (c *checker) smt() {
	policy := c.spec.CPU.SMT
	if c.placed.CPUMode != guest.CPUExclusive || (policy != guest.SMTRequire && policy != guest.SMTIsolate) {
		return
	}
	var running topology.CPUSet // CPUs that run a vCPU
	for _, v := range c.placed.VCPUs {
		running = running.Union(v.CPUs)
	}
	partial := map[topology.NodeID]topology.CPUSet{} // the first CPU of each core that is filled in part
	for _, v := range c.placed.VCPUs {
		id, _ := v.CPUs.First()
		cpu, ok := c.topology.CPU(id)
		if !ok || v.CPUs.IsEmpty() {
			continue // reported by cpus
		}
		name := fmt.Sprintf("vCPU %d", v.ID)
		if !cpu.Siblings.SubsetOf(c.mine) {
			c.fail(RuleSMT, name, "not all siblings %v of its CPU are reserved", cpu.Siblings)
		}
		if policy == guest.SMTIsolate && cpu.Siblings.Intersect(running).Len() > 1 {
			c.fail(RuleSMT, name, "shares its core with another vCPU")
		}
		if first, ok := cpu.Siblings.First(); ok && !cpu.Siblings.SubsetOf(running) {
			partial[cpu.Node] = partial[cpu.Node].With(first)
		}
	}
	for _, n := range c.topology.Nodes {
		if cores := partial[n.ID].Len(); policy == guest.SMTRequire && cores > 1 {
			c.fail(RuleSMT, node(n.ID), "%d cores run fewer vCPUs than they have siblings", cores)
		}
	}
}

// overcommit: the vCPUs of all guests that share a node's CPUs, per shared CPU,
// do not exceed the policy's limit.
func (c *checker) overcommit() {
	const slack = 1e-6 // tolerance for rounding errors in sums of shares
	for _, n := range c.topology.Nodes {
		load := 0.0
		for _, o := range c.others {
			if o.Node == n.ID {
				load += o.VCPUs
			}
		}
		own := 0
		for _, r := range c.placed.Reservations {
			if r.Node == n.ID {
				own += r.VCPUs + r.Exclusive.Len()
				if c.placed.CPUMode != guest.CPUExclusive {
					load += float64(r.VCPUs)
				}
			}
		}
		shared := n.CPUs.Minus(c.housekeeping).Minus(c.taken).Minus(c.mine).Len()
		if own > 0 && load > c.policy.Overcommit*float64(shared)+slack {
			c.fail(RuleOvercommit, node(n.ID), "has %.4g vCPUs on %d shared CPUs; the limit is %v for each CPU",
				load, shared, c.policy.Overcommit)
		}
	}
}

// helpers: emulator and I/O threads are bound as their policies say.
func (c *checker) helpers() {
	c.helper("emulator", c.placed.Emulator, c.spec.CPU.Emulator, 1)
	if c.spec.CPU.IOThreads > 0 {
		c.helper("I/O threads", c.placed.IOThread, c.spec.CPU.IOPolicy, c.spec.CPU.IOThreads)
	} else if !c.placed.IOThread.IsEmpty() {
		c.fail(RuleHelpers, "I/O threads", "are bound to CPUs %v, but the VM has none", c.placed.IOThread)
	}
}

func (c *checker) helper(name string, cpus topology.CPUSet, policy guest.HelperPolicy, count int) {
	if c.placed.Handoff != nil && policy != guest.HelperNone {
		c.handoffHelper(name, cpus)
		return
	}
	if policy == guest.HelperNone {
		if !cpus.IsEmpty() {
			c.fail(RuleHelpers, name, "bound to CPUs %v; the spec requests no binding", cpus)
		}
		return
	}
	if cpus.IsEmpty() {
		c.fail(RuleHelpers, name, "no CPU")
		return
	}
	if policy == guest.HelperHousekeeping {
		if keep := c.topology.Housekeeping.Union(c.policy.Housekeeping); !cpus.SubsetOf(keep) {
			c.fail(RuleHelpers, name, "CPUs %v are not for housekeeping", cpus.Minus(keep))
		}
		return
	}
	c.cpuSet(name, cpus, c.topology.CPUSet())
	if !c.topology.NodesOf(cpus).SubsetOf(c.used()) {
		c.fail(RuleHelpers, name, "CPUs %v are outside the VM's nodes %v", cpus, c.used())
	}
	var vcpus topology.CPUSet
	for _, v := range c.placed.VCPUs {
		vcpus = vcpus.Union(v.CPUs)
	}
	switch {
	case policy == guest.HelperExclusive && cpus.Len() != count:
		c.fail(RuleHelpers, name, "%d dedicated CPUs; the spec requests %d", cpus.Len(), count)
	case policy == guest.HelperExclusive && (!cpus.SubsetOf(c.mine) || cpus.Intersects(vcpus)):
		c.fail(RuleHelpers, name, "CPUs %v are not dedicated", cpus)
	case policy != guest.HelperExclusive && cpus.Intersects(c.mine) && !cpus.SubsetOf(vcpus):
		c.fail(RuleHelpers, name, "CPUs %v are reserved for vCPUs", cpus.Intersect(c.mine))
	}
}
