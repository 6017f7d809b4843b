package fake

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Load is the CPU load of a host's guests: every vCPU uses its CPU fully, and
// waits if its node has too few CPUs. The test changes it while they run.
type Load struct {
	Idle   atomic.Bool // all guests are idle
	Asleep sync.Map    // names of idle guests
	// Takes is the duration of each sample, by its number; nil: no time.
	Takes func(samples int) time.Duration
	// Works is the share of their CPUs that guests ask for, by the sample's
	// number; nil: all.
	Works func(samples int) float64
}

// Sampler takes samples of a host under a load, as the meters of a real host
// do. It is safe for concurrent use.
type Sampler struct {
	host   *Host
	load   *Load
	mu     sync.Mutex
	guests []inventory.Guest
	last   time.Time
	taken  int
}

// Sampler returns a sampler that has taken no sample yet.
func (l *Load) Sampler(h *Host) *Sampler { return &Sampler{host: h, load: l} }

// Follow sets the guests of the samples from now on.
func (m *Sampler) Follow(guests []inventory.Guest, _ *topology.Topology) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guests = slices.Clone(guests)
}

// Sample takes one sample. In each sample the kernel's balancing has moved one
// page more.
func (m *Sampler) Sample() inventory.Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken++
	if m.load.Takes != nil {
		time.Sleep(m.load.Takes(m.taken))
	}
	s := inventory.Sample{Taken: time.Now(), Moves: inventory.KernelMoves{Balancing: topology.Bytes(m.taken) * 4096}}
	if !m.last.IsZero() {
		s.Window = s.Taken.Sub(m.last)
	}
	m.last = s.Taken
	t := m.host.Nodes()
	asked := m.ask(&s, &t)
	for i := range s.Guests {
		m.run(&s.Guests[i], s.Window, &t, asked)
	}
	for _, n := range t.Nodes {
		used := min(asked[n.ID], float64(n.CPUs.Len()))
		s.Nodes = append(s.Nodes, inventory.NodeSample{
			NodeLoad: inventory.NodeLoad{Node: n.ID, CPU: used}, CPUs: n.CPUs.Len(), Memory: n.Memory, Free: n.Free})
	}
	return s
}

// ask adds the running guests to a sample, with the CPUs that their vCPUs ask
// for by node, and returns the sums by node.
func (m *Sampler) ask(s *inventory.Sample, t *topology.Topology) map[topology.NodeID]float64 {
	asked := map[topology.NodeID]float64{}
	for _, g := range m.guests {
		now, ok := m.host.Guest(g.Name)
		if !ok || now.PID != g.PID || now.State != "running" {
			continue
		}
		on := map[topology.NodeID]float64{}
		for _, thread := range now.Seen.Threads {
			if thread.VCPU == nil {
				continue
			}
			nodes := t.NodesOf(thread.Affinity)
			for id := range nodes.All() {
				share := 1 / float64(nodes.Len())
				on[id] += share
				asked[id] += share
			}
		}
		s.Guests = append(s.Guests,
			inventory.GuestSample{Name: g.Name, PID: g.PID, CPUByNode: on, MemoryByNode: MemoryOf(now)})
	}
	slices.SortFunc(s.Guests, func(a, b inventory.GuestSample) int { return strings.Compare(a.Name, b.Name) })
	return asked
}

// run sets how much a guest got of the CPUs that it asks for, and how long it
// waited.
func (m *Sampler) run(
	g *inventory.GuestSample, window time.Duration, t *topology.Topology, asked map[topology.NodeID]float64,
) {
	g.Load.Window = window
	for id, wants := range g.CPUByNode {
		node, _ := t.Node(id)
		got := min(1, float64(node.CPUs.Len())/asked[id])
		if _, asleep := m.load.Asleep.Load(g.Name); asleep || m.load.Idle.Load() {
			wants = 0
		} else if m.load.Works != nil {
			wants *= m.load.Works(m.taken)
		}
		g.Load.CPU += wants * got
		g.Load.Wait += wants * (1 - got)
	}
}

// MemoryOf sums a guest's mappings by node.
func MemoryOf(g inventory.Guest) topology.MemoryByNode {
	sum := topology.MemoryByNode{}
	for _, r := range g.Seen.Ranges {
		sum.Add(r.ByNode)
	}
	return sum
}
