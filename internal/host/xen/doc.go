// Package xen drives a Xen host through its tool xl: it runs in the host's
// control domain (dom0). What Xen does not report or cannot do is a gap or an
// error, never a guess: memory of a running guest does not move, and the nodes of
// a guest's memory are known only from the hypervisor's debug key u.
package xen
