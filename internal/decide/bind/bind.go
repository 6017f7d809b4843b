// Package bind decides which mechanisms bring a running guest to a placement:
// which cpusets the executor widens first, which pins it sets, which pages it
// copies, which policies it changes from outside, and which cpusets it narrows
// last. The package only computes; host/apply executes the steps.
//
// The choice of mechanism follows from measurements:
//
//   - libvirt changes the nodeset of a running guest only in mode restrictive,
//     or if the guest has no numatune (libvirt then records restrictive);
//   - for strict, preferred and interleave guests, the executor writes the
//     cpuset.mems of their thread groups, which libvirt does not rewrite when
//     it restarts;
//   - move_pages obeys the target's cpuset, so widening comes first. A write
//     that narrows a cpuset copies all pages still outside, so it comes last;
//   - the policy of memfd memory belongs to the file: any process that maps the
//     file may call mbind on it. Policies of anonymous and hugetlbfs memory
//     follow cpuset writes by ordinal only (Rebind);
//   - pages pinned by vfio do not move at all.
package bind

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// Request is the input of Steps.
type Request struct {
	Guest     inventory.Guest // running, with Seen.Ranges and Seen.Threads
	Topology  *topology.Topology
	Placement guest.Placement
	Basis     plan.Basis
	// Persistent says that the guest has a stored configuration for its next start.
	Persistent bool
	// Interrupted: an earlier bind to this placement was interrupted. The configuration
	// is written last, so it may not have been written.
	Interrupted bool
	// Recreate: memory that the hypervisor does not move may be moved by making the guest again on
	// this host, from Definition or, if that is empty, from the hypervisor's own.
	Recreate   bool
	Definition []byte
	// RecreateRate is how fast that copies memory, in bytes a second, and RecreateRateFrom where the figure is from;
	// 0: not known.
	RecreateRate     topology.Bytes
	RecreateRateFrom string
}

// Steps returns the ordered steps that bring the guest to the placement. It omits
// steps that would change nothing. A guest that already matches its placement
// gets an empty plan, unless the bind that led to this state was interrupted.
func Steps(r Request) plan.Steps {
	b := builder{
		Request: r,
		plan:    plan.Steps{Guest: r.Guest.Name, PID: r.Guest.PID, Basis: r.Basis, Placement: r.Placement},
	}
	b.current = b.allowedNow()
	b.growPools()
	b.widen()
	if !b.recreates() { // it is made with its vCPUs bound
		b.pinThreads()
	}
	b.setPolicies()
	b.moveMemory()
	b.hold()
	b.reportGuestView()
	if len(b.plan.Steps) > 0 || b.intentDiffers() || r.Interrupted {
		b.frame()
	}
	return b.plan
}

type builder struct {
	Request
	plan    plan.Steps
	current topology.NodeSet // nodes the guest may take memory from now
}

func (b *builder) add(s plan.Step) { b.plan.Steps = append(b.plan.Steps, s) }

func (b *builder) refuse(what, format string, args ...any) {
	b.plan.Cannot = append(b.plan.Cannot, plan.Refusal{What: what, Why: fmt.Sprintf(format, args...)})
}

// frame puts the record of intent first, so that an interrupted bind appears as
// drift, and the configuration for the next start last.
func (b *builder) frame() {
	if !b.Guest.Can.StoreIntent {
		return
	}
	record := plan.Step{
		Kind: plan.Record,
		Why:  "the intent comes first: if this is interrupted, list shows the drift and bind repairs it",
	}
	b.plan.Steps = append([]plan.Step{record}, b.plan.Steps...)
	if b.Persistent {
		b.add(plan.Step{Kind: plan.Configure, Why: "the next start of the VM uses the same placement"})
	}
}

func (b *builder) intentDiffers() bool {
	p := b.Guest.Placement
	if p == nil {
		return true
	}
	return !p.Nodes.Equal(b.Placement.Nodes) || p.MemoryMode != b.Placement.MemoryMode ||
		p.CPUMode != b.Placement.CPUMode
}

// allowedNow returns the nodes from which the kernel lets the guest's threads allocate.
func (b *builder) allowedNow() topology.NodeSet {
	var s topology.NodeSet
	for _, t := range b.Guest.Seen.Threads {
		s = s.Union(t.Mems)
	}
	if s.IsEmpty() {
		return b.Topology.MemoryNodes() // no thread on this host is restricted
	}
	return s.Intersect(b.Topology.NodeSet())
}

// reportGuestView reports where the distances that the guest read at boot no longer
// match: SRAT and SLIT cannot change while the guest runs.
func (b *builder) reportGuestView() {
	for _, c := range b.Placement.Cells {
		for _, have := range b.Guest.Config.Cells {
			if have.ID != c.ID {
				continue
			}
			for to, d := range c.Distances {
				if was, ok := have.Distances[guest.CellID(to)]; ok && was != d {
					b.refuse(
						"the VM's view of its topology",
						"it sees distance %d from cell %d to cell %d (set at boot), and the new placement has %d; "+
							"restart the VM to update it",
						was,
						c.ID,
						to,
						d,
					)
					return
				}
			}
		}
	}
}
