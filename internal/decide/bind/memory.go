package bind

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// takesNodeset reports whether the hypervisor accepts a new nodeset for the running
// guest: libvirt accepts one in mode restrictive, or without any numatune.
func (b *builder) takesNodeset() bool {
	tune := b.Guest.Config.NUMATune
	return b.Guest.Can.LiveNodeset &&
		(tune == nil || tune.Mode == "restrictive" || (tune.Mode == "" && len(tune.Cells) == 0))
}

// limited reports whether the placement restricts the guest to its nodes at all.
func (b *builder) limited() bool { return b.Placement.MemoryMode != guest.MemoryNone }

func (b *builder) growPools() {
	need := map[topology.NodeID]map[topology.Bytes]topology.Bytes{}
	for _, r := range b.Guest.Seen.Ranges {
		if r.PageSize < topology.GiB || b.pinnedByDevice() {
			continue // the kernel allocates new small huge pages when the pool has too few
		}
		if first, ok := b.targetOf(r).First(); ok {
			if need[first] == nil {
				need[first] = map[topology.Bytes]topology.Bytes{}
			}
			need[first][r.PageSize] += b.misplaced(r)
		}
	}
	for _, n := range b.Topology.Nodes {
		for size, bytes := range need[n.ID] {
			if short := int64(bytes/size) - int64(freePages(n, size)); short > 0 {
				b.add(
					plan.Step{
						Kind:     plan.GrowPool,
						Node:     n.ID,
						PageSize: size,
						Pages:    uint64(short),
						Why:      "pages of this size move only into free pages of the target's pool",
					},
				)
			}
		}
	}
}

func freePages(n topology.Node, size topology.Bytes) uint64 {
	for _, p := range n.HugePages {
		if p.Size == size {
			return p.Free
		}
	}
	return 0
}

// widen allows the target nodes before the executor copies memory there. A write
// to cpuset.mems that widens walks no pages and copies none.
func (b *builder) widen() {
	if b.Placement.Nodes.SubsetOf(b.current) || b.Placement.Nodes.IsEmpty() {
		return
	}
	both := b.current.Union(b.Placement.Nodes)
	why := fmt.Sprintf("move_pages obeys the VM's cpuset, which allows nodes %s only; widening copies nothing",
		b.current)
	if b.takesNodeset() {
		b.add(plan.Step{Kind: plan.TuneLive, Mode: guest.MemoryRestrictive, Nodes: both, Why: why})
	} else {
		b.add(plan.Step{Kind: plan.AllowNodes, Nodes: both, Why: why})
	}
}

// targetOf returns the intended nodes of a mapping: its cell's, else the guest's.
func (b *builder) targetOf(r inventory.MemoryRange) topology.NodeSet {
	if r.Cell != nil {
		for _, c := range b.Placement.Cells {
			if c.ID == *r.Cell {
				return c.Nodes
			}
		}
	}
	return b.Placement.Nodes
}

// misplaced counts the bytes of a mapping that are outside the intended nodes.
// Interleaved memory is also misplaced where a node holds more than its equal part.
func (b *builder) misplaced(r inventory.MemoryRange) topology.Bytes {
	target := b.targetOf(r)
	var outside, total, excess topology.Bytes
	for node, bytes := range r.ByNode {
		total += bytes
		if !target.Contains(node) {
			outside += bytes
		}
	}
	if b.Placement.MemoryMode == guest.MemoryInterleave && target.Len() > 1 {
		part := total / topology.Bytes(target.Len())
		for node, bytes := range r.ByNode {
			if tolerated := part + part/50 + r.PageSize; target.Contains(node) && bytes > tolerated {
				excess += bytes - part
			}
		}
	}
	return outside + excess
}

// setPolicies changes the policy of memfd memory from outside, so that pages
// touched from now on are allocated on the nodes of the placement.
func (b *builder) setPolicies() {
	for _, r := range b.Guest.Seen.Ranges {
		if r.Cell == nil || r.Backing != "memfd" || r.PageSize > 64*topology.KiB {
			continue
		}
		want, nodes := b.Placement.MemoryMode, b.targetOf(r)
		if !PolicyIs(r.Policy, want, nodes) {
			b.add(
				plan.Step{
					Kind:    plan.SetPolicy,
					Address: r.Address,
					Size:    r.Size,
					File:    r.File,
					Mode:    want,
					Nodes:   nodes,
					Why: fmt.Sprintf(
						"policy is %s; memfd memory takes a new one from outside, for pages not touched yet", r.Policy),
				},
			)
		}
	}
}

// strayOwn is the amount of a VM process's own memory that may be on other nodes
// before a move pays: the kernel always uses a few pages.
const strayOwn = topology.MiB

func (b *builder) moveMemory() {
	if !b.limited() {
		return
	}
	if !b.Guest.Can.MoveMemory {
		b.reportImmovable()
		return
	}
	own := plan.Step{
		Kind:  plan.MoveOwn,
		Nodes: b.Placement.Nodes,
		Mode:  b.Placement.MemoryMode,
		Why:   "heap, stacks and device buffers of the process belong near its threads",
	}
	for _, r := range b.Guest.Seen.Ranges {
		bytes := b.misplaced(r)
		switch {
		case bytes == 0:
		case r.Cell == nil:
			own.Bytes += bytes
			own.Parts = append(own.Parts, plan.Part{Address: r.Address, Size: r.Size, PageSize: r.PageSize})
		case b.pinnedByDevice():
			b.refuse(
				fmt.Sprintf("%v of memory at %#x", bytes, r.Address),
				"a device (%s) is assigned by vfio, which pins all memory of the VM; detach it, bind, attach it "+
					"again, or restart the VM",
				b.Guest.Config.Devices[0],
			)
		default:
			b.add(
				plan.Step{
					Kind:     plan.MoveRange,
					Address:  r.Address,
					Size:     r.Size,
					PageSize: r.PageSize,
					Bytes:    bytes,
					Nodes:    b.targetOf(r),
					Mode:     b.Placement.MemoryMode,
					Why:      fmt.Sprintf("%v %s", r.Backing, locationText(r)),
				},
			)
		}
	}
	if own.Bytes > strayOwn {
		b.add(own)
	}
}

func locationText(r inventory.MemoryRange) string {
	nodes := make([]topology.NodeID, 0, len(r.ByNode))
	for n := range r.ByNode {
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	text := "memory is on"
	for _, n := range nodes {
		text += fmt.Sprintf(" node %d: %v", n, r.ByNode[n])
	}
	return text
}

// outside returns how much of the guest's memory is on other nodes than those of the placement, and on which.
func (b *builder) outside() (outside topology.Bytes, on topology.NodeSet) {
	for node, bytes := range b.Guest.Seen.MemoryByNode {
		if !b.Placement.Nodes.Contains(node) && bytes > 0 {
			outside = outside.Plus(bytes)
			on = on.With(node)
		}
	}
	return outside, on
}

// reportImmovable reports memory on other nodes of a guest whose hypervisor does not move it, or
// makes the guest again.
func (b *builder) reportImmovable() {
	outside, on := b.outside()
	switch {
	case outside <= strayOwn:
	case b.recreates():
		b.add(plan.Step{Kind: plan.Recreate, Price: b.recreationPrice(),
			Bytes: b.Guest.Seen.MemoryByNode.Total(), Nodes: b.Placement.Nodes,
			Definition: b.Definition, Why: fmt.Sprintf("the hypervisor moves no memory of a running VM: the VM is "+
				"made again on this host and takes over; it pauses while the last pages are copied, and %v of memory "+
				"are needed a second time until then", b.Guest.Seen.MemoryByNode.Total())})
	case b.Recreate:
		b.refuse(fmt.Sprintf("%v of memory on nodes %s", outside, on), "%s", b.notRecreated())
	default:
		b.refuse(fmt.Sprintf("%v of memory on nodes %s", outside, on), "the hypervisor %s does not move the memory of "+
			"a running VM; create the VM again, or let bind make it again on this host (--recreate)",
			b.Guest.Hypervisor)
	}
}

// recreationPrice is what making the guest again takes; nil: not known.
func (b *builder) recreationPrice() *plan.Recreation {
	if b.RecreateRate == 0 {
		return nil
	}
	price := plan.NewRecreation(b.Guest.Seen.MemoryByNode.Total(), b.RecreateRate, b.RecreateRateFrom)
	return &price
}

// recreates reports whether the guest is made again to move its memory.
func (b *builder) recreates() bool {
	outside, _ := b.outside()
	return b.Recreate && !b.Guest.Can.MoveMemory && b.limited() && outside > strayOwn && b.notRecreated() == ""
}

// notRecreated says why the guest cannot be made again on this host; "": it can.
func (b *builder) notRecreated() string {
	switch {
	case !b.Guest.Can.Recreate:
		return "its hypervisor cannot make a running VM again on the same host"
	case len(b.Guest.Config.Cells) > 0:
		return "a VM with virtual NUMA nodes cannot be migrated, nor be made again on this host; create it again"
	case b.pinnedByDevice():
		return fmt.Sprintf("a device (%s) is assigned, so the VM cannot be migrated, nor be made again on this host; "+
			"detach it first", b.Guest.Config.Devices[0])
	case b.Guest.State != "running":
		return "the VM is " + b.Guest.State + "; resume it first"
	}
	for _, r := range b.Placement.Reservations {
		if n, ok := b.Topology.Node(r.Node); ok && n.Free < r.Memory {
			return fmt.Sprintf("node %d has %v free, and the VM needs %v there while both of its copies exist; free "+
				"memory there, or name other nodes", r.Node, n.Free, r.Memory)
		}
	}
	return ""
}

func (b *builder) pinnedByDevice() bool { return len(b.Guest.Config.Devices) > 0 }

// hold restricts the guest to its nodes once its memory is there. It also reports
// the outcome for policies that cannot be set from outside.
func (b *builder) hold() {
	if !b.limited() || b.Placement.Nodes.IsEmpty() || !b.Guest.Can.MoveMemory {
		return
	}
	allowed := b.current.Union(b.Placement.Nodes)
	if b.takesNodeset() {
		tune := b.Guest.Config.NUMATune
		if allowed.Equal(b.Placement.Nodes) && tune != nil && tune.Nodes.Equal(b.Placement.Nodes) {
			b.reportPolicies(allowed)
			return
		}
		b.add(
			plan.Step{
				Kind:  plan.TuneLive,
				Mode:  guest.MemoryRestrictive,
				Nodes: b.Placement.Nodes,
				Why: "the VM as a whole stays within its nodes; its pages are there already, so this copies " +
					"nothing",
			},
		)
	} else if !allowed.Equal(b.Placement.Nodes) {
		b.add(plan.Step{Kind: plan.HoldNodes, Nodes: b.Placement.Nodes, Why: "the VM as a whole stays within " +
			"its nodes; its pages are there already, so this copies nothing"})
	}
	b.reportPolicies(allowed)
}

// reportPolicies names each mapping whose policy will differ from the intended one
// after all cpuset writes: only the policy of memfd memory can be changed from outside.
func (b *builder) reportPolicies(allowed topology.NodeSet) {
	for _, r := range b.Guest.Seen.Ranges {
		if r.Cell == nil || (r.Backing == "memfd" && r.PageSize <= 64*topology.KiB) {
			continue
		}
		mode, nodes := SplitPolicy(r.Policy)
		if rebinds(mode) {
			nodes = Rebind(Rebind(nodes, b.current, allowed), allowed, b.Placement.Nodes)
		}
		target := b.targetOf(r)
		after := mode
		if !nodes.IsEmpty() {
			after += ":" + nodes.String()
		}
		if PolicyIs(after, b.Placement.MemoryMode, target) || b.limitIsEnough(target) {
			continue
		}
		b.refuse(
			fmt.Sprintf("memory policy of cell %d (%s)", *r.Cell, b.Placement.MemoryMode),
			"%s memory takes no policy from outside: it stays %q; pages it has are on nodes %s, pages touched "+
				"later go by that policy within nodes %s; restart the VM to apply the new one",
			r.Backing,
			after,
			target,
			b.Placement.Nodes,
		)
	}
}

// limitIsEnough reports whether the cpuset alone has the effect of the policy: one
// node for all memory, preferred or mandatory.
func (b *builder) limitIsEnough(target topology.NodeSet) bool {
	return b.Placement.Nodes.Len() == 1 && target.Equal(b.Placement.Nodes)
}
