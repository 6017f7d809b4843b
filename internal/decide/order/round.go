package order

import (
	"math"
	"slices"

	"github.com/numavisor/numavisor/internal/topology"
)

// Move is one move of a round, whose moves are made one after the other.
type Move struct {
	Bytes topology.Bytes // to copy
	Saves float64        // CPUs that are no longer lost once it is done; negative counts as 0
}

// mostExact bounds the number of moves of which all orders are considered.
const mostExact = 6

// Round returns the order of moves in which the least work is lost until all are
// done, among the orders in which every move is possible: may reports whether a
// move is possible once others are done, given as indices in ascending order. Of
// equally good orders it prefers that of Of. The given order must be possible;
// it is the result where no better one is found. Of more than six moves it
// considers two orders: that of Of, and the one that takes the first possible
// move of it each time.
func Round(moves []Move, may func(done []int, next int) bool) []int {
	copies := make([]Copy, len(moves))
	for i, m := range moves {
		copies[i] = Copy{Bytes: m.Bytes, Loses: max(0, m.Saves)}
	}
	wanted := Of(copies)
	if greedy := firstPossible(wanted, may); slices.Equal(greedy, wanted) || len(moves) > mostExact {
		if len(greedy) == len(moves) {
			return greedy
		}
		return given(len(moves))
	}
	return exact(copies, wanted, may)
}

func given(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// firstPossible orders the wanted moves: at each step it takes the first one that is
// possible. When no move is possible, it stops and omits the rest.
func firstPossible(wanted []int, may func(done []int, next int) bool) []int {
	left, order := slices.Clone(wanted), []int{}
	for len(left) > 0 {
		done := slices.Sorted(slices.Values(order))
		at := slices.IndexFunc(left, func(next int) bool { return may(done, next) })
		if at < 0 {
			return order
		}
		order, left = append(order, left[at]), slices.Delete(left, at, at+1)
	}
	return order
}

// exact finds the best order by the least loss after each set of moves.
func exact(copies []Copy, wanted []int, may func(done []int, next int) bool) []int {
	n := len(copies)
	type state struct {
		lost float64
		last int // the move that led here
	}
	states := make([]state, 1<<n)
	for set := range states[1:] {
		states[set+1].lost = math.Inf(1)
	}
	for set := range states {
		if math.IsInf(states[set].lost, 1) {
			continue
		}
		var done []int
		losing := 0.0
		for i, c := range copies {
			if set>>i&1 == 1 {
				done = append(done, i)
			} else {
				losing += c.Loses
			}
		}
		for _, next := range wanted {
			to := &states[set|1<<next]
			lost := states[set].lost + losing*float64(copies[next].Bytes)
			if set>>next&1 == 0 && lost < to.lost && may(done, next) {
				to.lost, to.last = lost, next
			}
		}
	}
	if math.IsInf(states[len(states)-1].lost, 1) {
		return given(n)
	}
	var order []int
	for set := len(states) - 1; set > 0; set &^= 1 << states[set].last {
		order = append(order, states[set].last)
	}
	slices.Reverse(order)
	return order
}
