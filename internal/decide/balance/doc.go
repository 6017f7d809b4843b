// Package balance decides which running guests of a host should move to other
// nodes, and whether that pays: inventory, policy and a short history in, a
// plan for the whole host out.
//
// # What is best
//
// The host's cost is the sum of its guests' costs, each times the CPUs that
// the guest asks for. A guest's cost has the terms of package cost that change
// with its place: access (latency and bandwidth of the ways its accesses
// take, and how busy the memory at their end is; times how much the guest
// depends on memory) and load. CPUs count as they are asked for, used and
// waited for, where that was measured, else as placed. A move adds its price,
// which is the one that place.Again asks for.
//
// # What moves
//
// A guest moves as a whole to a layout: a home for each of its cells, under
// the same rules as placing (place.On), so every placement in a plan is legal
// for its spec. Where memory or vCPUs are there already, the move is a mere
// repin or copy. Guests that see no NUMA may be divided anew, guests with
// cells keep them. Memory that vfio pinned stays, as does that of Xen guests:
// they may only be pinned back to where their memory lies.
//
// # When
//
// Nothing moves unless a guest has been degraded for a while (policy.Balance), and
// a move must make a degraded guest better off by a margin, the host as a
// whole better off by more than the price, and earn the time of the copy
// within the horizon. Whom an earlier move of the plan helps is no reason for a
// further one, and nothing is copied where a guest's vCPUs can come to its
// memory and it then lacks nothing. No move fills a node's CPUs beyond a limit,
// or beyond what the fullest of the nodes concerned had before: nearness never
// comes before CPUs. A guest that moved rests, longer each time, and does not go
// back for a while. Degradation begins and ends at different thresholds.
//
// # How
//
// Descent by the best single move, then by the best pair (a swap, or one that
// makes room for another); all combinations where those are few. The moves of
// the best state found are then put in an order in which every state between
// them is legal and none is worse than where it began.
package balance
