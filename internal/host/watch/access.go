package watch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Access is the distribution of a guest's memory accesses over the nodes, in
// one window.
type Access struct {
	// Shares are ascending and sum to 1; none if there were no accesses. To is
	// topology.NoNode where the source reports only that it was another node.
	Shares []inventory.AccessShare
	// Remote is the part that left the node of the CPU.
	Remote float64
	// MemoryMBps is the guest's traffic to memory in MB (10^6 bytes) a second;
	// 0 if the source does not report it.
	MemoryMBps float64
	// VCPUs are the accesses of divisible vCPUs (guest.Placement.Divisible), if the source counts by vCPU. ByNode has
	// topology.NoNode where the source reports only that it was another node.
	VCPUs []inventory.VCPUAccess
}

// Meter measures guests' accesses to memory.
type Meter interface {
	Source() inventory.AccessSource
	// Follow sets the guests to measure from now on. Seen.Threads are their
	// vCPUs' threads, whose LastCPU and RunTime the watcher updates before each
	// Read; it calls Follow again when they change. An *UnmeteredError error names
	// guests that the meter cannot measure, while it measures the others; any
	// other error means that it can measure none.
	Follow(guests []inventory.Guest, t *topology.Topology) error
	// Read returns the accesses since the previous call, by guest. A guest that
	// is missing was not measured this time.
	Read(window time.Duration) (map[string]Access, error)
	Close() error
}

// UnmeteredError are guests that a meter cannot measure.
type UnmeteredError struct {
	Guests []string
	Err    error // the reason
}

func (e *UnmeteredError) Error() string {
	if len(e.Guests) == 0 {
		return e.Err.Error()
	}
	const shown = 3
	names := strings.Join(e.Guests[:min(shown, len(e.Guests))], ", ")
	if more := len(e.Guests) - shown; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("VMs %s: %v", names, e.Err)
}

func (e *UnmeteredError) Unwrap() error { return e.Err }

// retryMeter is how long a meter that refused a guest is not asked again.
const retryMeter = 10 * time.Second

// access assigns each guest to the best meter that can measure it.
type access struct {
	meters []Meter
	of     map[string]int // by guest: the position of its meter
	// byVCPU is the same for the meter that counts the accesses of a guest's divisible vCPUs.
	byVCPU map[string]int
	next   time.Time // when to ask the meters again; zero: at once
}

func (a *access) due(now time.Time) bool { return len(a.meters) > 0 && !now.Before(a.next) }

func (a *access) Close() error {
	var errs []error
	for _, m := range a.meters {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// countsVCPUs reports whether a source tells the accesses of vCPUs apart.
func countsVCPUs(s inventory.AccessSource) bool {
	return s == inventory.AccessPMU || s == inventory.AccessCounter
}

// assign passes all guests to the best meter, those that it cannot measure to
// the next one, and so on. Guests with divisible vCPUs also go to the first meter that counts by vCPU.
func (w *Watcher) assign(now time.Time) {
	w.access.next = now.Add(retryMeter)
	w.access.of, w.access.byVCPU = make(map[string]int, len(w.guests)), map[string]int{}
	left := make([]inventory.Guest, len(w.guests))
	for i, e := range w.guests {
		left[i] = e.guest
	}
	for i, m := range w.access.meters {
		asked := w.asked(m, left)
		err := m.Follow(asked, w.topology)
		w.gaps.set(inventory.AccessUnmeasured, inventory.HostRef(), inventory.AccessText(m.Source()), err)
		var unmetered *UnmeteredError
		if err != nil && !errors.As(err, &unmetered) {
			continue // it can measure none
		}
		var rest []inventory.Guest
		for _, g := range left {
			w.access.of[g.Name] = i
		}
		if unmetered != nil {
			for _, name := range unmetered.Guests {
				if w.access.of[name] == i {
					delete(w.access.of, name)
				}
			}
		}
		for _, g := range asked {
			refused := unmetered != nil && slices.Contains(unmetered.Guests, g.Name)
			if countsVCPUs(m.Source()) && !refused && !g.Placement.Divisible().IsEmpty() {
				w.access.byVCPU[g.Name] = i
			}
		}
		for _, g := range left {
			if _, measured := w.access.of[g.Name]; !measured {
				rest = append(rest, g)
			}
		}
		left = rest
	}
}

// asked returns the guests that a meter is to follow: those left to it, and those of whose divisible vCPUs no meter
// counts the accesses yet.
func (w *Watcher) asked(m Meter, left []inventory.Guest) []inventory.Guest {
	if !countsVCPUs(m.Source()) {
		return left
	}
	asked := slices.Clone(left)
	for _, e := range w.guests {
		_, measured := w.access.of[e.guest.Name]
		_, counted := w.access.byVCPU[e.guest.Name]
		if measured && !counted && !e.guest.Placement.Divisible().IsEmpty() {
			asked = append(asked, e.guest)
		}
	}
	return asked
}

// measureAccesses adds each guest's accesses to guests, and their traffic to
// nodes; it returns the sources in use.
func (w *Watcher) measureAccesses(s *inventory.Sample, window time.Duration) []inventory.AccessSource {
	read := make([]map[string]Access, len(w.access.meters))
	inUse := make([]bool, len(w.access.meters)+1)
	follows := make([]bool, len(w.access.meters))
	for _, of := range []map[string]int{w.access.of, w.access.byVCPU} {
		for _, i := range of {
			follows[i] = true
		}
	}
	for i, m := range w.access.meters {
		if !follows[i] {
			continue
		}
		var err error
		if read[i], err = m.Read(window); err != nil {
			w.gaps.set(inventory.AccessUnmeasured, inventory.HostRef(), inventory.AccessText(m.Source()), err)
			w.access.next = time.Time{}
		}
	}
	for i := range s.Guests {
		g, e := &s.Guests[i], w.guests[i]
		at, metered := w.access.of[g.Name]
		var a Access
		if metered {
			a, metered = read[at][g.Name]
		}
		source := inventory.AccessEstimate
		if metered {
			source, inUse[at] = w.access.meters[at].Source(), true
			a.Shares = resolve(a.Shares, g.MemoryByNode, w.topology)
			a.Remote = RemoteOf(a.Shares)
			g.Load.MemoryMBps = a.MemoryMBps
		} else {
			inUse[len(inUse)-1] = true
			a = estimate(e, g, w)
		}
		w.takeAccess(e, g, a, source)
		if at, counted := w.access.byVCPU[g.Name]; counted {
			g.VCPUAccesses = resolveVCPUs(read[at][g.Name].VCPUs, w.topology)
		}
	}
	addTraffic(s)
	var sources []inventory.AccessSource
	for i, m := range w.access.meters {
		if inUse[i] {
			sources = append(sources, m.Source())
		}
	}
	if inUse[len(inUse)-1] {
		sources = append(sources, inventory.AccessEstimate)
	}
	return sources
}

func (w *Watcher) takeAccess(e *guestSampler, g *inventory.GuestSample, a Access, source inventory.AccessSource) {
	if len(a.Shares) == 0 {
		return
	}
	if !slices.Equal(a.Shares, e.shares) {
		e.shares = slices.Clone(a.Shares)
	}
	g.Accesses = e.shares
	g.Load.Remote = &inventory.Remote{Share: a.Remote, Source: source}
}

// estimate assumes that each vCPU uses all of the guest's memory equally: the
// placement estimate. Where no vCPU ran, each counts on the node where it last
// ran.
func estimate(e *guestSampler, g *inventory.GuestSample, w *Watcher) Access {
	from := map[topology.NodeID]float64{}
	var cpu float64
	for node, used := range g.CPUByNode {
		from[node] += used
		cpu += used
	}
	if cpu == 0 {
		for i := range e.threads {
			if node := w.node(e.threads[i].cpu); node != topology.NoNode {
				from[node]++
				cpu++
			}
		}
	}
	shares := inventory.EstimateAccesses(from, g.MemoryByNode)
	return Access{Shares: shares, Remote: RemoteOf(shares)}
}

func sortShares(shares []inventory.AccessShare) {
	slices.SortFunc(shares, func(a, b inventory.AccessShare) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
}

// RemoteOf sums the shares that leave the node, from 0 to 1.
func RemoteOf(shares []inventory.AccessShare) float64 { return inventory.RemoteShare(shares) }

// resolve divides shares that go to an unknown other node among the other nodes
// with memory of the guest, by amount; if none is known, among all other nodes
// with memory.
func resolve(
	shares []inventory.AccessShare, memory topology.MemoryByNode, t *topology.Topology,
) []inventory.AccessShare {
	if !slices.ContainsFunc(shares, func(s inventory.AccessShare) bool { return s.To == topology.NoNode }) {
		return shares
	}
	var out []inventory.AccessShare
	for _, s := range shares {
		if s.To != topology.NoNode {
			out = append(out, s)
			continue
		}
		weight, sum := map[topology.NodeID]float64{}, 0.0
		for _, n := range t.Nodes {
			if n.ID != s.From && memory[n.ID] > 0 {
				weight[n.ID] = float64(memory[n.ID])
				sum += weight[n.ID]
			}
		}
		if sum == 0 {
			for _, n := range t.Nodes {
				if n.ID != s.From && n.Memory > 0 {
					weight[n.ID] = 1
					sum++
				}
			}
		}
		for to, part := range weight {
			out = append(out, inventory.AccessShare{From: s.From, To: to, Share: s.Share * part / sum})
		}
		if sum == 0 { // there is no other node: the source is wrong
			out = append(out, inventory.AccessShare{From: s.From, To: s.From, Share: s.Share})
		}
	}
	sortShares(out)
	return out
}

// resolveVCPUs assigns accesses to an unknown other node to the only other node of the host. On a host with more of
// them, the accesses say nothing of where a vCPU belongs, and it returns none.
func resolveVCPUs(vcpus []inventory.VCPUAccess, t *topology.Topology) []inventory.VCPUAccess {
	out := make([]inventory.VCPUAccess, 0, len(vcpus))
	for _, a := range vcpus {
		byNode := maps.Clone(a.ByNode)
		if count, unknown := byNode[topology.NoNode]; unknown {
			delete(byNode, topology.NoNode)
			others := 0
			for i := range t.Nodes {
				if n := t.Nodes[i].ID; n != a.On && t.Nodes[i].Memory > 0 {
					others++
					byNode[n] += count
				}
			}
			if others != 1 {
				return nil
			}
		}
		a.ByNode = byNode
		out = append(out, a)
	}
	return out
}

// addTraffic adds the guests' traffic to the nodes of the accessed memory.
func addTraffic(s *inventory.Sample) {
	for _, g := range s.Guests {
		if g.Load.MemoryMBps == 0 {
			continue
		}
		for _, a := range g.Accesses {
			at, ok := slices.BinarySearchFunc(s.Nodes, a.To,
				func(n inventory.NodeSample, id topology.NodeID) int { return cmp.Compare(n.Node, id) })
			if ok {
				s.Nodes[at].MemoryMBps += g.Load.MemoryMBps * a.Share
			}
		}
	}
}
