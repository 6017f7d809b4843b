package plan

import (
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Batch is the kind of a few small moves that are made as one.
const Batch MoveKind = "batch"

// Join makes neighbouring moves of a round into one as long as they copy no
// more than most together, and concern different guests: their vCPUs go first,
// and none waits long for its memory. What each move costs besides copying,
// reading the host and proving the result, is paid once. Larger moves stay
// alone: a guest whose vCPUs have gone should not wait for others' memory.
// Advised moves are not joined: each is accepted by itself.
func Join(moves []Move, most topology.Bytes) []Move {
	var out []Move
	for _, m := range moves {
		if n := len(out); n > 0 && joins(out[n-1], m, most) {
			out[n-1] = join(out[n-1], m)
			continue
		}
		out = append(out, m)
	}
	return out
}

func joins(a, b Move, most topology.Bytes) bool {
	if a.Advised || b.Advised || a.Cost.Bytes+b.Cost.Bytes > most {
		return false
	}
	for _, g := range a.Guests {
		for _, o := range b.Guests {
			if g.Guest == o.Guest {
				return false
			}
		}
	}
	return true
}

func join(a, b Move) Move {
	a.Kind = Batch
	a.Guests = append(a.Guests[:len(a.Guests):len(a.Guests)], b.Guests...)
	a.Benefit.Cost += b.Benefit.Cost
	a.Benefit.AccessCPUs += b.Benefit.AccessCPUs
	a.Benefit.WaitCPUs += b.Benefit.WaitCPUs
	a.Benefit.Horizon = min(a.Benefit.Horizon, b.Benefit.Horizon)
	a.Cost.Cost += b.Cost.Cost
	a.Cost.Bytes += b.Cost.Bytes
	a.Cost.Took += b.Cost.Took
	a.Cost.RateMeasured = a.Cost.RateMeasured && b.Cost.RateMeasured
	a.Cost.PageTables = max(a.Cost.PageTables, b.Cost.PageTables)
	a.Why = strings.Join([]string{a.Why, b.Why}, " | ")
	return a
}
