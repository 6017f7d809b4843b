package throttle

import (
	"math"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// What a move must have copied to tell how fast memory is copied, and of how
// many moves that is remembered: a few pages are copied within the noise, and what
// was long ago is of another load.
const (
	LeastCopy = 64 * topology.MiB
	lastMoves = 5
)

// Copy is what one move copied, and for how long it was at that, pauses not counted.
type Copy struct {
	Bytes topology.Bytes
	Took  time.Duration
}

// Copies are the latest moves of a host that tell how fast memory is copied
// there, oldest first. The zero value has none.
type Copies struct{ last []Copy }

// With returns c with one move more; c itself where that tells nothing.
func (c Copies) With(one Copy) Copies {
	if one.Bytes < LeastCopy || one.Took <= 0 {
		return c
	}
	all := append(slices.Clone(c.last), one)
	return Copies{all[max(len(all)-lastMoves, 0):]}
}

// BytesPerSecond is how fast memory is copied when nothing holds it back: the
// median of the moves, so that one at a bad time does not count; of an even
// number the slower of the two in the middle. 0: not known.
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
