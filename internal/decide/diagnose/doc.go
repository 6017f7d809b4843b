// Package diagnose finds what makes memory slow on a host, from an inventory
// alone: each finding has its evidence, its effect and the exact fix. A rule
// is a function over a view of the host (rules in finding.go name them all;
// files are named by what their rules have in common). It stays silent on what
// was not seen: read the inventory's gaps beside the findings.
//
// Not every default is a fault. A guest that takes its memory on demand gets
// it near the vCPU that touches it first, so it is judged by where its memory
// and vCPUs are, not by what its configuration lacks.
package diagnose
