// Package handoff carries out the hand-over of CPUs between mirrored guests.
//
// A CPU changes hands in two phases. First the guest that has it is asked: a
// grant without the vCPU. It acknowledges, the host sees that the vCPU is idle,
// and confines it to CPUs that the guest has. Only then is the CPU free, and
// granted to another guest. The order of effects is such that a CPU is never open
// to vCPUs of two guests, wherever the program is killed:
//
//	take:     record the grant, open the CPU to the vCPU, send the grant
//	release:  record that it leaves, send the grant, wait, confine the vCPU, remove the record
//
// The vCPUs of a guest run only on CPUs that the record gives it. So what a guest
// says, or does, delays itself alone.
package handoff
