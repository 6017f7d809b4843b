// Package throttle decides how fast a guest's memory is copied between nodes, from
// how the guest bears it: the rate rises by a little as long as its vCPUs wait
// hardly longer for CPUs than before, and is halved when they do (additive
// increase, multiplicative decrease). Whatever the guest says, it stays below
// a part of the memory bandwidth, and above a rate that comes to an end.
package throttle

import (
	"time"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// Least is the rate, in bytes a second, that copying never falls below
	// unless it is capped lower: a guest that is degraded anyway must be finished some
	// time, and half-moved it is slowest.
	Least = 16 * topology.MiB
	// first is the rate to begin with, and step by what it rises with each
	// slice; at low rates a rise is at most a quarter of the rate, else each
	// would go far beyond what the guest bears.
	first = 256 * topology.MiB
	step  = 128 * topology.MiB
)

// Slices are as large as what is copied in sliceTime at the rate, within bounds:
// each disturbs all CPUs of the host for a moment (move_pages drains their page
// lists), and is copied without a look at the guest.
const (
	sliceTime     = 500 * time.Millisecond
	leastSlice    = 64 * topology.MiB
	greatestSlice = 256 * topology.MiB
)

// Bounds are what copying has to keep to. Bytes a second; zero is unknown or
// no bound.
type Bounds struct {
	MostWait float64 // share of time that vCPUs may wait longer than before, 0 to 1
	Cap      topology.Bytes
}

// Of gives the bounds of a policy. bandwidth is what the slower of the nodes
// between which memory is copied can do in bytes a second, used what others
// take of it; zero is not known.
func Of(b policy.Balance, bandwidth, used topology.Bytes) Bounds {
	b = b.WithDefaults()
	bounds := Bounds{MostWait: b.MaxGuestWait, Cap: b.Pace}
	if bandwidth > 0 {
		part, left := topology.Bytes(b.MaxBandwidth*float64(bandwidth)), bandwidth-min(used, bandwidth)
		part = max(min(part, left), Least)
		if bounds.Cap == 0 {
			bounds.Cap = part
		}
		bounds.Cap = min(bounds.Cap, part)
	}
	return bounds
}

// Slice is what copying one slice came to.
type Slice struct {
	Bytes topology.Bytes
	// Took is the time from the begin of the slice to that of the next, pauses included.
	Took time.Duration
	// Wait is the share of their runnable time that the guests' vCPUs waited for
	// a CPU meanwhile, Before the same before copying began; the guest that
	// slowed most counts. Both 0 where that is not known.
	Wait, Before float64
}

// First is the rate to begin with, in bytes a second.
func First(b Bounds) topology.Bytes { return b.within(first) }

// Next is the rate after a slice was copied at a rate.
func Next(b Bounds, rate topology.Bytes, s Slice) topology.Bytes {
	switch {
	case s.Wait-s.Before > b.MostWait:
		return b.within(rate / 2)
	case reached(rate, s):
		return b.within(rate + min(step, rate/4))
	}
	return b.within(rate) // the host gives no more: a higher rate would be but a number
}

// reached reports whether copying came near the rate it was allowed.
func reached(rate topology.Bytes, s Slice) bool {
	return s.Took > 0 && float64(s.Bytes)/s.Took.Seconds() > 0.7*float64(rate)
}

func (b Bounds) within(rate topology.Bytes) topology.Bytes {
	rate = max(rate, Least)
	if b.Cap > 0 {
		rate = min(rate, b.Cap)
	}
	return rate
}

// Size is how much to copy at once at a rate.
func Size(rate topology.Bytes) topology.Bytes {
	bytes := topology.Bytes(float64(rate) * sliceTime.Seconds())
	return min(max(bytes, leastSlice), greatestSlice)
}

// Pause is how long to wait after copying bytes took so long, to keep to a rate.
func Pause(rate, bytes topology.Bytes, took time.Duration) time.Duration {
	due := time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
	return max(due-took, 0)
}
