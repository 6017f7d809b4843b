// Package cost is the one price list: what a placement costs while it lasts.
// Placing and balancing both read it, so that one never undoes the other's work.
//
// A guest's cost is a weighted sum of eight terms, smaller is better. Every
// term is a mean over the guest: cell i has the share c(i) of its vCPUs and
// m(i) of its memory, runs on the CPUs of node p(i) and has its memory on
// node q(i), usually the same one. Weights are policy.Weights.
//
//	latency    sum over i,j of c(i) m(j) (L(p(i),q(j)) - 1)
//	bandwidth  sum over i,j of c(i) m(j) (B(p(i),q(j)) - 1)
//	load       sum over i of half c(i) wait(CPU use of p(i)) + half m(i) (memory use of q(i))
//	stranding  mean over i of the growth of |free CPUs - free memory|, as shares of the node
//	wide room  mean over i of the unused rest of a node that was empty before
//	devices    sum over devices d and cells i of m(i) (L(d,q(i)) - 1)
//	cache      sum over i of c(i) (last-level caches of the cell's exclusive vCPUs - 1)
//	growth     sum over i of m(i) (huge pages missing in the pool of q(i), as a share)
//
// L is access latency over the best of the host, B the host's best bandwidth
// over that of the path; see Access for where they are from. Uses are
// computed after the guest has been placed. wait(u) is u up to 1, the square
// of u above; packing hosts pay 1 - u instead of u up to 1.
//
// Amounts are Micro, millionths as whole numbers: sums are exact, do not
// depend on their order, and equal placements cost exactly the same.
package cost
