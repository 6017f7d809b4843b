package plan

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Batch is the kind of several small moves that are joined into one.
const Batch MoveKind = "batch"

// Join combines adjacent moves of a round as long as they copy no more than most
// together and concern different guests. Their vCPUs move first, and none waits
// long for its memory. The fixed costs of a move (reading the host, verifying the
// result) are then paid once. Larger moves stay separate: a guest whose vCPUs have
// moved should not wait for the memory of others. Advised moves are not joined:
// the operator accepts each one separately.
func Join(moves []Move, most topology.Bytes) []Move {
	var out []Move
	for _, m := range moves {
		if n := len(out); n > 0 && joins(out[n-1], m) && out[n-1].Cost.Bytes+m.Cost.Bytes <= most {
			out[n-1] = join(out[n-1], m)
			continue
		}
		out = append(out, m)
	}
	return out
}

// JoinPulled combines adjacent moves of a round like Join, whatever they copy: the
// kernel may bring the memory of all their guests to their vCPUs at the same time.
func JoinPulled(moves []Move) []Move { return Join(moves, math.MaxInt64) }

func joins(a, b Move) bool {
	if a.Advised || b.Advised {
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
	a.Guests = append(parts(a), parts(b)...)
	a.Kind = Batch
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

// parts returns the guests of a move as parts of a batch: each keeps its kind.
func parts(m Move) []GuestMove {
	all := slices.Clone(m.Guests)
	for i := range all {
		all[i].Kind = cmp.Or(all[i].Kind, m.Kind)
	}
	return all
}
