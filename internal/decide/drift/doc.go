// Package drift compares the actual location of a guest with its placement: the
// differences, the share of the guest that is as intended, and the share of its
// memory that is local to the vCPUs using it. It judges what an inventory
// observed, and omits what the inventory could not observe.
package drift
