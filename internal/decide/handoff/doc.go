// Package handoff decides which of several mirrored guests each CPU serves.
//
// A mirrored guest has one vCPU for each CPU of its nodes, pinned one to one.
// Several such guests cover the same CPUs, and each CPU serves at most one of
// them. Decide compares what the guests demand with what they are granted, and
// returns releases (a guest is asked to free a CPU) and takes (a free CPU is
// granted to a guest). The caller carries both out, in two phases: a CPU that
// a release names becomes free only when its guest has acknowledged the release
// and its vCPU has been seen idle, and only a free CPU is ever taken. A later
// call of Decide returns that take.
//
// vCPU 0 of a guest is its anchor: the guest's kernel cannot free it, so its CPU
// is granted for as long as the guest runs. Anchors of different guests are
// different CPUs.
package handoff
