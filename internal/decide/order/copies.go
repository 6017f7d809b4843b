// Package order decides in which order VMs are copied, and when the vCPUs of
// a VM follow its memory, so that the VMs lose as little work as possible until
// all of them are well. It only computes.
//
// A VM loses work at a constant rate until its memory is at its target. One
// copier finishes the VMs one after the other; with n equal VMs in turns, all
// are well only at the end. The order by loss rate over copying time gives the
// least weighted sum of completion times (W. E. Smith, Various optimizers for
// single-stage production, 1956). It is the same for every copy rate, so bytes
// stand for time. A copy of zero bytes comes first and delays nobody.
package order

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// Copy is the copying of one VM's memory.
type Copy struct {
	Bytes topology.Bytes // to copy
	There topology.Bytes // already on the target nodes
	// Loses is the work that the VM loses until it is well, in CPUs (seconds of
	// CPU time a second). 0: not known; such VMs come last, the smallest first.
	Loses float64
	// Latency describes the VM's accesses while it is copied.
	Latency Latency
}

// Latency holds mean latencies of the VM's accesses, in any one unit: from its
// vCPUs at their present nodes and at their target nodes, each to memory that
// is still to be copied and to memory on the target nodes.
type Latency struct {
	HereToOld, HereToNew     float64
	TargetToOld, TargetToNew float64
}

// Of returns the indices of the copies in the order in which they should be
// completed. Of equal copies the earlier one comes first.
func Of(copies []Copy) []int {
	order := make([]int, len(copies))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := copies[i], copies[j]
		if empty := cmp.Compare(min(a.Bytes, 1), min(b.Bytes, 1)); empty != 0 {
			return empty
		}
		byRatio := cmp.Compare(b.Loses*float64(a.Bytes), a.Loses*float64(b.Bytes))
		return cmp.Or(byRatio, cmp.Compare(a.Bytes, b.Bytes))
	})
	return order
}

// SwitchAt returns how many bytes must have been copied before the vCPUs move to
// the target nodes. From then on a mean access is no slower from there. Between
// two nodes that are equally far both ways, that is half of the memory. It is 0
// for vCPUs that are no nearer to the old memory now than from their target.
func (c Copy) SwitchAt() topology.Bytes {
	nearer := c.Latency.TargetToOld - c.Latency.HereToOld // what the present nodes save with old memory
	farther := c.Latency.HereToNew - c.Latency.TargetToNew
	switch {
	case nearer <= 0:
		return 0
	case farther <= 0:
		return c.Bytes
	}
	share := nearer / (nearer + farther)
	total := float64(c.There + c.Bytes)
	return topology.Bytes(min(max(0, share*total-float64(c.There)), float64(c.Bytes)))
}
