package history

import (
	"math"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// sum is a weighted sum of measured values.
type sum struct{ total, weight float64 }

func (s *sum) add(v float32, weight float64) {
	if v == v { // NaN: not measured
		s.total += float64(v) * weight
		s.weight += weight
	}
}

func (s *sum) mean() float64 {
	if s.weight == 0 {
		return 0
	}
	return s.total / s.weight
}

// idle is the number of used CPUs that an idle guest counts for in averages of
// shares of accesses, because it makes hardly any accesses.
const idle = 0.001

// Load returns a guest's average load over the last duration before the latest
// sample; its Window is how much of that was measured. The remote share is that
// of the latest source only, weighted by the CPUs that the guest used. False: the guest was not measured in that time.
func (h *History) Load(guest string, over time.Duration) (inventory.GuestLoad, bool) {
	var cpu, wait, mbps, remote sum
	var source uint8
	h.since(over, func(f *frame, reach float64) {
		i, there := f.find(guest)
		if !there {
			return
		}
		v := f.guest(i)
		weight := min(float64(v[guestWindow]), reach)
		cpu.add(v[guestCPU], weight)
		wait.add(v[guestWait], weight)
		mbps.add(v[guestMBps], weight)
		if source == 0 {
			source = f.sources[i]
		}
		if f.sources[i] == source {
			remote.add(v[guestRemote], weight*(float64(v[guestCPU])+idle))
		}
	})
	if cpu.weight == 0 {
		return inventory.GuestLoad{}, false
	}
	load := inventory.GuestLoad{
		Window: time.Duration(math.Round(cpu.weight * 1e9)),
		CPU:    cpu.mean(), Wait: wait.mean(), MemoryMBps: mbps.mean(),
	}
	if remote.weight > 0 {
		load.Remote = &inventory.Remote{Share: remote.mean(), Source: h.sources[source]}
	}
	return load, true
}

// NodeLoads returns the nodes' average load over the last duration before the
// latest sample, ascending, for the nodes of that sample.
func (h *History) NodeLoads(over time.Duration) []inventory.NodeLoad {
	if len(h.fine) == 0 {
		return nil
	}
	nodes := h.last().shape.nodes
	cpu, wait := make([]sum, len(nodes)), make([]sum, len(nodes))
	h.since(over, func(f *frame, reach float64) {
		weight := min(float64(f.window), reach)
		for i, n := range f.shape.nodes {
			if at, found := slices.BinarySearch(nodes, n); found {
				cpu[at].add(f.node(i)[nodeCPU], weight)
				wait[at].add(f.node(i)[nodeWait], weight)
			}
		}
	})
	loads := make([]inventory.NodeLoad, len(nodes))
	for i, n := range nodes {
		loads[i] = inventory.NodeLoad{Node: n, CPU: cpu[i].mean(), Wait: wait[i].mean()}
	}
	return loads
}
