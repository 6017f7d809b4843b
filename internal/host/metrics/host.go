package metrics

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// bytesPerMB is the size of the sample's MB.
const bytesPerMB = 1e6

// host sends the metrics of the host as a whole.
func (e *exposition) host(s *status.Status) {
	for _, m := range []policy.Mode{policy.ModeOff, policy.ModeAdvise, policy.ModeAuto} {
		e.send(hostMode, oneIf(s.Mode == m), string(m))
	}
	e.send(paused, oneIf(s.Pause != nil))
	e.send(held, oneIf(s.Held != "" || s.Pause != nil))
	for _, p := range []struct {
		resource, scope string
		share           *float64
	}{
		{"cpu", "some", s.Sample.Pressure.CPU}, {"memory", "some", s.Sample.Pressure.Memory},
		{"memory", "full", s.Sample.Pressure.MemoryFull}, {"io", "some", s.Sample.Pressure.IO},
	} {
		if p.share != nil {
			e.send(pressure, *p.share, p.resource, p.scope)
		}
	}
	if seconds := s.Sample.Window.Seconds(); seconds > 0 {
		e.send(kernelMoved, float64(s.Sample.Moves.Moved)/seconds)
		e.send(kernelFailed, float64(s.Sample.Moves.Failed)/seconds)
		e.send(kernelBalancing, float64(s.Sample.Moves.Balancing)/seconds)
	}
	for _, source := range s.Sample.Accesses {
		e.send(accessSource, 1, string(source))
	}
	e.send(sampleGaps, float64(gaps(s.Sample.Gaps)))
	for _, r := range s.Competitors {
		alarming := 1.0
		if r.Expected {
			alarming = 0
		}
		e.send(competitor, alarming, r.Name)
	}
}

// gaps counts the gaps of the last sample, without those of access sources that
// the host does not have.
func gaps(all []inventory.Gap) (n int) {
	for _, g := range all {
		if g.Kind != inventory.AccessUnmeasured {
			n++
		}
	}
	return n
}

// nodes sends the last sample of each node.
func (e *exposition) nodes(s *status.Status) {
	for _, n := range s.Sample.Nodes {
		id := nodeLabel(n.Node)
		e.send(nodeCPUs, float64(n.CPUs), id)
		e.send(nodeUsed, n.CPU, id)
		e.send(nodeWait, n.Wait, id)
		e.send(nodeMemory, float64(n.Memory), id)
		e.send(nodeFree, float64(n.Free), id)
		for _, p := range n.HugePages {
			size := fmt.Sprint(uint64(p.Size))
			e.send(nodePool, float64(p.Total)*float64(p.Size), id, size)
			e.send(nodePoolFree, float64(p.Free)*float64(p.Size), id, size)
		}
		if n.MemoryMBps > 0 {
			e.send(nodeTraffic, n.MemoryMBps*bytesPerMB, id)
		}
	}
}

func nodeLabel(id topology.NodeID) string { return fmt.Sprint(int(id)) }
