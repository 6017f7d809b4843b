package place

import (
	"fmt"
	"math"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Constraint names a rule that keeps a cell off a node.
type Constraint string

// The constraints, in the order in which they are tried.
const (
	NotAllowed    Constraint = "limits"         // outside Limits.Nodes, or a kind of node that is never used
	TooFewCPUs    Constraint = "cpus"           // a guest never has more vCPUs on a node than it may use CPUs
	TooFewAlone   Constraint = "exclusive_cpus" // free CPUs or cores for exclusive binding, under the SMT policy
	Overcommitted Constraint = "overcommit"     // vCPUs of all guests per CPU
	TooLittle     Constraint = "memory"         // small pages
	TooFewPages   Constraint = "huge_pages"     // free pages of the size, and the allowed growth of the pool
	Overloaded    Constraint = "overload"       // demand for CPUs; only if another placement overloads no node
)

// Shortage is a resource that a node lacks for a cell. Asked is the amount that the
// cell needs and There the available amount, in CPUs, vCPUs, bytes or pages,
// depending on the constraint.
type Shortage struct {
	Node       topology.NodeID `json:"node"`
	Constraint Constraint      `json:"constraint"`
	Asked      float64         `json:"asked"`
	There      float64         `json:"there"`
	PageSize   topology.Bytes  `json:"page_size,omitempty"`
	// Holders are the guests that hold most of it, greatest first.
	Holders []string `json:"holders,omitempty"`
}

// String gives one phrase: "node 1 has 3.2 GiB too little memory (needs 8 GiB, has
// 4.8 GiB free); held by db1 (10 GiB)".
func (s Shortage) String() string { return fmt.Sprintf("node %d %s", s.Node, s.lack()) }

// lack is the phrase without the node, for a line that names the node already.
func (s Shortage) lack() string {
	var text string
	switch s.Constraint {
	case NotAllowed:
		return "is outside the limits, or has no CPUs or no memory"
	case TooFewCPUs:
		text = fmt.Sprintf("has %s for %s", some(s.There, "usable CPU"), some(s.Asked, "vCPU"))
	case TooFewAlone:
		text = fmt.Sprintf("has %s; the VM needs %v exclusive ones", some(s.There, "free CPU"), s.Asked)
	case Overcommitted:
		text = fmt.Sprintf("has room for %s under the overcommit limit; the VM needs %v", some(s.There, "more vCPU"),
			s.Asked)
	case Overloaded:
		text = fmt.Sprintf("would be overloaded: its CPUs have room for %s, the VM needs %v",
			some(s.There, "more vCPU"), s.Asked)
	case TooLittle:
		asked, there := topology.Bytes(s.Asked), topology.Bytes(s.There)
		text = fmt.Sprintf("has %v too little memory (needs %v, has %v free)", asked-there, asked, there)
	case TooFewPages:
		text = fmt.Sprintf("has %s of %v; the VM needs %v", some(s.There, "free page"), s.PageSize, s.Asked)
	}
	if len(s.Holders) > 0 {
		text += "; held by " + strings.Join(s.Holders, ", ")
	}
	return text
}

// some formats a count; n need not be whole, because of overcommitted CPUs.
func some(n float64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	if n == math.Trunc(n) {
		return fmt.Sprintf("%.0f %s", n, thing)
	}
	return fmt.Sprintf("%.4g %s", n, thing)
}

// tightness returns the missing share of the required amount, from 0 to 1.
func (s Shortage) tightness() float64 {
	if s.Asked <= 0 {
		return 1
	}
	return max(0, 1-s.There/s.Asked)
}

// demand is a kind of cell: cells with identical requirements.
type demand struct {
	cellSize
	cells       []int   // which cells, ascending
	cpuShare    float64 // of one cell in the guest's vCPUs
	memoryShare float64
}

// fit reports whether a cell may use a slot. The rules:
//
//   - a guest's vCPUs and dedicated helper CPUs do not exceed the usable CPUs of the
//     node;
//   - the vCPUs of all guests that share CPUs do not exceed policy.Overcommit per
//     shared CPU, also after exclusive CPUs have been taken away;
//   - exclusive CPUs leave each other managed guest a shared CPU for each of its vCPUs on the node;
//   - demand does not exceed the node's CPUs, if the search aims at no overload;
//   - exclusive CPUs are free under the SMT policy;
//   - memory is not promised to other guests; huge pages are in their pool or, if the
//     policy allows the pool to grow, can be made from small pages.
func (p *problem) fit(s slot, d *demand) (short Shortage, ok bool) {
	if d.node >= 0 && (s.cpu != d.node || s.mem != d.node) {
		return Shortage{Node: p.nodes[s.cpu].node.ID, Constraint: NotAllowed}, false
	}
	if short, ok = p.fitCPUs(&p.nodes[s.cpu], d); !ok {
		return short, false
	}
	if short, ok = p.fitMemory(&p.nodes[s.mem], d.take); !ok {
		return short, false
	}
	return p.fitDemand(&p.nodes[s.cpu], d)
}

// fitDemand comes last: an overload is the reason only where the cell would fit otherwise.
func (p *problem) fitDemand(n *nodeState, d *demand) (Shortage, bool) {
	if p.aim != noOverload || p.overloadOf(n, d) == 0 {
		return Shortage{}, true
	}
	return Shortage{Node: n.node.ID, Constraint: Overloaded, Asked: float64(d.vcpus + d.helpers),
		There: float64(n.withoutOverload())}, false
}

func (p *problem) fitCPUs(n *nodeState, d *demand) (Shortage, bool) {
	lack := func(c Constraint, asked, there float64) (Shortage, bool) {
		return Shortage{Node: n.node.ID, Constraint: c, Asked: asked, There: max(0, there)}, false
	}
	if d.vcpus+d.helpers == 0 {
		return Shortage{}, true // memory alone
	}
	if d.vcpus+d.helpers > n.cpus {
		return lack(TooFewCPUs, float64(d.vcpus+d.helpers), float64(n.cpus))
	}
	exclusive := p.spec.CPU.Binding == guest.CPUExclusive
	alone, sharing := d.helpers, float64(d.vcpus)
	if exclusive || d.helpers > 0 {
		k, ok := p.pickFor(n, d)
		if !ok {
			return lack(TooFewAlone, float64(p.alone(d)), float64(p.mostAlone(n)))
		}
		alone = k.count()
		if exclusive {
			sharing = 0
		}
		if !exclusive && d.vcpus > n.cpus-alone {
			return lack(TooFewCPUs, float64(d.vcpus+alone), float64(n.cpus))
		}
	}
	if there := n.room.Alone(p.policy.Overcommit); alone > max(0, there) {
		return lack(TooFewAlone, float64(alone), float64(there))
	}
	if limit := p.policy.Overcommit * float64(n.shared-alone); n.room.Load+sharing > limit+roundingSlack {
		return lack(Overcommitted, sharing, limit-n.room.Load)
	}
	return Shortage{}, true
}

// roundingSlack is the tolerance for rounding errors in sums of shares of vCPUs.
const roundingSlack = 1e-6

// alone returns how many dedicated CPUs a cell needs.
func (p *problem) alone(d *demand) int {
	if p.spec.CPU.Binding == guest.CPUExclusive {
		return d.vcpus + d.helpers
	}
	return d.helpers
}

// mostAlone returns how many exclusive vCPUs fit under the SMT policy.
func (p *problem) mostAlone(n *nodeState) int {
	if p.spec.CPU.Binding != guest.CPUExclusive {
		return n.freeCPUs()
	}
	sum := 0
	for _, b := range bunches(n.free, p.spec.CPU.SMT, false) {
		sum += b.room
	}
	return sum
}

// pickedCPUs is a choice of exclusive CPUs; ok is false if the node has too few.
type pickedCPUs struct {
	picked
	ok bool
}

// pickFor chooses the exclusive CPUs of a cell on a node, once for each size of cells.
func (p *problem) pickFor(n *nodeState, d *demand) (picked, bool) {
	vcpus := d.vcpus
	if p.spec.CPU.Binding != guest.CPUExclusive {
		vcpus = 0
	}
	size := [2]int{vcpus, d.helpers}
	k, known := n.picks[size]
	if !known {
		if n.freeCPUs() >= vcpus+d.helpers {
			k.picked, k.ok = n.pick(vcpus, d.helpers, p.spec.CPU.SMT)
		}
		if n.picks == nil {
			n.picks = map[[2]int]pickedCPUs{}
		}
		n.picks[size] = k
	}
	return k.picked, k.ok
}

func (p *problem) fitMemory(n *nodeState, take topology.Bytes) (Shortage, bool) {
	size := p.spec.PageSize
	if size == 0 {
		if take <= n.room.Left {
			return Shortage{}, true
		}
		return Shortage{
			Node:       n.node.ID,
			Constraint: TooLittle,
			Asked:      float64(take),
			There:      float64(n.room.Left),
		}, false
	}
	pages := uint64(take / size)
	if there := p.pages(n); pages > there {
		return Shortage{
			Node:       n.node.ID,
			Constraint: TooFewPages,
			Asked:      float64(pages),
			There:      float64(there),
			PageSize:   size,
		}, false
	}
	return Shortage{}, true
}

// pages returns how many huge pages a guest can get from a node: the free ones, and
// those by which the pool may grow, limited by the node's unpromised memory.
func (p *problem) pages(n *nodeState) uint64 {
	size := p.spec.PageSize
	there := n.room.Pool(size)
	if p.policy.MayGrow(size) {
		there += uint64(n.room.Left / size)
	}
	return min(there, uint64(n.room.Unpromised()/size))
}

// growth returns how many pages must be added to the node's pool.
func (p *problem) growth(n *nodeState, take topology.Bytes) uint64 {
	if p.spec.PageSize == 0 {
		return 0
	}
	pages, free := uint64(take/p.spec.PageSize), n.room.Pool(p.spec.PageSize)
	return pages - min(pages, free)
}

// sharing returns how many vCPUs of a cell must share a core with another vCPU.
func (p *problem) sharing(n *nodeState, d *demand) int { return max(0, d.vcpus-p.coresFor(n)) }

// coresFor returns how many vCPUs a cell may have on the node without sharing cores.
func (p *problem) coresFor(n *nodeState) int {
	exclusive := p.spec.CPU.Binding == guest.CPUExclusive
	switch {
	case p.policy.Count != policy.CountCores || exclusive && p.spec.CPU.SMT != guest.SMTAny:
		return math.MaxInt // cores are not counted, or the spec decides about siblings
	case exclusive:
		return len(n.free)
	}
	if n.cores == 0 { // a placement on given nodes asks for few nodes of many
		n.cores = p.host.Topology.Cores(n.usable)
	}
	return n.cores
}
