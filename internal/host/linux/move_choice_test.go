package linux

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/topology"
)

// pagesOn draws a window of small pages; runs of 512 at an aligned address make units.
func pagesOn(t *rapid.T) ([]uint64, []int32) {
	var statuses []int32
	for range rapid.IntRange(0, 6).Draw(t, "runs") {
		run := rapid.SampledFrom([]int{1, 3, 511, 512, 600}).Draw(t, "run")
		status := rapid.SampledFrom([]int32{0, 1, 2, 70, -2, -16}).Draw(t, "status")
		for range run {
			statuses = append(statuses, status)
		}
	}
	addresses := make([]uint64, len(statuses))
	first := rapid.SampledFrom([]uint64{0, 0x1000}).Draw(t, "first")
	for i := range addresses {
		addresses[i] = first + uint64(i)*4096
	}
	return addresses, statuses
}

func TestUnitsCoverEachPresentPageOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addresses, statuses := pagesOn(t)
		covered := make([]int, len(statuses))
		for _, u := range unitsOf(addresses, statuses, 4096) {
			if u.pages > 1 && addresses[u.first]%uint64(hugeSpan) != 0 {
				t.Fatalf("unit at %#x is not aligned", addresses[u.first])
			}
			for k := u.first; k < u.first+u.pages; k++ {
				covered[k]++
				if statuses[k] != u.at {
					t.Fatalf("page %d is on %d, its unit on %d", k, statuses[k], u.at)
				}
			}
		}
		for i, n := range covered {
			if want := map[bool]int{true: 1, false: 0}[statuses[i] >= 0]; n != want {
				t.Fatalf("page %d with status %d is in %d units", i, statuses[i], n)
			}
		}
	})
}

func TestChooseMoves_MovesOnlyPagesOutsideTheTargets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addresses, statuses := pagesOn(t)
		units := unitsOf(addresses, statuses, 4096)
		targets := topology.SetOf(
			rapid.SliceOfNDistinct(rapid.SampledFrom([]topology.NodeID{0, 1, 2, 3, 70}), 1, 4,
				rapid.ID[topology.NodeID]).
				Draw(t, "targets")...)
		spread := rapid.Bool().Draw(t, "spread")
		wanted := chooseMoves(units, targets, spread)
		held := map[topology.NodeID]int{}
		largest := 0
		for i, u := range units {
			at := topology.NodeID(u.at)
			inside := targets.Contains(at)
			if wanted[i] != stay {
				if topology.NodeID(wanted[i]) == at {
					t.Fatalf("unit %d moves to where it is", i)
				}
				at = topology.NodeID(wanted[i])
			}
			if !targets.Contains(at) {
				t.Fatalf("unit %d ends on node %d, outside %s", i, at, targets)
			}
			if inside && !spread && wanted[i] != stay {
				t.Fatalf("unit %d was on a target and moves without need", i)
			}
			held[at] += u.pages
			largest = max(largest, u.pages)
		}
		if !spread {
			return
		}
		for a := range targets.All() {
			for b := range targets.All() {
				if held[a]-held[b] > 2*largest {
					t.Fatalf("spread leaves %d pages on node %d and %d on node %d", held[a], a, held[b], b)
				}
			}
		}
	})
}

// With pages of one size the least number of moves is known: the pages outside
// plus each target's surplus over its part.
func TestSpreadMovesNoMoreThanNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		statuses := rapid.SliceOfN(rapid.SampledFrom([]int32{0, 1, 2, 3}), 0, 60).Draw(t, "statuses")
		var units []unit
		held := map[int32]int{}
		for i, s := range statuses {
			units = append(units, unit{i, 1, s})
			held[s]++
		}
		targets := nodes("0-2")
		moves := 0
		for _, w := range chooseMoves(units, targets, true) {
			if w != stay {
				moves++
			}
		}
		share, over := len(units)/3, len(units)%3
		need := held[3]
		for _, h := range []int{held[0], held[1], held[2]} {
			need += max(0, h-share)
		}
		if moves > need || moves < need-over-held[3] {
			t.Fatalf("%d moves, at most %d are needed (%v)", moves, need, held)
		}
	})
}

func TestSpreadAlternatesOverAddresses(t *testing.T) {
	units := make([]unit, 64)
	for i := range units {
		units[i] = unit{i, 1, 0}
	}
	wanted := chooseMoves(units, nodes("0-1"), true)
	for i := 0; i < len(wanted); i += 2 {
		if (wanted[i] == 1) == (wanted[i+1] == 1) {
			t.Fatalf("pages %d and %d end on the same node: %v", i, i+1, wanted)
		}
	}
}

func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		index := rapid.SliceOf(rapid.Int()).Draw(t, "index")
		n := rapid.IntRange(1, 600).Draw(t, "n")
		pieces := split(index, n)
		var joined []int
		for _, p := range pieces {
			if len(p) == 0 {
				t.Fatal("empty piece")
			}
			joined = append(joined, p...)
		}
		if len(pieces) > n || len(joined) != len(index) {
			t.Fatalf("%d entries in %d pieces of at most %d", len(joined), len(pieces), n)
		}
	})
}
