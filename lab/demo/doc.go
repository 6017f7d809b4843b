// Package demo shows the main job on a NUMA host of the lab: three VMs that are
// misplaced in ways that are common, what that costs them, and what binding them
// while they run changes.
//
// Its headline is the access counter's: which share of a VM's memory accesses
// stays on the node of the CPU, and how long the mean access takes. The counter
// counts cache misses, so its figures do not depend on how busy the machine is.
// Bandwidth does: the demo measures all VMs in turns, next to a VM that is placed
// well from the start, prints the spread, and says when the machine is too busy
// for a comparison.
package demo
