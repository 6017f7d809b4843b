package order_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/topology"
)

// after is a random relation: a move is possible once enough of those before it
// in the given order are done.
type after [][]int

func (a after) may(done []int, next int) bool {
	for _, before := range a[next] {
		if !slices.Contains(done, before) {
			return false
		}
	}
	return true
}

func (a after) possible(order []int) bool {
	for i, next := range order {
		if !a.may(order[:i], next) {
			return false
		}
	}
	return true
}

func lostInOrder(moves []order.Move, order []int) (sum float64) {
	elapsed := 0.0
	for _, i := range order {
		elapsed += float64(moves[i].Bytes)
		sum += max(0, moves[i].Saves) * elapsed
	}
	return sum
}

func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{{}}
	}
	for _, p := range permutations(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return all
}

// For any moves and any rules about what must come first: the order obeys the
// rules, and of up to six moves no order that obeys them loses less.
func TestRound_IsTheBestPossibleOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 8).Draw(t, "moves")
		moves, rules := make([]order.Move, n), make(after, n)
		for i := range moves {
			moves[i].Bytes = topology.Bytes(rapid.IntRange(0, 9).Draw(t, "bytes"))
			moves[i].Saves = float64(rapid.IntRange(-2, 9).Draw(t, "saves"))
			for k := range i {
				if rapid.IntRange(0, 3).Draw(t, "must follow") == 0 {
					rules[i] = append(rules[i], k)
				}
			}
		}
		order := order.Round(moves, rules.may)
		if len(order) != n || !rules.possible(order) {
			t.Fatalf("%v breaks the rules %v", order, rules)
		}
		if n > 6 {
			return
		}
		best := math.Inf(1)
		for _, p := range permutations(n) {
			if rules.possible(p) {
				best = min(best, lostInOrder(moves, p))
			}
		}
		if got := lostInOrder(moves, order); got > best+1e-9 {
			t.Errorf("%+v in order %v, rules %v: %v lost, %v is possible", moves, order, rules, got, best)
		}
	})
}

// Without rules, what copies nothing comes first; if no order seems possible, the
// given one stays.
func TestRound(t *testing.T) {
	moves := []order.Move{{Bytes: 4, Saves: 1}, {Bytes: 1, Saves: 1}, {Saves: 0.1}}
	always := func([]int, int) bool { return true }
	if got := order.Round(moves, always); !slices.Equal(got, []int{2, 1, 0}) {
		t.Errorf("%v", got)
	}
	never := func([]int, int) bool { return false }
	if got := order.Round(moves, never); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("%v", got)
	}
}
