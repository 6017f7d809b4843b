// Package drift compares where a guest is with where its placement wants it:
// what differs, which share of it is as intended, and which share of its
// memory is local to the vCPUs that use it. It judges what an inventory saw;
// what was not seen is not judged.
package drift
