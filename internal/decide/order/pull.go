package order

import (
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Pull describes whether the kernel can bring a VM's memory to its vCPUs, by NUMA
// hinting faults: it takes the mapping of pages away, and the vCPU that touches one
// next copies it to its own node. Pages that are used come first, and all VMs are
// served at the same time. Memory that nobody touches stays where it is.
type Pull struct {
	Bytes topology.Bytes // to copy
	// Movable is the part of Bytes that hinting faults move: anonymous memory with the
	// default policy. task_numa_work skips mappings whose policy lacks MPOL_F_MOF,
	// huge page pools, and shared memory (memfd) that has no policy of its own.
	Movable topology.Bytes
	Free    topology.Bytes // on the target
	Targets int            // number of target nodes
	// Loses is the work that the VM loses until it is well, in CPUs, and VCPUs the
	// number of its vCPUs.
	Loses float64
	VCPUs int
}

// leastPulled is the share of a VM's memory that hinting faults must be able to
// move. Below it our own copy has the greater part of the work in any case.
const leastPulled = 0.9

// Possible reports whether the kernel can bring the VM's memory to its vCPUs. It
// needs one target: it brings pages to the node of the CPU that touches them, which
// with several nodes need not be the node of the cell.
func (p Pull) Possible() bool {
	return p.Bytes > 0 && p.Targets == 1 && p.Free >= p.Bytes &&
		float64(p.Movable) >= leastPulled*float64(p.Bytes)
}

// Pays reports whether the kernel is the better mover for VMs that are copied in
// this order otherwise. A vCPU that copies a page does not work meanwhile, so each
// VM loses all of its vCPUs' time for that. Our own thread takes none, but the VMs
// wait for one another: it copies one after the other, and pages in the order of
// their addresses. spare is how many CPUs of the host nobody uses: without one, our
// thread takes its time from the VMs, too. The rates per CPU are equal (the same
// code of the kernel copies), so bytes stand for time.
func Pays(pulls []Pull, spare float64) bool {
	copied, waits, pulled := 0.0, 0.0, 0.0
	taken := 1 - min(1, max(0, spare))
	for _, p := range pulls {
		waits += float64(p.Bytes)
		copied += p.Loses*waits + taken*float64(p.Bytes)
		each := float64(p.Bytes) / float64(max(1, p.VCPUs))
		pulled += float64(p.Bytes) + p.Loses*each/2
	}
	return pulled < copied
}

// Pulling is the state of memory that the kernel brings.
type Pulling struct {
	window []pulled
	best   float64 // highest rate so far, in bytes a second
}

type pulled struct {
	at   time.Duration
	left topology.Bytes
}

const (
	pullLasts = time.Minute // at most
	// The rate is measured in this time: faults come in bursts, one for each scan of
	// the memory, which the kernel begins once a second of the vCPUs' time at most.
	pullWindow = 5 * time.Second
	pullDone   = 1.0 / 50 // the share that remains: not touched, or in use
	pullEbbs   = 0.25     // of the highest rate: what is left is hardly used
	pullSlower = 0.5      // of our own rate: what is pulled is in use, what we copy may not be
)

// Continue reports whether the kernel should go on: at a time since it began,
// so much is left of all, and our own copy has this rate in bytes a second; 0:
// not known.
func (p *Pulling) Continue(at time.Duration, left, all, own topology.Bytes) bool {
	p.window = append(p.window, pulled{at, left})
	for len(p.window) > 2 && at-p.window[1].at >= pullWindow {
		p.window = p.window[1:]
	}
	first := p.window[0]
	switch {
	case float64(left) <= pullDone*float64(all), at >= pullLasts:
		return false
	case at-first.at < pullWindow:
		return true
	}
	rate := (float64(first.left) - float64(left)) / (at - first.at).Seconds()
	p.best = max(p.best, rate)
	return rate > max(pullSlower*float64(own), pullEbbs*p.best)
}
