// Package throttle decides how fast the executor copies a guest's memory between
// nodes, from the effect on the guest. The rate rises slightly as long as the
// guest's vCPUs wait hardly longer for CPUs than before, and is halved when they do
// (additive increase, multiplicative decrease). Whatever the effect, the rate stays
// below a part of the memory bandwidth, and above a minimum at which copying ends.
package throttle

import (
	"time"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// Least is the minimum rate, in bytes a second, unless the cap is lower: a move of
	// a guest that is degraded anyway must end, and a half-moved guest is slowest.
	Least = 16 * topology.MiB
	// first is the initial rate, and step the increase with each slice. At low rates
	// the increase is at most a quarter of the rate, because a larger one would
	// slow the guest far too much.
	first = 256 * topology.MiB
	step  = 128 * topology.MiB
)

// A slice is the amount copied in sliceTime at the rate, within bounds. Each slice
// briefly disturbs all CPUs of the host (move_pages drains their page lists), and
// the executor does not observe the guest during a slice.
const (
	sliceTime     = 500 * time.Millisecond
	leastSlice    = 64 * topology.MiB
	greatestSlice = 256 * topology.MiB
)

// Bounds are the limits on copying, in bytes a second; zero is unknown or no limit.
type Bounds struct {
	MostWait float64 // share of time that vCPUs may wait in addition, 0 to 1
	Cap      topology.Bytes
}

// Of returns the bounds of a policy. bandwidth is the memory bandwidth of the slower
// of the two nodes in bytes a second, used the part that others use; zero is unknown.
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

// Slice is the result of copying one slice.
type Slice struct {
	Bytes topology.Bytes
	// Took is the time from the start of the slice to the start of the next, pauses included.
	Took time.Duration
	// Wait is the share of their runnable time that the guests' vCPUs waited for a
	// CPU during the slice. Before is the same share before copying began. The guest
	// that slowed most counts. Both are 0 if unknown.
	Wait, Before float64
}

// First is the initial rate, in bytes a second.
func First(b Bounds) topology.Bytes { return b.within(first) }

// Next is the rate that follows a slice copied at the given rate.
func Next(b Bounds, rate topology.Bytes, s Slice) topology.Bytes {
	switch {
	case s.Wait-s.Before > b.MostWait:
		return b.within(rate / 2)
	case reached(rate, s):
		return b.within(rate + min(step, rate/4))
	}
	return b.within(rate) // the host copies no faster: a higher rate would have no effect
}

// reached reports whether copying came near the allowed rate.
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

// Size is the amount to copy in one slice at a rate.
func Size(rate topology.Bytes) topology.Bytes {
	bytes := topology.Bytes(float64(rate) * sliceTime.Seconds())
	return min(max(bytes, leastSlice), greatestSlice)
}

// Pause is the wait that limits copying to the rate after a slice of the given bytes and duration.
func Pause(rate, bytes topology.Bytes, took time.Duration) time.Duration {
	due := time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
	return max(due-took, 0)
}
