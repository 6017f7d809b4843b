// Package pace decides how fast the memory of a running guest may be copied,
// by how the guest bears it: a little faster while it does, half as fast when
// it does not. Values in, values out.
package pace

import "github.com/numavisor/numavisor/internal/topology"

// Limits bound the pace.
type Limits struct {
	// Most is the fastest, in bytes a second; 0: not bounded.
	Most topology.Bytes
	// Disturbance is which share of the CPU time that a guest had before it may
	// lose while its memory is copied: to waiting, or to pages on their way.
	Disturbance float64
}

// The pace begins at Start, and never falls below Least: a move that takes
// for ever disturbs for ever.
const (
	Start = 256 * topology.MiB
	Least = 16 * topology.MiB
)

// Use is what a guest's vCPUs did over some time, in CPUs.
type Use struct {
	Ran    float64 // how many CPUs they used
	Waited float64 // and how many more they would have used
}

// First is the pace to begin with.
func First(l Limits) topology.Bytes { return l.bound(Start) }

// Next is the pace after some memory was copied: before and during tell what
// the guest did before that and meanwhile.
func Next(rate topology.Bytes, l Limits, before, during Use) topology.Bytes {
	if Disturbance(before, during) > l.Disturbance {
		return l.bound(rate / 2)
	}
	return l.bound(rate + rate/16)
}

// Disturbance is the share of the CPU time that a guest had before and lost
// meanwhile, 0 to 1: its vCPUs wait for CPUs more, or for pages on their way,
// which shows as CPU time not used. A guest that was idle cannot lose any.
func Disturbance(before, during Use) float64 {
	const idle = 0.05 // of a CPU
	if before.Ran < idle {
		return 0
	}
	lost := (before.Ran - during.Ran) / before.Ran
	waits := (during.Waited - before.Waited) / (before.Ran + before.Waited)
	return min(1, max(0, lost, waits))
}

func (l Limits) bound(rate topology.Bytes) topology.Bytes {
	rate = max(rate, Least)
	if l.Most > 0 {
		rate = min(rate, l.Most)
	}
	return rate
}
