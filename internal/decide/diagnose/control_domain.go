package diagnose

import "fmt"

// controlDomainUnlimited: dom0 serves the disks and networks of the VMs. With a vCPU for each CPU of the host it
// runs on all nodes and takes CPU time from every VM.
func controlDomainUnlimited(v *view) []Finding {
	c := v.host.ControlDomain
	if c == nil || c.VCPUs < v.topology.CPUSet().Len() {
		return nil
	}
	return []Finding{{Severity: Warning, Object: "host",
		Evidence: []string{fmt.Sprintf("dom0 has %d vCPUs, on CPUs %s (xl vcpu-list); the host has %d CPUs", c.VCPUs,
			c.CPUs, v.topology.CPUSet().Len())},
		Effect: "dom0 runs on the CPUs of all nodes, where it delays vCPUs of VMs, and copies their data across nodes",
		Fix: "boot Xen with dom0_max_vcpus=N, with N CPUs of the node of the disks and network cards; until then " +
			"'xl vcpu-set 0 N'"}}
}

// controlDomainUnpinned: dom0 may run on several nodes though the CPUs of one are enough for it.
func controlDomainUnpinned(v *view) []Finding {
	c := v.host.ControlDomain
	if c == nil || c.VCPUs >= v.topology.CPUSet().Len() || v.topology.NodesOf(c.CPUs).Len() < 2 {
		return nil
	}
	for i := range v.topology.Nodes {
		if n := &v.topology.Nodes[i]; n.CPUs.Len() >= c.VCPUs {
			return []Finding{{Severity: Info, Object: "host",
				Evidence: []string{fmt.Sprintf("the %d vCPUs of dom0 may run on CPUs %s, nodes %s (xl vcpu-list)",
					c.VCPUs, c.CPUs, v.topology.NodesOf(c.CPUs))},
				Effect: "dom0's vCPUs move between nodes, away from its memory and from the devices that it serves",
				Fix: "pin dom0 to the CPUs of the node of the disks and network cards, or boot Xen with " +
					"dom0_vcpus_pin",
				Command: fmt.Sprintf("xl vcpu-pin 0 all %s", n.CPUs)}}
		}
	}
	return nil
}

// controlDomainBalloons: the memory that dom0 gives up comes from any node, so that a new VM has room on other
// nodes than those that were chosen.
func controlDomainBalloons(v *view) []Finding {
	c := v.host.ControlDomain
	if c == nil || !c.Balloons {
		return nil
	}
	return []Finding{{Severity: Warning, Object: "host",
		Evidence: []string{fmt.Sprintf("dom0 has %v, and xl takes memory from it for a new VM (autoballoon in "+
			"/etc/xen/xl.conf; no dom0_mem in xen_commandline of xl info)", c.Memory)},
		Effect: "free memory is on no node until dom0 gives some up, and then on any node: VMs get memory on other " +
			"nodes than those of their CPUs",
		Fix: "boot Xen with dom0_mem=SIZE,max:SIZE, and set autoballoon=\"off\" in /etc/xen/xl.conf"}}
}

// claimsOff: without a claim, two VMs that are created at the same time take each other's memory.
func claimsOff(v *view) []Finding {
	c := v.host.ControlDomain
	if c == nil || !c.ClaimsOff {
		return nil
	}
	return []Finding{{Severity: Info, Object: "host", Evidence: []string{"claim_mode=0 (/etc/xen/xl.conf)"},
		Effect: "Xen reserves no memory before it builds a VM: VMs that are created at the same time fail late, or " +
			"get memory on other nodes",
		Fix: "set claim_mode=1 in /etc/xen/xl.conf"}}
}
