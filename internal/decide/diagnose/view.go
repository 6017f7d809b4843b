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
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// view is a host with what several rules ask about it.
type view struct {
	host        *inventory.Host
	topology    *topology.Topology
	memoryNodes topology.NodeSet
	guests      []*subject // not shut off
	stored      []*subject // shut off: only their configuration can be judged
}

// subject is a guest that is there, and what holds it.
type subject struct {
	*inventory.Guest
	mems    topology.NodeSet // where its threads may take memory from, by the kernel; empty: not seen
	vcpus   topology.CPUSet  // where its vCPUs may run: seen, else configured; empty: anywhere
	memory  topology.Bytes   // seen, on all nodes
	bound   bool             // something holds its memory to nodes, or its cells to their nodes
	cpuHeld bool             // its vCPUs may not run on every node
	busy    *inventory.Claim // says that it is being bound or moved; nil: it is not
}

func look(host *inventory.Host) *view {
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

// maxID is the greatest id that sets hold.
const maxID = 1<<16 - 1

// possible leaves out nodes and CPUs with ids that no kernel gives: an
// inventory from a file may hold anything.
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
	s.cpuHeld = !s.vcpus.IsEmpty() && !all.SubsetOf(v.topology.NodesOf(s.vcpus))
	narrow := !s.mems.IsEmpty() && !v.memoryNodes.SubsetOf(s.mems)
	s.bound = narrow || tuned(g.Config.NUMATune) || g.Placement != nil && g.Placement.MemoryMode != guest.MemoryNone
	return s
}

// tuned reports whether libvirt was told nodes, or asks numad for them.
func tuned(t *inventory.NUMATune) bool {
	return t != nil && (!t.Nodes.IsEmpty() || t.Auto || len(t.Cells) > 0)
}

// limited returns the cgroup above the guest that keeps it from using nodes; nil if none does.
func (s *subject) limited(nodes topology.NodeSet) *inventory.NodeLimitError {
	var limit *inventory.NodeLimitError
	errors.As(s.CheckNodes(nodes), &limit)
	return limit
}

// pinned reports whether devices pin the guest's memory, so that it cannot move.
func (s *subject) pinned() bool { return len(s.Config.Devices) > 0 }

// home is where a guest is held: its vCPUs' nodes, else its memory's limit;
// empty if it is held to nothing.
func (v *view) home(s *subject) topology.NodeSet {
	if s.cpuHeld {
		return v.topology.NodesOf(s.vcpus)
	}
	if s.bound && !v.memoryNodes.SubsetOf(s.mems) {
		return s.mems.Intersect(v.topology.NodeSet())
	}
	return topology.NodeSet{}
}

// memoryHome is where a guest's memory is: the nodes with more than a tenth of it.
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
		return "memory by node not seen"
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

// binding completes a finding that binding the guest repairs. Memory pinned by
// devices stays where it is until the guest starts anew.
func (s *subject) binding(f Finding) Finding {
	f.Object = s.object()
	switch {
	case s.State == "shutoff":
		f.Fix, f.Command = "bind the guest's configuration before it starts again", s.rewriteCommand("")
		return f
	case !s.Can.MoveMemory:
		f.Fix = fmt.Sprintf("create the guest anew on the right nodes: %v does not move the memory of a running guest",
			s.Hypervisor)
		return f
	case !s.Can.StoreIntent && !s.pinned():
		f.Fix, f.Command = "bind the process; it keeps running", fmt.Sprintf("numavisor bind --pid %d", s.PID)
		return f
	}
	if s.pinned() {
		f.Fix = "shut the guest down, bind its configuration, start it: a device assigned by vfio pins its memory, " +
			"which cannot move while it runs"
		f.Command = s.rewriteCommand("")
		return f
	}
	f.Fix = "bind the guest to nodes; it keeps running"
	f.Command = "numavisor bind " + text.ShellWord(s.Name)
	f.Action = &plan.Remedy{Kind: plan.BindGuest, Guest: s.Name}
	// 1 GiB pages need free ones on the target: the pools may have to be grown, which takes memory from others.
	// Guests that others placed are theirs to move.
	f.Safe = s.Placement != nil && s.Config.PageSize < topology.GiB
	return f
}

// rewriteCommand changes the stored configuration for the guest's next start.
// Guests without any policy are adopted as restrictive, which cannot place
// cells: those with cells need a mode.
func (s *subject) rewriteCommand(flags string) string {
	name := text.ShellWord(s.Name)
	if len(s.Config.Cells) > 1 && !tuned(s.Config.NUMATune) && !strings.Contains(flags, "--memory-binding") {
		flags += " --memory-binding preferred"
	}
	return fmt.Sprintf(
		"virsh dumpxml %s --inactive --security-info | numavisor place --xml -%s > bound.xml && virsh define bound.xml",
		name, flags)
}
