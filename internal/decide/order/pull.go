package order

import (
	"cmp"
	"strconv"
	"time"

	"github.com/numavisor/numavisor/internal/decide/cost"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Pull describes whether the kernel can bring a VM's memory to its vCPUs, by NUMA
// hinting faults: it takes the mapping of pages away, and the vCPU that touches one
// next copies it to its own node. Pages that are used come first, and all VMs are
// served at the same time. Memory that nobody touches stays where it is.
type Pull struct {
	Bytes topology.Bytes // to copy
	// Movable is the part of Bytes that hinting faults move: anonymous memory with the
	// default policy. task_numa_work skips mappings whose policy lacks MPOL_F_MOF,
	// huge page pools, and shared memory (memfd) that has no policy of its own.
	Movable topology.Bytes
	Free    topology.Bytes // on the target
	Targets int            // number of target nodes
	// Loses is the work that the VM loses at its target until its memory is there, in CPUs, and
	// VCPUs the number of its vCPUs. Waiting for CPUs ends when the vCPUs move.
	Loses float64
	VCPUs int
}

// PullOf describes the memory of a VM that a move brings to its placement. Without
// the VM's mappings (inventory.Seen.Ranges) its configuration says what is movable.
func PullOf(g *inventory.Guest, m plan.GuestMove, t *topology.Topology) Pull {
	p := Pull{Targets: m.Placement.Nodes.Len(), Loses: losesAtTarget(g, m, t), VCPUs: len(m.Placement.VCPUs)}
	far := func(memory topology.MemoryByNode) (sum topology.Bytes) {
		for node, bytes := range memory {
			if !m.Placement.Nodes.Contains(node) {
				sum += bytes
			}
		}
		return sum
	}
	for _, r := range g.Seen.Ranges {
		p.Bytes += far(r.ByNode)
		if r.Policy == "default" && r.Backing == "anonymous" {
			p.Movable += far(r.ByNode)
		}
	}
	if c := &g.Config; len(g.Seen.Ranges) == 0 {
		p.Bytes = far(g.Seen.MemoryByNode)
		if movable(c) {
			p.Movable = p.Bytes
		}
	}
	for node := range m.Placement.Nodes.All() {
		if n, ok := t.Node(node); ok {
			p.Free += n.Free + n.Reclaimable
		}
	}
	return p
}

// losesAtTarget returns the CPU time that a VM loses to remote accesses if its vCPUs are at the target of a move and
// its memory is where it is now, in CPUs.
func losesAtTarget(g *inventory.Guest, m plan.GuestMove, t *topology.Topology) float64 {
	demand, intensity := cmp.Or(m.Demand, float64(len(m.Placement.VCPUs))), 1.0
	if l := g.Seen.Load; l != nil {
		demand, intensity = cmp.Or(m.Demand, l.Demand()), cost.Intensity(l.MemoryMBps, l.CPU)
	}
	access, from := cost.NewAccess(t), VCPUTargets(m, t)
	there := topology.MemoryByNode{}
	for node := range m.Placement.Nodes.All() {
		there[node] = 1
	}
	now, then := MeanLatency(access, t, from, g.Seen.MemoryByNode), MeanLatency(access, t, from, there)
	if then <= 0 || now <= then {
		return 0
	}
	return demand * intensity * (1 - then/now)
}

// Pullable reports whether the kernel can bring the memory of a VM to its vCPUs, by its configuration: the VM has one
// cell or none and has not been placed yet, and its memory is anonymous with the default policy. The policy must not
// limit the rate.
func Pullable(g *inventory.Guest, b policy.Balance) bool {
	c := &g.Config
	return g.Placement == nil && len(c.Cells) <= 1 && b.Pace == 0 && movable(c)
}

// movable reports whether hinting faults move a VM's memory, by its configuration.
func movable(c *inventory.Config) bool {
	bound := c.NUMATune != nil && (c.NUMATune.Mode == string(guest.MemoryStrict) || len(c.NUMATune.Cells) > 0)
	return (c.Source == "" || c.Source == "anonymous") && !c.Shared && !bound
}

// Level gives each VM of a move the highest loss for each vCPU among them. The vCPUs of
// all of them move before the memory, also those of a VM that makes room for another
// and loses nothing yet: from then on each runs far from its memory.
func Level(pulls []Pull) {
	worst := 0.0
	for _, p := range pulls {
		worst = max(worst, p.Loses/float64(max(1, p.VCPUs)))
	}
	for i := range pulls {
		pulls[i].Loses = worst * float64(max(1, pulls[i].VCPUs))
	}
}

// leastPulled is the share of a VM's memory that hinting faults must be able to
// move. Below it our own copy has the greater part of the work in any case.
const leastPulled = 0.9

// Possible reports whether the kernel can bring the VM's memory to its vCPUs. It
// needs one target: it brings pages to the node of the CPU that touches them, which
// with several nodes need not be the node of the cell. It is not possible either
// under a policy that limits the rate, because the kernel does not obey that, and for
// a VM that loses less than copying may cost it (max_guest_wait): its vCPUs copy.
func (p Pull) Possible(b policy.Balance) bool {
	return p.Bytes > 0 && p.Targets == 1 && p.Free >= p.Bytes && b.Pace == 0 &&
		p.Loses > float64(p.VCPUs)*b.WithDefaults().MaxGuestWait &&
		float64(p.Movable) >= leastPulled*float64(p.Bytes)
}

// Exposed returns the names of the VMs whose memory kernel balancing, which acts on all
// processes, could move although they are not part of the moves: those that Numavisor
// has not placed, unless they can only run at their memory. With kernel balancing
// on, nothing more is exposed than before. exempt says which VMs do not count: those that
// move, and idle ones.
func Exposed(h *inventory.Host, exempt func(guest string) bool) (names []string) {
	if mode, err := strconv.Atoi(h.Kernel.NUMABalancing); err == nil && mode&1 == 1 {
		return nil
	}
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.Placement != nil || g.State != "running" || exempt(g.Name) {
			continue
		}
		if nodes := g.VCPUNodes(&h.Topology); nodes.Len() > 1 || !holds(nodes, g) {
			names = append(names, g.Name)
		}
	}
	return names
}

// strays is the share of a VM's memory that may be elsewhere, as nobody places it:
// pages of libraries, and of QEMU itself.
const strays = 0.1

// holds reports whether a VM's memory is on these nodes.
func holds(nodes topology.NodeSet, g *inventory.Guest) bool {
	var there, all topology.Bytes
	for node, bytes := range g.Seen.MemoryByNode {
		if all += bytes; nodes.Contains(node) {
			there += bytes
		}
	}
	return float64(there) >= (1-strays)*float64(all)
}

const (
	// alone is how fast at least a thread copies memory if it has a CPU of its own: the
	// kernel takes 1 to 4 microseconds for a page of 4 KiB (docs/benchmarks.md, moving
	// memory). One that is slower shares the CPU, with VMs of this host or, where
	// this host is a VM itself, with others.
	alone = float64(topology.GiB)
	// scanned is how much memory of one VM the kernel brings in a second at most:
	// task_numa_work takes the mapping of 256 MiB away at once (scan_size_mb), and
	// begins at most once a second of the vCPUs' time (scan_period_min_ms).
	scanned = float64(256 * topology.MiB)
)

// Undisturbed reports whether a thread that copies this many bytes a second has a CPU of its own: then VMs lose nothing
// else by it. 0: the rate is not known.
func Undisturbed(rate topology.Bytes) bool { return float64(rate) >= alone }

// Pays reports whether the kernel is the better mover for VMs that are copied in
// this order otherwise, by the work that they lose. rate is how fast our own
// thread copies now, in bytes a second; 0: not known, then our own copy is preferred.
//
// A vCPU that copies a page does not work meanwhile, so each VM loses that time. Our
// thread takes its time from VMs, too, as far as it has no CPU of its own, and
// the VMs wait for one another: it copies one after the other. The same code of the
// kernel copies, so a vCPU is taken to copy as fast as our thread. Pages that are used
// come first, so a VM loses half of Loses on average while it is served. Both prices
// are derived; in the lab the kernel was up to twice as fast as our thread
// (docs/benchmarks/2026-11.md), which this does not count.
func Pays(pulls []Pull, rate topology.Bytes) bool {
	if rate == 0 {
		return false
	}
	own, copied, waits, pulled := float64(rate), 0.0, 0.0, 0.0
	taken := 1 - min(1, own/alone)
	for _, p := range pulls {
		took := float64(p.Bytes) / own
		waits += took
		copied += p.Loses*waits + taken*took
		pulled += took + p.Loses*max(took/float64(max(1, p.VCPUs)), float64(p.Bytes)/scanned)/2
	}
	return pulled < copied
}

// Pulling is the state of memory that the kernel brings.
type Pulling struct {
	window []pulled
	rate   float64       // latest, in bytes a second
	best   float64       // highest so far
	slow   time.Duration // since when it has been slower than our own copy; 0: it is not
	ebbed  bool
	slower bool // it does not go on, since our own copy is faster
}

type pulled struct {
	at   time.Duration
	left topology.Bytes
}

const (
	pullLasts = 10 * time.Minute // at most: no other move begins meanwhile
	// The rate is measured in this time: faults come in bursts, one for each scan of
	// the memory, which the kernel begins once a second of the vCPUs' time at most.
	pullWindow = 5 * time.Second
	// Of the last pages, a shorter time shows that it is not in use: vCPUs that used it would have touched some.
	tailWindow = 3 * time.Second
	pullDone   = 1.0 / 50 // the share that remains: not touched, or in use
	pullEbbs   = 0.25     // of the highest rate: what is left is hardly used
	pullSlower = 0.5      // of our own rate: what is pulled is in use, what we copy may not be
	pullTail   = 30 * time.Second
)

// Continue reports whether the kernel should go on: at a time since it began, so much
// is left of all, and our own copy has this rate in bytes a second; 0: not known. As
// long as much is left, the kernel must not be much slower than our own copy; one that was
// faster before gets a window more to show whether it ebbs. Of
// the last pages (see LastPages) our own copy would move few with each call, so the
// kernel goes on as long as it needs no more than half a minute for them, or is faster.
func (p *Pulling) Continue(at time.Duration, left, all, own topology.Bytes) bool {
	window := pullWindow
	if LastPages(left, all) {
		window = tailWindow
	}
	p.window = append(p.window, pulled{at, left})
	for len(p.window) > 2 && at-p.window[1].at >= window {
		p.window = p.window[1:]
	}
	first := p.window[0]
	switch {
	case Brought(left, all), at >= pullLasts:
		return false
	case at-first.at < window:
		return true
	}
	rate := (float64(first.left) - float64(left)) / (at - first.at).Seconds()
	p.rate, p.best, p.slower = rate, max(p.best, rate), false
	slower := pullSlower * float64(own)
	if LastPages(left, all) {
		goesOn := rate >= float64(left)/pullTail.Seconds() || own > 0 && rate > slower
		p.ebbed = !goesOn && p.best > slower
		return goesOn
	}
	switch {
	case rate <= pullEbbs*p.best:
		p.ebbed = p.best > slower
		return false
	case rate > slower:
		p.slow = 0
	case p.best <= slower:
		p.slower = true
	case p.slow == 0: // it may ebb: that takes a window
		p.slow = at
	case at-p.slow >= pullWindow:
		p.slower = true
	}
	return !p.slower
}

// Brought reports whether the kernel has brought all memory but what may stay elsewhere.
func Brought(left, all topology.Bytes) bool { return float64(left) <= pullDone*float64(all) }

// Slower reports that the kernel does not go on because our own copy is faster. The VMs may work more than when the
// rate of our own copy was measured: measure it again, and ask again.
func (p *Pulling) Slower() bool { return p.slower }

// Ebbed reports why the kernel does not go on: it brought memory as it should, and then hardly any. So the VMs do
// not use what is left: to copy it takes time from them, perhaps for nothing. Once they use it, the kernel brings
// it if its balancing is still on.
func (p *Pulling) Ebbed() bool { return p.ebbed }

const (
	// untouchedPasses: the first pass that ends during the pull may have begun before it, the second is whole. A VM
	// touches what it uses after it.
	untouchedPasses = 2
	// touchedPart is the share of the memory left that its threads may have touched where it is: above it, they use it
	// and the kernel cannot move it.
	touchedPart = 0.1
)

// Untouched reports whether a VM does not use the memory that the kernel has left on other nodes than its targets: the
// kernel has taken all its mappings away since the pull began, the VM's threads have touched little of it where it is,
// and at the latest rate of all VMs the kernel does not bring it within half a minute. before and now are the
// figures of kernel balancing about the VM at the beginning and now; left is its memory to be brought.
func (p *Pulling) Untouched(before, now inventory.HintFaults, targets topology.NodeSet, left topology.Bytes) bool {
	var touched topology.Bytes
	for node, bytes := range now.Memory {
		if !targets.Contains(node) {
			touched += bytes
		}
	}
	return now.Passes >= before.Passes+untouchedPasses && float64(touched) <= touchedPart*float64(left) &&
		p.rate*pullTail.Seconds() < float64(left)
}

// lastPart is the share of the memory to be brought that counts as the last pages: up to a fifth of a VM's memory is
// not in use (see Cold), and half as much may be in use.
const lastPart = 0.3

// LastPages reports whether what is left of all memory to be brought is little, and perhaps not in use.
func LastPages(left, all topology.Bytes) bool { return float64(left) <= lastPart*float64(all) }

// coldPart is the share of a VM's memory that may wait for a quiet time. The system in a
// VM of 350 MiB has some 40 MiB that its program does not use.
const coldPart = 0.2

// Cold reports whether what is left elsewhere of a VM's memory may wait for a quiet time: it
// is little, and the VM's vCPUs have hardly used it. For a VM both count the memory of QEMU
// itself: a small VM with that and its system elsewhere would soon be degraded again.
func Cold(left, all topology.Bytes) bool { return float64(left) <= coldPart*float64(all) }

// unusedPart is the share of a VM's memory above which what its vCPUs do not use stays where it is.
const unusedPart = 0.4

// Unused reports whether what is left of a VM's memory, after the kernel's rate has ebbed, is so much that to copy it
// would disturb the VM longer than it helps: the VM works on the other part. What is less, as its system and
// its caches, is copied: it ends the move, and a small VM would soon be degraded again.
func Unused(left, all topology.Bytes) bool { return float64(left) > unusedPart*float64(all) }
