// Package migrate decides which running VMs of a fleet should migrate to other hosts. It answers
// three questions with the same parts:
//
//   - Rebalance: what a host cannot solve itself becomes migrations to other hosts;
//   - Drain: every VM of a host goes to other hosts;
//   - Headroom: would all VMs of any one host still fit on the others?
//
// # Rebalancing
//
// A host plans its own moves first (package balance). VMs of a host migrate only if that plan
// moves nothing, proposes nothing, and VMs are degraded that it cannot relieve, all of that for
// Lasts. The target is the host that package schedule chooses for the VM, at the same cost as for
// a new one; a target without the spare CPUs is skipped. What both hosts
// lose before and after is predicted by the model of package balance. A migration must
//
//   - lower the cost of a degraded VM of the source by policy.Balance.MinGain,
//   - save more CPU time within policy.Balance.Horizon than copying takes from both hosts and
//     the VM, its downtime included,
//   - save the share MinGain of the VM's CPU demand, twice as much for each of its migrations
//     within the last day, and twice as much again for a return to a host that it left,
//   - leave the CPU use of the target's nodes below policy.Balance.MaxNodeCPU, and
//   - be one without which the others of the plan would save less.
//
// After a migration a VM is in cooldown, which doubles with each further one within a day, and for
// policy.Balance.NoReturn it does not return to a host that it left. Migrations in progress
// count as made. A VM whose mode is advise migrates only on an operator's word.
//
// # Legality
//
// Both hosts are reserved for a VM while it migrates. Targets have room for all migrations of a
// plan while all sources still hold theirs: every order of the plan is legal, and each may be
// left out.
//
// # Proofs
//
// Drain and Headroom place the largest VMs first and retry with those first that did not fit. If
// that fails they try all choices of few hosts and VMs. They say whether their answer is proven.
package migrate
