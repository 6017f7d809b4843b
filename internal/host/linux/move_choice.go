package linux

import (
	"github.com/numavisor/numavisor/internal/topology"
)

// stay marks a page that does not move.
const stay int32 = -1

// hugeSpan is the size of a transparent huge page on x86 and Arm with 4K pages.
const hugeSpan = 2 * topology.MiB

// unit is the smallest amount that moves together: a page, or an aligned 2 MiB
// stretch of pages all on one node. The latter may be one transparent huge
// page, which moves as a whole whichever of its addresses is asked for.
type unit struct {
	first, pages int
	at           int32 // current node
}

// unitsOf divides a window into units; addresses without a page are in none.
func unitsOf(addresses []uint64, statuses []int32, step topology.Bytes) []unit {
	span := int(hugeSpan / step)
	var units []unit
	for i := 0; i < len(statuses); {
		u := unit{first: i, pages: 1, at: statuses[i]}
		if span > 1 && topology.Bytes(addresses[i])%hugeSpan == 0 && sameFrom(statuses, i, span) {
			u.pages = span
		}
		if u.at >= 0 {
			units = append(units, u)
		}
		i += u.pages
	}
	return units
}

func sameFrom(statuses []int32, first, count int) bool {
	if first+count > len(statuses) {
		return false
	}
	for _, s := range statuses[first+1 : first+count] {
		if s != statuses[first] {
			return false
		}
	}
	return true
}

// chooseMoves decides which units move where: wanted[i] is a node, or stay.
// Units outside the targets move in, each to the target that has least at that
// point. With spread, targets give to each other until no move would make them
// more equal.
func chooseMoves(units []unit, targets topology.NodeSet, spread bool) (wanted []int32) {
	ids := targets.IDs()
	held := make(map[int32]int, len(ids)) // pages, after the moves chosen so far
	wanted = make([]int32, len(units))
	for i, u := range units {
		wanted[i] = stay
		if targets.Contains(topology.NodeID(u.at)) {
			held[u.at] += u.pages
		}
	}
	for i, u := range units {
		if !targets.Contains(topology.NodeID(u.at)) {
			wanted[i] = least(held, ids)
			held[wanted[i]] += u.pages
		}
	}
	if spread && len(ids) > 1 {
		even(units, wanted, held, ids)
	}
	return wanted
}

// even evens out the pages of the targets. It first takes units at equal
// distances from each target that has more than its part, so that nodes
// alternate over the addresses; then it takes the remaining surplus from
// anywhere.
func even(units []unit, wanted []int32, held map[int32]int, ids []topology.NodeID) {
	excess, total, seen := map[int32]int{}, map[int32]int{}, map[int32]int{}
	sum := 0
	for _, id := range ids {
		sum += held[int32(id)]
	}
	for _, id := range ids {
		total[int32(id)] = held[int32(id)]
		excess[int32(id)] = max(0, held[int32(id)]-sum/len(ids))
	}
	for _, spaced := range []bool{true, false} {
		for i, u := range units {
			at := u.at
			if wanted[i] != stay {
				at = wanted[i]
			}
			if spaced {
				before := seen[at]
				seen[at] += u.pages
				turn := total[at] * u.pages
				if seen[at]*excess[at]/turn == before*excess[at]/turn {
					continue
				}
			}
			if to := least(held, ids); held[at]-held[to] > u.pages {
				held[at] -= u.pages
				held[to] += u.pages
				wanted[i] = to
				if to == u.at { // the unit was chosen to move, but may stay after all
					wanted[i] = stay
				}
			}
		}
	}
}

// least returns the target with the fewest pages; the lowest id among equals.
func least(held map[int32]int, ids []topology.NodeID) int32 {
	best := int32(ids[0])
	for _, id := range ids[1:] {
		if held[int32(id)] < held[best] {
			best = int32(id)
		}
	}
	return best
}
