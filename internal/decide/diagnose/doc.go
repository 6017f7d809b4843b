// Package diagnose finds what slows memory access on a host, from an inventory
// alone. Each finding has its evidence, its effect and a fix. A rule is a
// function over a view of the host; finding.go lists all rules, and a file
// holds rules with a common subject. A rule reports nothing about what the
// inventory does not contain; the caller reports the inventory's gaps.
//
// Not every default is a fault. A guest that allocates its memory on demand
// gets it near the vCPU that touches it first. Such a guest is therefore judged
// by the location of its memory and vCPUs, not by its configuration.
package diagnose
