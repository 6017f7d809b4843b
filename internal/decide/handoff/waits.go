package handoff

import (
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Holding is what a guest has while a sample is taken.
type Holding struct {
	inventory.HandedOver

	// Open is the mean number of CPUs on which the guest's vCPUs could run in the window of
	// the sample.
	Open float64
}

// Attribute gives the guests of a sample what they have of the CPUs that guests hand to each
// other, and takes the waits that follow from hand-over out of the waits of guests and nodes.
//
// vCPUs without a grant run on the CPUs of their own guest. What they wait for there is time of
// that guest's other vCPUs: no other guest and no program of the host takes it away. What others
// take is at most what the guest leaves of its CPUs: Open, less what its vCPUs used. So a wait
// beyond that is the guest's own. It is an estimate on nodes: the guest's own wait is divided over
// them as its CPU use is.
func Attribute(s *inventory.Sample, holds map[string]Holding) {
	for i := range s.Guests {
		g := &s.Guests[i]
		h, ok := holds[g.Name]
		if !ok {
			continue
		}
		g.HandedOver = &h.HandedOver
		if h.Open <= 0 {
			continue // other guests still have the CPUs on which it was started: it waits for them
		}
		own := max(0, g.Load.Wait-max(0, h.Open-g.Load.CPU))
		g.Load.Wait -= own
		g.Load.Ungranted = own
		used := 0.0
		for _, cpus := range g.CPUByNode {
			used += cpus
		}
		if used <= 0 {
			continue
		}
		for n := range s.Nodes {
			node := &s.Nodes[n]
			node.Wait = max(0, node.Wait-own*g.CPUByNode[node.Node]/used)
		}
	}
}

// CPUsOf returns the CPUs that a record of grants gives a guest; those that it has been asked to
// release and has not released are among them.
func CPUsOf(grants []Grant, guest string) (cpus topology.CPUSet) {
	for _, g := range grants {
		if g.Guest == guest {
			cpus = cpus.With(g.CPU)
		}
	}
	return cpus
}
