// Package fake is a host in memory: nodes with free memory and huge page pools,
// guests with processes, threads, mappings and definitions. It answers as the
// kernel and libvirt do, as far as placing and binding depend on it, and fails
// on request (Fault).
//
// It follows the real ones in these points: memory is allocated at first touch
// by policy and cpuset; pages move only to nodes that the process's cpuset
// allows and that have room; narrowing a cpuset moves pages outside it, by
// ordinal; the policy of memfd memory can be set from outside, that of other
// memory cannot; libvirt retunes a running guest only in mode restrictive;
// pools grow only from free memory and shrink only by free pages; two guests
// cannot have one name.
//
// Load makes its guests use CPUs, as samples of them show; Settings are a
// kernel's settings that can be changed.
//
// It leaves out: time, transparent huge pages, page cache, reclaim.
package fake

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Host is a host in memory. It is safe for concurrent use. The methods that the
// real drivers have can be made to fail (Inject); all others are for the test
// and always work.
type Host struct {
	mu       sync.Mutex
	topology topology.Topology // free memory and pools are in nodes
	nodes    map[topology.NodeID]*node
	domains  map[string]*domain
	programs map[int]*process // processes that are not guests
	lastPID  int
	ticks    uint64 // start time of the last process, grows with each

	peers map[string]*Host // reachable for migrations, by URI
	// departures are the migrations that have begun here.
	departures []guest.Departure

	injection injection
}

// New makes a host without guests. Huge page pools come out of the nodes' free memory.
func New(t topology.Topology) *Host {
	h := &Host{
		topology: t,
		nodes:    map[topology.NodeID]*node{},
		domains:  map[string]*domain{},
		programs: map[int]*process{},
		lastPID:  1000,
		ticks:    5000,
	}
	for _, n := range t.Nodes {
		own := &node{free: n.Memory, pools: map[topology.Bytes]*topology.HugePagePool{}}
		for _, p := range n.HugePages {
			pool := p
			own.pools[p.Size] = &pool
			own.free -= min(own.free, topology.Bytes(p.Total)*p.Size)
		}
		h.nodes[n.ID] = own
	}
	return h
}

// MustNew makes a host from a synthetic machine's description.
func MustNew(machine string) *Host {
	t, err := topology.Synthetic(machine)
	if err != nil {
		panic(err)
	}
	return New(t)
}

// Nodes returns the topology with present memory and pools.
func (h *Host) Nodes() topology.Topology {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seenTopology()
}

func (h *Host) seenTopology() topology.Topology {
	t := h.topology
	t.Nodes = slices.Clone(t.Nodes)
	for i := range t.Nodes {
		n := &t.Nodes[i]
		own := h.nodes[n.ID]
		n.Free, n.HugePages = own.free, nil
		for _, size := range slices.Sorted(maps.Keys(own.pools)) {
			n.HugePages = append(n.HugePages, *own.pools[size])
		}
	}
	return t
}

// Fill takes free memory of a node away until left remains, as page cache in
// use or another program would. Drain gives it back.
func (h *Host) Fill(id topology.NodeID, left topology.Bytes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[id]
	if n.free > left {
		n.filled += n.free - left
		n.free = left
	}
}

// Drain gives back what Fill took on any node.
func (h *Host) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.nodes {
		n.free, n.filled = n.free+n.filled, 0
	}
}

// Audit returns an error if memory was lost or created: on each node free and
// filled memory, pools, and the processes' small pages must add up.
func (h *Host) Audit() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	small, huge := topology.MemoryByNode{}, map[topology.NodeID]map[topology.Bytes]uint64{}
	for _, p := range h.processes() {
		for _, m := range p.mappings {
			for id, bytes := range m.ByNode {
				if m.huge() {
					if huge[id] == nil {
						huge[id] = map[topology.Bytes]uint64{}
					}
					huge[id][m.PageSize] += uint64(bytes / m.PageSize)
				} else {
					small[id] += bytes
				}
			}
		}
	}
	for _, n := range h.topology.Nodes {
		own := h.nodes[n.ID]
		sum := own.free + own.filled + small[n.ID]
		for size, p := range own.pools {
			sum += topology.Bytes(p.Total) * size
			if p.Free+huge[n.ID][size] != p.Total {
				return fmt.Errorf("node %d: pool of %v has %d pages, %d free and %d in use", n.ID, size, p.Total,
					p.Free, huge[n.ID][size])
			}
		}
		if sum != n.Memory {
			return fmt.Errorf("node %d: %v in sum, it has %v", n.ID, sum, n.Memory)
		}
	}
	return nil
}
