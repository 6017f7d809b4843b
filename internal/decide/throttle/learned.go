package throttle

import (
	"math"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// The least that a move must have copied for its rate to count, and the number of
// moves to remember. Copying a few pages takes no longer than the noise, and an old
// move reflects another load.
const (
	LeastCopy = 64 * topology.MiB
	lastMoves = 5
)

// Copy is the amount that one move copied, and its duration without pauses.
type Copy struct {
	Bytes topology.Bytes
	Took  time.Duration
}

// Copies are a host's latest moves that show how fast it copies memory, oldest
// first. The zero value has none.
type Copies struct{ last []Copy }

// With returns c with one move more, or c itself if the move shows no rate.
func (c Copies) With(one Copy) Copies {
	if one.Bytes < LeastCopy || one.Took <= 0 {
		return c
	}
	all := append(slices.Clone(c.last), one)
	return Copies{all[max(len(all)-lastMoves, 0):]}
}

// BytesPerSecond is the rate at which the host copies memory without throttling:
// the median of the moves, so that one move at a bad time does not count. For an
// even number it is the slower of the two in the middle. 0: unknown.
func (c Copies) BytesPerSecond() topology.Bytes {
	if len(c.last) == 0 {
		return 0
	}
	rates := make([]float64, len(c.last))
	for i, one := range c.last {
		rates[i] = float64(one.Bytes) / one.Took.Seconds()
	}
	slices.Sort(rates)
	median := rates[(len(rates)-1)/2]
	return max(1, topology.Bytes(min(median, math.MaxInt64)))
}
