package inventory

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// EstimateAccesses returns the placement estimate of a guest's accesses: each vCPU uses all of the guest's memory
// equally. cpu weighs the nodes on which its vCPUs run. It returns none if either is unknown.
func EstimateAccesses(cpu map[topology.NodeID]float64, memory topology.MemoryByNode) []AccessShare {
	var run, bytes float64
	for _, used := range cpu {
		run += used
	}
	for _, amount := range memory {
		bytes += float64(amount)
	}
	if run == 0 || bytes == 0 {
		return nil
	}
	shares := make([]AccessShare, 0, len(cpu)*len(memory))
	for from, used := range cpu {
		for to, amount := range memory {
			if part := used / run * float64(amount) / bytes; part > 0 {
				shares = append(shares, AccessShare{From: from, To: to, Share: part})
			}
		}
	}
	slices.SortFunc(shares, func(a, b AccessShare) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return shares
}

// RemoteShare sums the shares that leave the node, from 0 to 1.
func RemoteShare(shares []AccessShare) float64 {
	var remote float64
	for _, s := range shares {
		if s.From != s.To {
			remote += s.Share
		}
	}
	return min(1, remote)
}
