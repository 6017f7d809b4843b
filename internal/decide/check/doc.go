// Package check decides whether a placement is legal on a host: whether the
// host has the CPUs and memory that it promises, given the holdings of all other
// guests, and whether it satisfies its spec. It shares no code with package
// place and recomputes everything from the inventory with simpler, slower
// arithmetic, so that it does not repeat that package's errors.
package check
