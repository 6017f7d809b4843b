package diagnose

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// view is a host with facts that several rules need.
type view struct {
	host        *inventory.Host
	policy      policy.Policy
	topology    *topology.Topology
	memoryNodes topology.NodeSet
	guests      []*subject                 // running or paused
	stored      []*subject                 // shut off: only their configuration is known
	leaving     map[string]topology.CPUSet // see displaced; nil: not computed yet
}

// subject is a guest with the limits on its CPUs and memory.
type subject struct {
	*inventory.Guest
	mems          topology.NodeSet // nodes from which its threads may allocate (cpuset.mems); empty: not observed
	vcpus         topology.CPUSet  // CPUs on which its vCPUs may run: observed, else configured; empty: all
	memory        topology.Bytes   // observed, on all nodes
	bound         bool             // its memory, or the memory of its cells, is restricted to nodes
	cpuRestricted bool             // its vCPUs may not run on every node
	busy          *inventory.Claim // says that it is being bound or moved; nil: it is not
}

func newView(host *inventory.Host) *view {
	h := *host
	h.Topology = possible(h.Topology)
	v := &view{host: &h, topology: &h.Topology, memoryNodes: h.Topology.MemoryNodes()}
	for i := range h.Guests {
		s := v.subject(&h.Guests[i])
		if s.State == "shutoff" {
			v.stored = append(v.stored, s)
			continue
		}
		v.guests = append(v.guests, s)
	}
	return v
}

// maxID is the greatest id that a set can contain.
const maxID = 1<<16 - 1

// possible removes nodes and CPUs with invalid ids, which an inventory from a
// file may contain.
func possible(t topology.Topology) topology.Topology {
	t.Nodes = slices.DeleteFunc(slices.Clone(t.Nodes), func(n topology.Node) bool { return n.ID < 0 || n.ID > maxID })
	t.CPUs = slices.DeleteFunc(slices.Clone(t.CPUs), func(c topology.CPU) bool { return c.ID < 0 || c.ID > maxID })
	return t
}

func (v *view) subject(g *inventory.Guest) *subject {
	s := &subject{Guest: g}
	s.busy, _ = v.host.Claim(g.Name)
	for _, t := range g.Seen.Threads {
		if t.Role != inventory.RoleVhost { // kernel threads in no cgroup of the guest before Linux 6.4
			s.mems = s.mems.Union(t.Mems)
		}
		if t.VCPU != nil {
			s.vcpus = s.vcpus.Union(t.Affinity)
		}
	}
	if s.vcpus.IsEmpty() && len(g.Config.Pins) >= g.Config.VCPUs {
		for _, pin := range g.Config.Pins {
			s.vcpus = s.vcpus.Union(pin)
		}
	}
	for _, bytes := range g.Seen.MemoryByNode {
		s.memory += bytes
	}
	all := v.topology.NodesOf(v.topology.CPUSet())
	s.cpuRestricted = !s.vcpus.IsEmpty() && !all.SubsetOf(v.topology.NodesOf(s.vcpus))
	narrow := !s.mems.IsEmpty() && !v.memoryNodes.SubsetOf(s.mems)
	s.bound = narrow || tuned(g.Config.NUMATune) || g.Placement != nil && g.Placement.MemoryMode != guest.MemoryNone
	return s
}

// tuned reports whether the configuration gives libvirt nodes, or has it ask
// numad for them.
func tuned(t *inventory.NUMATune) bool {
	return t != nil && (!t.Nodes.IsEmpty() || t.Auto || len(t.Cells) > 0)
}

// limited returns the cgroup above the guest that keeps it from using nodes; nil if none does.
func (s *subject) limited(nodes topology.NodeSet) *inventory.NodeLimitError {
	var limit *inventory.NodeLimitError
	errors.As(s.CheckNodes(nodes), &limit)
	return limit
}

// pinned reports whether assigned devices pin the guest's memory, so that it
// cannot move.
func (s *subject) pinned() bool { return len(s.Config.Devices) > 0 }

// home returns the nodes to which a guest is restricted: those of its vCPUs, else
// those of its memory; empty if it is not restricted.
func (v *view) home(s *subject) topology.NodeSet {
	if s.cpuRestricted {
		return v.topology.NodesOf(s.vcpus)
	}
	if s.bound && !v.memoryNodes.SubsetOf(s.mems) {
		return s.mems.Intersect(v.topology.NodeSet())
	}
	return topology.NodeSet{}
}

// memoryHome returns the nodes that have more than a tenth of a guest's memory.
func (v *view) memoryHome(s *subject) topology.NodeSet {
	var ids []topology.NodeID
	for _, n := range v.topology.Nodes {
		if s.Seen.MemoryByNode[n.ID] > s.memory/10 {
			ids = append(ids, n.ID)
		}
	}
	return topology.SetOf(ids...)
}

func (s *subject) object() string { return "guest " + s.Name }

// memoryEvidence gives the guest's memory by node, with its source.
func (s *subject) memoryEvidence() string {
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(s.Seen.MemoryByNode)) {
		if bytes := s.Seen.MemoryByNode[node]; bytes > 0 {
			parts = append(parts, fmt.Sprintf("node %d: %v", node, bytes))
		}
	}
	if len(parts) == 0 {
		return "memory by node not observed"
	}
	return fmt.Sprintf("memory on %s (%s)", strings.Join(parts, ", "), orUnknown(s.Seen.MemorySource))
}

func (v *view) vcpuEvidence(s *subject) string {
	source := orUnknown(s.Seen.ThreadSource)
	if len(s.Seen.Threads) == 0 {
		source = "configuration"
	}
	return fmt.Sprintf("vCPUs may run on CPUs %s, nodes %s (%s)", s.vcpus, v.topology.NodesOf(s.vcpus), source)
}

func orUnknown(source string) string {
	if source == "" {
		return "source not recorded"
	}
	return source
}

// binding completes a finding whose fix is to bind the guest. Memory pinned by
// devices cannot move until the guest restarts.
func (s *subject) binding(f Finding) Finding {
	f.Object = s.object()
	switch {
	case s.State == "shutoff":
		f.Fix, f.Command = "bind the VM's configuration before its next start", s.rewriteCommand("")
		return f
	case !s.Can.MoveMemory:
		f.Fix = fmt.Sprintf("recreate the VM on the right nodes: %v cannot move the memory of a running VM",
			s.Hypervisor)
		return f
	case !s.Can.StoreIntent && !s.pinned():
		f.Fix, f.Command = "bind the process; it keeps running", fmt.Sprintf("numavisor bind --pid %d", s.PID)
		return f
	}
	if s.pinned() {
		f.Fix = "shut the VM down, bind its configuration and start it: a device assigned by vfio pins its memory, " +
			"which cannot move while it runs"
		f.Command = s.rewriteCommand("")
		return f
	}
	f.Fix = "bind the VM to nodes; it keeps running"
	f.Command = "numavisor bind " + text.ShellWord(s.Name)
	f.Action = &plan.Remedy{Kind: plan.BindGuest, Guest: s.Name}
	// Moving 1 GiB pages needs free ones on the target. Growing the pool there takes memory from others.
	// Numavisor does not move unmanaged guests without confirmation.
	f.Safe = s.Placement != nil && s.Config.PageSize < topology.GiB
	return f
}

// rewriteCommand returns the command that changes the stored configuration for the
// guest's next start. A guest without a memory policy is adopted as restrictive,
// which cannot place cells, so a guest with cells needs an explicit mode.
func (s *subject) rewriteCommand(flags string) string {
	name := text.ShellWord(s.Name)
	if len(s.Config.Cells) > 1 && !tuned(s.Config.NUMATune) && !strings.Contains(flags, "--memory-binding") {
		flags += " --memory-binding preferred"
	}
	return fmt.Sprintf(
		"virsh dumpxml %s --inactive --security-info | numavisor place --xml -%s > bound.xml && virsh define bound.xml",
		name, flags)
}
