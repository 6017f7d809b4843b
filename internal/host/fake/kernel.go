package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// Topology returns nodes and CPUs, with present memory and pools.
func (h *Host) Topology() (t topology.Topology, err error) {
	err = h.call("Topology", func() error { t = h.seenTopology(); return nil })
	return t, err
}

// Settings returns the settings of a kernel that does not move memory by
// itself. It never fails.
func (h *Host) Settings() (inventory.Kernel, []inventory.Gap) {
	return inventory.Kernel{
		Release:              "6.12.0-fake",
		NUMABalancing:        "0",
		TransparentHugePages: "madvise",
		KSMRun:               "0",
		CgroupV2:             true,
	}, nil
}

// on runs a call on a process that must exist.
func (h *Host) on(method string, pid int, do func(*process) error) error {
	return h.call(method, func() error {
		p, err := h.process(pid)
		if err != nil {
			return err
		}
		return do(p)
	})
}

// Memory sums a guest's touched memory.
func (h *Host) Memory(g inventory.Guest) (byNode topology.MemoryByNode, source string, err error) {
	err = h.on("Memory", g.PID, func(p *process) error {
		byNode = topology.MemoryByNode{}
		for _, m := range p.mappings {
			for id, bytes := range m.ByNode {
				byNode[id] += bytes
			}
		}
		maps.DeleteFunc(byNode, func(_ topology.NodeID, b topology.Bytes) bool { return b == 0 })
		return nil
	})
	return byNode, "cgroup memory.numa_stat", err
}

// Threads lists a process's threads.
func (h *Host) Threads(pid int) (threads []inventory.Thread, source string, err error) {
	err = h.on("Threads", pid, func(p *process) error { threads = slices.Clone(p.threads); return nil })
	return threads, "/proc/PID/task/TID", err
}

// Throttled returns 0: the fake's guests have no quota.
func (h *Host) Throttled(pid int) (time.Duration, error) {
	return 0, h.on("Throttled", pid, func(*process) error { return nil })
}

// HintFaults returns nothing: the fake has no kernel balancing of its own.
func (h *Host) HintFaults(pid int) (inventory.HintFaults, error) {
	return inventory.HintFaults{}, h.on("HintFaults", pid, func(*process) error { return nil })
}

// Ranges lists a process's mappings, ascending by address.
func (h *Host) Ranges(ctx context.Context, pid int) (ranges []inventory.MemoryRange, err error) {
	err = h.on("Ranges", pid, func(p *process) error {
		for _, m := range slices.Backward(p.mappings) {
			ranges = append(ranges, m.seen())
		}
		return ctx.Err()
	})
	return ranges, err
}

// Cgroup names the group of a process.
func (h *Host) Cgroup(pid int) (path string, err error) {
	err = h.on("Cgroup", pid, func(p *process) error { path = p.cgroup; return nil })
	return path, err
}

// NodeLimits returns the limits that LimitNodes set above a process.
func (h *Host) NodeLimits(pid int) (limits []inventory.NodeLimit, err error) {
	err = h.on("NodeLimits", pid, func(p *process) error { limits = slices.Clone(p.limits); return nil })
	return limits, err
}

// StartTicks distinguishes processes with the same number.
func (h *Host) StartTicks(pid int) (ticks uint64, err error) {
	err = h.on("StartTicks", pid, func(p *process) error { ticks = p.ticks; return nil })
	return ticks, err
}

// SetMems writes the cpuset of all threads of a process. It refuses nodes that
// a group above does not allow.
func (h *Host) SetMems(ctx context.Context, pid int, nodes topology.NodeSet) error {
	return h.on("SetMems", pid, func(p *process) error {
		seen := inventory.Guest{Seen: inventory.Seen{NodeLimits: p.limits}}
		if err := errors.Join(ctx.Err(), seen.CheckNodes(nodes)); err != nil {
			return err
		}
		return h.setMems(p, nodes)
	})
}

func (h *Host) setMems(p *process, nodes topology.NodeSet) error {
	if nodes.IsEmpty() || !nodes.SubsetOf(h.topology.MemoryNodes()) {
		return fmt.Errorf("writing cpuset.mems %q of process %d: %w", nodes, p.pid, unix.EINVAL)
	}
	// The kernel accepts the value. In effect is its intersection with the
	// groups above; if that is empty, theirs.
	for _, l := range p.limits {
		if nodes = nodes.Intersect(l.Nodes); nodes.IsEmpty() {
			nodes = l.Nodes
		}
	}
	old := p.threads[0].Mems
	for i := range p.threads {
		p.threads[i].Mems = nodes
	}
	for _, m := range p.mappings {
		h.allow(m, old, nodes)
	}
	return nil
}

// pin restricts the threads that a filter selects to CPUs.
func (p *process) pin(which func(inventory.Thread) bool, cpus topology.CPUSet) {
	first, _ := cpus.First()
	for i := range p.threads {
		if which(p.threads[i]) {
			p.threads[i].Affinity, p.threads[i].LastCPU = cpus, first
		}
	}
}

// SetAffinity restricts one thread to CPUs.
func (h *Host) SetAffinity(tid int, cpus topology.CPUSet) error {
	return h.call("SetAffinity", func() error {
		if online := h.topology.CPUSet(); cpus.IsEmpty() || !cpus.SubsetOf(online) {
			return fmt.Errorf("binding thread %d to CPUs %q: %w", tid, cpus, unix.EINVAL)
		}
		for _, p := range h.processes() {
			if slices.ContainsFunc(p.threads, func(t inventory.Thread) bool { return t.TID == tid }) {
				p.pin(func(t inventory.Thread) bool { return t.TID == tid }, cpus)
				return nil
			}
		}
		return fmt.Errorf("binding thread %d: %w", tid, unix.ESRCH)
	})
}

// SetFilePolicy gives memfd memory a policy for pages not touched yet.
func (h *Host) SetFilePolicy(pid int, address uint64, mode guest.MemoryMode, nodes topology.NodeSet) error {
	return h.on("SetFilePolicy", pid, func(p *process) error {
		m, ok := p.at(address)
		switch {
		case !ok || m.Address != address:
			return fmt.Errorf("policy of process %d at %#x: no mapping starts there", pid, address)
		case m.Backing != "memfd":
			return fmt.Errorf("policy of process %d at %#x: %s memory accepts no policy from outside", pid, address,
				m.Backing)
		}
		m.Policy = policyText(mode, nodes)
		return nil
	})
}

// at is the mapping with an address.
func (p *process) at(address uint64) (*mapping, bool) {
	for _, m := range p.mappings {
		if address >= m.Address && address < m.Address+uint64(m.Size) {
			return m, true
		}
	}
	return nil, false
}

// Move copies the pages of a stretch of a mapping that are on other nodes. A
// target outside the process's cpuset is refused (EACCES); a full one ends the
// move (ENOMEM), and the pages that did not fit count as failed. The fake does
// not record which page has which address: a stretch has as many misplaced
// pages as fit into it, and the immovable ones are at a mapping's beginning.
func (h *Host) Move(
	ctx context.Context, pid int, s plan.Step, progress func(done, total topology.Bytes),
) (moved plan.Moved, err error) {
	err = h.on("Move", pid, func(p *process) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, ok := p.at(s.Address)
		switch {
		case s.Nodes.IsEmpty():
			return fmt.Errorf("moving pages of process %d at %#x: no target node given", pid, s.Address)
		case !s.Nodes.SubsetOf(p.threads[0].Mems):
			return fmt.Errorf("moving pages of process %d at %#x to nodes %s: %w", pid, s.Address, s.Nodes, unix.EACCES)
		case !ok:
			return nil // addresses without pages
		}
		moved = h.bringPart(m, topology.Bytes(s.Address-m.Address), s.Size, s.Nodes, s.Mode == guest.MemoryInterleave)
		if moved.Why["ENOMEM"] > 0 {
			return fmt.Errorf("moving pages of process %d at %#x to nodes %s: %w", pid, s.Address, s.Nodes, unix.ENOMEM)
		}
		return nil
	})
	if err == nil {
		progress(s.Size, s.Size)
	}
	return moved, err
}

// Pull brings up to bytes of each guest's anonymous memory with the default policy
// to the first node of its vCPUs' CPUs, as kernel balancing does with memory that
// the vCPUs use. It returns how much.
func (h *Host) Pull(bytes topology.Bytes) (pulled topology.Bytes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.processes() {
		to, found := topology.NodeSet{}, false
		for _, t := range p.threads {
			if t.VCPU != nil {
				to, found = h.topology.NodesOf(t.Affinity).Intersect(t.Mems), true
				break
			}
		}
		if !found || to.Len() != 1 {
			continue
		}
		left := bytes
		for _, m := range p.mappings {
			if m.Backing == "anonymous" && m.Policy == "default" {
				moved := h.bringPart(m, 0, min(left, m.Size), to, false)
				pulled, left = pulled+moved.Moved, left-moved.Moved
			}
		}
	}
	return pulled
}

// bring moves the misplaced pages of a whole mapping.
func (h *Host) bring(m *mapping, targets topology.NodeSet, spread bool) plan.Moved {
	return h.bringPart(m, 0, m.Size, targets, spread)
}

// bringPart moves misplaced pages, at most size of them, to the target that has
// least; with spread it then evens out the targets.
func (h *Host) bringPart(m *mapping, offset, size topology.Bytes, targets topology.NodeSet, spread bool) plan.Moved {
	moved := plan.Moved{Why: map[string]uint64{}}
	unit := max(m.PageSize, 2*topology.MiB)
	fail := func(bytes topology.Bytes, why string) {
		if bytes > 0 {
			moved.Failed += bytes
			moved.Why[why] += uint64(bytes / m.PageSize)
		}
	}
	stuck := m.sticks
	fails := min(stuck-min(stuck, offset), size) // this many of them are in the stretch
	budget := size - fails
	for _, from := range slices.Sorted(maps.Keys(m.ByNode)) {
		if targets.Contains(from) {
			continue
		}
		stays := min(stuck, m.ByNode[from])
		stuck -= stays
		fail(min(stays, fails), "EBUSY")
		fails -= min(stays, fails)
		for left := min(m.ByNode[from]-stays, budget); left > 0; {
			part := min(left, unit)
			got := h.shift(m, from, m.least(targets), part)
			moved.Moved += got
			left, budget = left-got, budget-got
			if got < part {
				fail(left, "ENOMEM")
				break
			}
		}
	}
	if spread && targets.Len() > 1 {
		h.level(m, targets, min(budget, size), unit, &moved, fail)
	}
	return moved
}

// level moves up to bytes from the target that has most to the one that has
// least.
func (h *Host) level(
	m *mapping, targets topology.NodeSet, bytes, unit topology.Bytes, moved *plan.Moved,
	fail func(topology.Bytes, string),
) {
	for bytes >= unit {
		least, most := m.least(targets), m.most(targets)
		if m.ByNode[most]-m.ByNode[least] < 2*unit {
			return
		}
		got := h.shift(m, most, least, unit)
		moved.Moved, bytes = moved.Moved+got, bytes-got
		if got < unit {
			fail(unit-got, "ENOMEM")
			return
		}
	}
}

func (m *mapping) least(nodes topology.NodeSet) topology.NodeID {
	return slices.MinFunc(nodes.IDs(),
		func(a, b topology.NodeID) int { return int(m.ByNode[a]/m.PageSize) - int(m.ByNode[b]/m.PageSize) })
}

func (m *mapping) most(nodes topology.NodeSet) topology.NodeID {
	return slices.MaxFunc(nodes.IDs(),
		func(a, b topology.NodeID) int { return int(m.ByNode[a]/m.PageSize) - int(m.ByNode[b]/m.PageSize) })
}

// GrowPool adds pages to a pool as far as the node has free memory.
func (h *Host) GrowPool(id topology.NodeID, size topology.Bytes, pages uint64) (got uint64, err error) {
	err = h.pool("GrowPool", id, size, func(n *node, p *topology.HugePagePool) {
		got = min(pages, uint64(n.free/size))
		n.free -= topology.Bytes(got) * size
		p.Total, p.Free = p.Total+got, p.Free+got
	})
	return got, err
}

// ShrinkPool takes free pages out of a pool.
func (h *Host) ShrinkPool(id topology.NodeID, size topology.Bytes, pages uint64) (gone uint64, err error) {
	err = h.pool("ShrinkPool", id, size, func(n *node, p *topology.HugePagePool) {
		gone = min(pages, p.Free)
		n.free += topology.Bytes(gone) * size
		p.Total, p.Free = p.Total-gone, p.Free-gone
	})
	return gone, err
}

func (h *Host) pool(
	method string, id topology.NodeID, size topology.Bytes, do func(*node, *topology.HugePagePool),
) error {
	return h.call(method, func() error {
		if n, ok := h.nodes[id]; ok && n.pools[size] != nil {
			do(n, n.pools[size])
			return nil
		}
		return fmt.Errorf("node %d has no pool of %v huge pages: %w", id, size, os.ErrNotExist)
	})
}
