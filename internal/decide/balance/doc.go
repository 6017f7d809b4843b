// Package balance decides which running guests of a host should move to other
// nodes, and whether a move pays. It takes an inventory, the policy and recent
// moves, and returns a plan for the whole host.
//
// # Objective
//
// The host's cost is the sum of its guests' costs, each multiplied by the CPUs
// that the guest demands. A guest's cost is the work that it loses:
//
//   - access: latency and bandwidth between its vCPUs and its memory, and the
//     contention at that memory, weighted by how much the guest's speed depends
//     on memory;
//   - load: how much of its demand waits for the CPUs of its nodes: as their use
//     predicts, but no more than the vCPUs and the host's work beyond their CPUs. vCPUs that
//     may run on every node make room while other nodes have idle CPUs. Guests that may use only
//     some CPUs of a node (limits, CPU pools, pins) wait as on a node that has only these, and
//     others leave them these CPUs while the node has more. CPU use
//     decides only between layouts in which equally much is lost. Memory in use costs nothing.
//
// A guest's CPU demand is the CPU time it used and waited for where that was
// measured, else its number of vCPUs. Its wait in other states is predicted from the
// measured one. A move adds a one-time price: the CPU time that copying takes from the
// host and the guest, spread over policy.Balance.Horizon.
//
// # Candidate moves
//
// A guest moves as a whole to a new layout: a home node for each of its cells,
// under the same rules as a new placement (place.On). Every placement in a plan
// is therefore legal for the guest's spec. If the memory or the vCPUs are on
// the new nodes already, the move only repins vCPUs or only copies memory. A
// guest without virtual NUMA cells may be divided differently; a guest with
// cells keeps them. A guest whose memory is pinned by vfio may only be pinned back to the nodes of
// its memory. If the hypervisor moves no memory of a running guest, only the vCPUs move: to
// the memory, or away from it to a node with CPUs for them.
//
// # Conditions
//
// Nothing moves unless a guest has been degraded for policy.Balance.DegradedFor, or has
// waited for CPUs half as much as a degraded one for 30 times as long. In the second
// case a move must save ten times the CPU time that copying takes. A move must
//
//   - lower a degraded guest's cost by at least policy.Balance.MinGain,
//   - lower the host's cost by more than the price of the move,
//   - save more CPU time within policy.Balance.Horizon than the copy takes, and
//   - save at least MinGain of the CPU demand whose memory it copies, twice as much
//     for each move that the guest made within the last day, and twice as much again
//     for a return to a node that it left, and
//   - be worth it in every plan for two samples, twice as long for each move within the
//     last day, unless it saves accesses or half of the demand that it copies.
//
// Steps that are only worth it together are one move: at most five, or any number that
// copy none of the guests' RAM.
// No move of the plan is one without which the others would save as much.
// A guest already helped by an earlier move of the plan does not justify
// another. If repinning a guest's vCPUs to its memory ends its degradation, its
// memory is not copied. No move raises a node's CPU use beyond
// policy.Balance.MaxNodeCPU, unless one of the nodes involved was above it
// before, or the node has a CPU for each vCPU: capacity comes before locality. No move raises the
// use of CPUs to which guests are confined beyond MaxNodeCPU, unless other such CPUs were as
// busy before the plan. A node that lacks memory for what is promised to guests may lack as
// much afterwards. After a move a guest is in cooldown, which doubles with each further move
// within a day, and for a while it does not return to the nodes it left. Degradation begins and
// ends at different thresholds.
//
// # Search
//
// The search descends by the best single move, then by the best pair (a swap,
// or a move that makes room for another). A branch and bound over all combinations finds
// a better state, or excludes that one saves more than 1 % of the price of the moves; where vCPUs have no CPU,
// it may miss one in some of a thousand hosts (docs/decisions/0063). If it is not
// finished after policy.SearchSteps, further descents begin from other states. The search then
// orders the moves of the best state found so that every intermediate state is legal and none
// costs more than the initial one. A plan that copies memory and has refused changes on the way to that state is made
// again without them. If the second plan copies less, it replaces the first one, unless that saves as much more as its
// additional copies must save.
package balance
