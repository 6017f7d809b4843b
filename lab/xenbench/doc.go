// Package xenbench measures what placement is worth on a Xen host, in the lab: how much work 1 to 8 small memory-bound
// VMs complete, and which share of their memory accesses is local, by the access counter. It repeats a measurement
// of the Xen wiki of 2014 (SPECjbb2005 in 1 to 8 VMs of four vCPUs, on a host with two nodes and 16 CPUs), in which
// placement was worth 10 to 20 % and pinning a VM that runs already did not reach memory that is local from the start.
//
// All measurements of a call are made in one lab, one after the other, with the ways to place VMs in turn. The VMs
// sweep their memory without end, so that they depend on it more than SPECjbb2005 does. Distance is felt as in
// package peers: local accesses are delayed too, and the work hardly depends on how busy the emulating machine is.
package xenbench
