package drift

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// vcpus checks that each vCPU may run on exactly its assigned CPUs, as far as they
// are online. If none of them is online, the kernel lets the vCPU run anywhere. The daemon may have bound a divisible
// vCPU to its assigned CPUs of one node.
func (c *comparison) vcpus() {
	if c.placed.CPUMode == guest.CPUNone {
		return
	}
	if c.placed.CPUMode == guest.CPUHandoff {
		c.mirror()
		return
	}
	divisible := c.placed.Divisible()
	for _, v := range c.placed.VCPUs {
		intended := c.online(v.CPUs)
		for _, thread := range c.guest.Seen.Threads {
			if thread.VCPU == nil || *thread.VCPU != v.ID || thread.Affinity.IsEmpty() || v.CPUs.IsEmpty() {
				continue
			}
			object, seen := fmt.Sprintf("vCPU %d", v.ID), c.online(thread.Affinity)
			switch {
			case intended.IsEmpty():
				c.add(CPUsOffline, object, v.CPUs.String(), seen.String())
			case divisible.Contains(v.ID) && c.ofOneNode(seen, intended):
			case !seen.Equal(intended):
				c.add(VCPUAffinity, object, intended.String(), seen.String())
			}
		}
	}
}

// ofOneNode reports whether CPUs are all those of some node among others.
func (c *comparison) ofOneNode(cpus, among topology.CPUSet) bool {
	for i := range c.topology.Nodes {
		if own := c.topology.Nodes[i].CPUs.Intersect(among); !own.IsEmpty() && own.Equal(cpus) {
			return true
		}
	}
	return false
}

// mirror checks that the vCPUs of a guest that hands CPUs over run on CPUs that it
// mirrors: each on its own, or on CPUs that the guest has meanwhile.
func (c *comparison) mirror() {
	var all topology.CPUSet
	for _, v := range c.placed.VCPUs {
		all = all.Union(v.CPUs)
	}
	for _, thread := range c.guest.Seen.Threads {
		if seen := c.online(thread.Affinity); thread.VCPU != nil && !seen.SubsetOf(all) {
			c.add(VCPUAffinity, fmt.Sprintf("vCPU %d", *thread.VCPU), all.String(), seen.String())
		}
	}
}

// online drops offline CPUs: the kernel removes them from a thread's allowed CPUs,
// and lists them again once they are back online.
func (c *comparison) online(cpus topology.CPUSet) topology.CPUSet {
	if all := c.topology.CPUSet(); !all.IsEmpty() {
		return cpus.Intersect(all)
	}
	return cpus
}

// helpers may run on fewer CPUs than intended, but not on others. vhost workers
// belong to the emulator: they copy between its queues and guest memory.
func (c *comparison) helpers() {
	c.helper(EmulatorAffinity, "emulator", c.placed.Emulator, inventory.RoleEmulator)
	c.helper(EmulatorAffinity, "vhost", c.placed.Emulator, inventory.RoleVhost)
	c.helper(IOThreadAffinity, "I/O", c.placed.IOThread, inventory.RoleIOThread)
}

func (c *comparison) helper(kind, name string, intended topology.CPUSet, role inventory.ThreadRole) {
	var seen topology.CPUSet
	for _, thread := range c.guest.Seen.Threads {
		if thread.Role == role {
			seen = seen.Union(c.online(thread.Affinity))
		}
	}
	online := c.online(intended)
	switch {
	case intended.IsEmpty() || seen.IsEmpty():
	case online.IsEmpty():
		c.add(CPUsOffline, name+" threads", intended.String(), seen.String())
	case !seen.SubsetOf(online):
		c.add(kind, name+" threads", online.String(), seen.String())
	}
}
