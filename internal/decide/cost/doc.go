// Package cost is the only price list: what a placement costs while it lasts.
// Placing and balancing both use it, so that neither reverses the moves of the other.
//
// A guest's cost is a weighted sum of eight terms, smaller is better. Every
// term is a mean over the guest: cell i has the share c(i) of its vCPUs and
// m(i) of its memory, runs on the CPUs of node p(i) and has its memory on
// node q(i), usually the same one. Weights are policy.Weights.
//
//	latency    sum over i,j of c(i) m(j) (L(p(i),q(j)) - 1)
//	bandwidth  sum over i,j of c(i) m(j) (B(p(i),q(j)) - 1) + sum over i of m(i) Contention(busy(q(i)))
//	load       sum over i of half c(i) wait(CPU use of p(i)) + half m(i) (memory use of q(i))
//	stranding  mean over i of the growth of |free CPUs - free memory|, as shares of the node
//	wide room  sum over i of the room for typical cells that is lost: package place
//	devices    sum over devices d and cells i of m(i) (L(d,q(i)) - 1)
//	cache      sum over i of c(i) (last-level caches of the cell's exclusive vCPUs - 1)
//	growth     sum over i of m(i) (huge pages missing in the pool of q(i), as a share)
//
// L is access latency relative to the best of the host. B is the host's best
// bandwidth divided by that of the path; Access documents their sources. busy is the share of a node's memory
// bandwidth that other guests use, as measured. Uses
// include the guest after its placement; CPU use under load is the measured demand of
// other guests and of the host, or their vCPUs where they were not measured. wait(u) is u up to 1, and the square of u
// above; policies that pack hosts pay 1 - u instead of u up to 1.
//
// Amounts are Micro, millionths as whole numbers: sums are exact and do not
// depend on their order, and equal placements have exactly the same cost.
package cost
