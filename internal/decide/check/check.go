package check

import (
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Rule names a rule that every placement must satisfy.
type Rule string

// The rules.
const (
	RuleShape Rule = "shape" // cells cover all vCPUs and memory exactly once
	RuleNodes Rule = "nodes" // existing nodes with memory, within the limits
	// online, not housekeeping, within the limits, on the cell's nodes, enough of them
	RuleCPUs         Rule = "cpus"
	RuleExclusive    Rule = "exclusive"    // one CPU for each vCPU, reserved for it
	RuleSMT          Rule = "smt"          // siblings as the spec asks
	RuleMemory       Rule = "memory"       // the total bound on a node never exceeds the node
	RuleHugePages    Rule = "huge_pages"   // pools have the promised pages or may grow by them
	RuleOvercommit   Rule = "overcommit"   // vCPUs per shared CPU
	RuleDistance     Rule = "distance"     // between the guest's nodes
	RuleDevices      Rule = "devices"      // required devices are attached to the guest's nodes
	RuleHelpers      Rule = "helpers"      // emulator and I/O threads
	RuleHandoff      Rule = "handoff"      // one CPU of the policy's for each vCPU, an anchor, and the minimum of all
	RuleReservations Rule = "reservations" // equal what the placement uses
)

// Violation is one broken rule.
type Violation struct {
	Rule   Rule   `json:"rule"`
	Object string `json:"object"` // "node 3", "vCPU 7", "cell 0", "emulator"
	What   string `json:"what"`
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Rule, v.Object, v.What) }

// Error joins violations into one error; nil where there are none.
func Error(guestName string, vs []Violation) error {
	if len(vs) == 0 {
		return nil
	}
	errs := make([]error, len(vs))
	for i, v := range vs {
		errs[i] = errors.New(v.String())
	}
	return fmt.Errorf("placement of VM %s is not legal: %w", guestName, errors.Join(errs...))
}

// Placement returns every rule that a placement breaks on a host. It ignores the
// present holdings of the guest itself, so that a placement can be checked both
// before and after it is applied.
func Placement(h *inventory.Host, p policy.Policy, spec guest.Spec, placed guest.Placement) []Violation {
	c := &checker{
		host: h, topology: &h.Topology, policy: p.WithDefaults(), spec: spec, placed: &placed,
		others: h.Holdings(placed.Guest),
	}
	var err error
	if c.spec.Limits, err = h.WithinPool(spec.Limits); err != nil {
		c.fail(RuleCPUs, "guest", "%v", err)
	}
	c.housekeeping = h.Topology.Housekeeping.Union(p.NotShared())
	c.mine = placed.Exclusive()
	for _, o := range c.others {
		c.taken = c.taken.Union(o.Exclusive)
		c.pinned = c.pinned.Union(o.Pinned)
	}
	c.shape()
	c.nodes()
	if placed.CPUMode == guest.CPUHandoff {
		c.handoff()
	} else {
		c.cpus()
		c.exclusive()
		c.smt()
		c.overcommit()
	}
	c.reservations()
	c.memory()
	c.distances()
	c.devices()
	c.helpers()
	return c.found
}

type checker struct {
	host     *inventory.Host
	topology *topology.Topology
	policy   policy.Policy
	spec     guest.Spec
	placed   *guest.Placement
	others   []inventory.Holding

	housekeeping topology.CPUSet
	taken        topology.CPUSet // exclusive CPUs of others
	pinned       topology.CPUSet // CPUs with vCPUs of other guests that are pinned to that one CPU
	mine         topology.CPUSet // exclusive CPUs of this guest
	found        []Violation
}

func (c *checker) fail(rule Rule, object, format string, args ...any) {
	c.found = append(c.found, Violation{rule, object, fmt.Sprintf(format, args...)})
}

func node(id topology.NodeID) string { return fmt.Sprintf("node %d", id) }

// shape: cells cover vCPUs and memory exactly once.
func (c *checker) shape() {
	var covered guest.VCPUSet
	memory := topology.Bytes(0)
	if len(c.placed.Cells) == 0 {
		c.fail(RuleShape, "guest", "has no cells")
	}
	for i, cell := range c.placed.Cells {
		name := fmt.Sprintf("cell %d", cell.ID)
		if int(cell.ID) != i {
			c.fail(RuleShape, name, "is at position %d", i)
		}
		if covered.Intersects(cell.VCPUs) {
			c.fail(RuleShape, name, "vCPUs %v belong to an earlier cell", covered.Intersect(cell.VCPUs))
		}
		covered = covered.Union(cell.VCPUs)
		memory += cell.Memory
		if cell.Nodes.IsEmpty() || !cell.Nodes.SubsetOf(c.placed.Nodes) {
			c.fail(RuleShape, name, "has memory on nodes %q; the VM's nodes are %v", cell.Nodes, c.placed.Nodes)
		}
		if c.spec.PageSize > 0 && cell.Memory%c.spec.PageSize != 0 {
			c.fail(RuleShape, name, "%v is not a multiple of the page size %v", cell.Memory, c.spec.PageSize)
		}
		c.shownDistances(i, &cell)
	}
	if want := topology.Range[guest.VCPUID](0, guest.VCPUID(c.spec.VCPUs-1)); !covered.Equal(want) {
		c.fail(RuleShape, "guest", "its cells cover vCPUs %v of %v", covered, want)
	}
	if memory != c.spec.Memory {
		c.fail(RuleShape, "guest", "its cells have %v of %v", memory, c.spec.Memory)
	}
	for i, v := range c.placed.VCPUs {
		if int(v.ID) != i {
			c.fail(RuleShape, fmt.Sprintf("vCPU %d", v.ID), "is at position %d", i)
		}
	}
	if len(c.placed.VCPUs) != c.spec.VCPUs {
		c.fail(RuleShape, "guest", "has %d of %d vCPUs placed", len(c.placed.VCPUs), c.spec.VCPUs)
	}
	if c.spec.Topology.Mode == guest.TopologyCells {
		c.requestedCells()
	}
}

// requestedCells: the number of cells and, if the spec lists them, their sizes.
func (c *checker) requestedCells() {
	want, got := c.spec.Topology, c.placed.Cells
	if count := max(want.Count, len(want.Cells)); len(got) != count {
		c.fail(RuleShape, "guest", "has %d cells, the spec requests %d", len(got), count)
		return
	}
	for i, cell := range want.Cells {
		if got[i].Memory != cell.Memory || got[i].VCPUs.Len() != cell.VCPUs {
			c.fail(RuleShape, fmt.Sprintf("cell %d", i), "has %d vCPUs and %v, the spec requests %d and %v",
				got[i].VCPUs.Len(), got[i].Memory, cell.VCPUs, cell.Memory)
		}
	}
}

// shownDistances: 10 to itself, 11 to 254 to the others (libvirt, QEMU).
func (c *checker) shownDistances(i int, cell *guest.Cell) {
	name := fmt.Sprintf("cell %d", cell.ID)
	if !c.placed.Visible {
		if len(cell.Distances) > 0 {
			c.fail(RuleShape, name, "has distances, but the VM has no virtual NUMA cells")
		}
		return
	}
	if len(cell.Distances) != len(c.placed.Cells) {
		c.fail(RuleShape, name, "has %d distances for %d cells", len(cell.Distances), len(c.placed.Cells))
		return
	}
	for j, d := range cell.Distances {
		if (i == j && d != 10) || (i != j && (d < 11 || d > 254)) {
			c.fail(RuleShape, name, "has distance %d to cell %d; allowed are 10 to itself and 11 to 254 to "+
				"others", d, j)
		}
	}
}

// nodes: the nodes exist, have memory and are within the limits, and no two cells
// share a node.
func (c *checker) nodes() {
	limits := &c.spec.Limits
	for id := range c.placed.Nodes.All() {
		n, ok := c.topology.Node(id)
		switch {
		case !ok:
			c.fail(RuleNodes, node(id), "is not on the host")
		case n.Memory == 0:
			c.fail(RuleNodes, node(id), "has no memory")
		case !limits.Nodes.IsEmpty() && !limits.Nodes.Contains(id):
			c.fail(RuleNodes, node(id), "is outside the limits %v", limits.Nodes)
		case n.CPUs.IsEmpty() && !limits.Nodes.Contains(id):
			c.fail(RuleNodes, node(id), "has no CPUs and is not listed in limits.nodes")
		}
	}
	if used := c.used(); limits.MaxNodes > 0 && used.Len() > limits.MaxNodes {
		c.fail(RuleNodes, "guest", "uses nodes %v; limits.max_nodes is %d", used, limits.MaxNodes)
	}
	if c.placed.MemoryMode == guest.MemoryInterleave {
		return
	}
	var seen topology.NodeSet
	for _, cell := range c.placed.Cells {
		if seen.Intersects(cell.Nodes) {
			c.fail(RuleNodes, fmt.Sprintf("cell %d", cell.ID), "shares nodes %v with another cell",
				seen.Intersect(cell.Nodes))
		}
		seen = seen.Union(cell.Nodes)
	}
}

// used returns every node on which the guest has CPUs or memory.
func (c *checker) used() topology.NodeSet {
	used := c.placed.Nodes
	for _, r := range c.placed.Reservations {
		used = used.With(r.Node)
	}
	return used
}
