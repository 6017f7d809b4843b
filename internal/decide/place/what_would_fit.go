package place

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// A ladder is a list of changes of one kind, the smallest first.
type ladder []Change

// changes tries single changes of the request and returns the smallest of each
// kind that fits: first limits and page sizes, then the binding and the cells, then
// the guest's size, by the share that it loses.
func (p *problem) changes(r Request) []Change {
	var out []Change
	for _, l := range slices.Concat(p.limitLadders(), p.pageLadders(), p.bindingLadders(), p.shapeLadders()) {
		for _, c := range l {
			if fits(r, c) {
				out = append(out, listCells(r, p.withGrowth(r, c)))
				break
			}
		}
	}
	return append(out, p.smaller(r)...)
}

// fits tries a changed request.
func fits(r Request, c Change) bool {
	r.Spec, r.Policy = c.Spec, c.Policy
	q, err := newProblem(r)
	if err != nil || q.checkHelpers() != nil {
		return false
	}
	q.anyFit, q.policy.SearchSteps = true, min(q.policy.SearchSteps, adviceSteps)
	sol, _ := q.solve()
	return sol != nil
}

// adviceSteps limits the search for one change. A change that needs more is not proposed.
const adviceSteps = 200

type edit func(*guest.Spec, *policy.Policy)

func (p *problem) change(text string, do edit) Change {
	c := Change{Text: text, Spec: p.spec, Policy: p.policy}
	c.Spec.Topology.Cells = slices.Clone(p.spec.Topology.Cells)
	c.Spec.Devices = slices.Clone(p.spec.Devices)
	do(&c.Spec, &c.Policy)
	return c
}

// limitLadders relax one limit at a time.
func (p *problem) limitLadders() []ladder {
	var nodes, distance, class ladder
	limits := &p.spec.Limits
	if limits.MaxNodes > 0 {
		for n := limits.MaxNodes + 1; n <= len(p.nodes); n++ {
			nodes = append(
				nodes,
				p.change(fmt.Sprintf("allow %d nodes (limits.max_nodes)", n),
					func(s *guest.Spec, _ *policy.Policy) { s.Limits.MaxNodes = n }),
			)
		}
	}
	if limits.MaxDistance > 0 {
		for _, d := range p.distancesAbove(limits.MaxDistance) {
			distance = append(
				distance,
				p.change(fmt.Sprintf("allow distance %d (limits.max_distance)", d),
					func(s *guest.Spec, _ *policy.Policy) { s.Limits.MaxDistance = d }),
			)
		}
	}
	for _, c := range []topology.Class{topology.Neighbour, topology.Remote} {
		if limits.MaxClass != "" && classRank(c) > classRank(limits.MaxClass) {
			class = append(
				class,
				p.change(fmt.Sprintf("allow %s nodes (limits.max_class)", c),
					func(s *guest.Spec, _ *policy.Policy) { s.Limits.MaxClass = c }),
			)
		}
	}
	return append([]ladder{nodes, distance, class}, p.affinityLadders()...)
}

func (p *problem) affinityLadders() []ladder {
	var out []ladder
	if !p.spec.Limits.Nodes.IsEmpty() {
		out = append(
			out,
			ladder{
				p.change("allow all nodes (limits.nodes)",
					func(s *guest.Spec, _ *policy.Policy) { s.Limits.Nodes = topology.NodeSet{} }),
			},
		)
	}
	if !p.spec.Limits.CPUs.IsEmpty() {
		out = append(
			out,
			ladder{
				p.change("allow all CPUs (limits.cpus)",
					func(s *guest.Spec, _ *policy.Policy) { s.Limits.CPUs = topology.CPUSet{} }),
			},
		)
	}
	if !p.required.IsEmpty() {
		out = append(
			out,
			ladder{
				p.change("allow nodes without its devices (devices.required)", func(s *guest.Spec, _ *policy.Policy) {
					for i := range s.Devices {
						s.Devices[i].Required = false
					}
				}),
			},
		)
	}
	return out
}

func (p *problem) distancesAbove(d int) []int {
	var out []int
	for i := range p.nodes {
		for j := range p.nodes {
			if v := p.access.SLIT(i, j); v > d {
				out = append(out, v)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// pageLadders let pools grow, or use other page sizes.
func (p *problem) pageLadders() []ladder {
	size := p.spec.PageSize
	if size == 0 {
		return nil
	}
	var out []ladder
	if !p.policy.MayGrow(size) {
		out = append(
			out,
			ladder{
				p.change(fmt.Sprintf("allow pools of %v pages to grow (policy grow_huge_pages_up_to)", size),
					func(_ *guest.Spec, pol *policy.Policy) { pol.GrowHugePagesUpTo = &size }),
			},
		)
	}
	var other ladder
	for _, s := range p.pageSizes() {
		if s != size && p.spec.Memory%max(1, s) == 0 {
			text := fmt.Sprintf("pages of %v (page_size)", s)
			if s == 0 {
				text = "small pages (page_size 0)"
			}
			other = append(other, p.change(text, func(spec *guest.Spec, _ *policy.Policy) { spec.PageSize = s }))
		}
	}
	return append(out, other)
}

// pageSizes lists the host's huge page sizes, greatest first, then small pages.
func (p *problem) pageSizes() []topology.Bytes {
	sizes := []topology.Bytes{0}
	for i := range p.nodes {
		for _, h := range p.nodes[i].room.Huge {
			sizes = append(sizes, h.Size)
		}
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	slices.Reverse(sizes)
	return sizes
}

// bindingLadders relax exclusive CPUs and overcommit.
func (p *problem) bindingLadders() []ladder {
	var out []ladder
	cpu := &p.spec.CPU
	if cpu.Binding == guest.CPUExclusive {
		if cpu.SMT == guest.SMTIsolate || cpu.SMT == guest.SMTRequire {
			out = append(
				out,
				ladder{
					p.change(fmt.Sprintf("allow vCPUs on any sibling (cpu.smt any instead of %s)", cpu.SMT),
						func(s *guest.Spec, _ *policy.Policy) { s.CPU.SMT = guest.SMTAny }),
				},
			)
		}
		out = append(
			out,
			ladder{
				p.change("shared CPUs instead of exclusive ones (cpu.binding range)",
					func(s *guest.Spec, _ *policy.Policy) { s.CPU.Binding = guest.CPURange }),
			},
		)
	}
	if p.helperCPUs() > 0 {
		out = append(
			out,
			ladder{
				p.change(
					"no dedicated CPUs for the emulator and I/O threads (cpu.emulator, cpu.io_thread_policy)",
					func(s *guest.Spec, _ *policy.Policy) {
						s.CPU.Emulator, s.CPU.IOPolicy = guest.HelperNodes, guest.HelperNodes
					},
				),
			},
		)
	}
	var more ladder
	if p.spec.CPU.Binding != guest.CPUExclusive {
		for ratio := p.policy.Overcommit + 1; ratio <= overcommitTried; ratio++ {
			more = append(
				more,
				p.change(fmt.Sprintf("allow %.3g vCPUs per CPU (policy overcommit)", ratio),
					func(_ *guest.Spec, pol *policy.Policy) { pol.Overcommit = ratio }),
			)
		}
	}
	return append(out, more)
}

// overcommitTried is the highest overcommit that is proposed.
const overcommitTried = 8

// shapeLadders change the number of cells.
func (p *problem) shapeLadders() []ladder {
	var fewer ladder
	mode := p.spec.Topology.Mode
	if mode == guest.TopologyCells {
		for n := max(p.spec.Topology.Count, len(p.spec.Topology.Cells)) - 1; n >= 1; n-- {
			fewer = append(
				fewer,
				p.change(
					fmt.Sprintf("%s instead (topology.count)", text.Count(n, "equal cell", "equal cells")),
					func(s *guest.Spec, _ *policy.Policy) {
						s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: n}
					},
				),
			)
		}
	}
	if mode == guest.TopologyCells || mode == guest.TopologyMirror {
		auto := p.change("as many cells as it needs nodes (topology.mode auto)",
			func(s *guest.Spec, _ *policy.Policy) { s.Topology = guest.TopologySpec{Mode: guest.TopologyAuto} })
		return []ladder{fewer, {auto}}
	}
	return nil
}

// withGrowth adds to the text the pools that must grow, with the number of pages.
func (p *problem) withGrowth(r Request, c Change) Change {
	r.Spec, r.Policy = c.Spec, c.Policy
	if c.Policy.GrowHugePagesUpTo == p.policy.GrowHugePagesUpTo {
		return c
	}
	if _, why, err := Place(r); err == nil {
		for _, g := range why.Grow {
			c.Text += fmt.Sprintf("; node %d by %s of %v", g.Node, text.Count(int(g.Pages), "page", "pages"),
				g.PageSize)
		}
	}
	return c
}

// listCells replaces cells that placing may choose by those that it chooses, if they
// are uneven: a guest that is to see cells sees these.
func listCells(r Request, c Change) Change {
	if len(r.Spec.Topology.Cells) == 0 && r.Spec.Topology.Count == 0 || c.Spec.Topology.Mode != guest.TopologyAuto {
		return c
	}
	r.Spec, r.Policy = c.Spec, c.Policy
	q, err := newProblem(r)
	if err != nil {
		return c
	}
	sol, _ := q.solve()
	if sol == nil || !sol.uneven || sol.thin() {
		return c
	}
	c.Spec.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: len(sol.cells)}
	var list []string
	for _, cell := range sol.cells {
		c.Spec.Topology.Cells = append(c.Spec.Topology.Cells, guest.CellSpec{VCPUs: cell.vcpus, Memory: cell.memory})
		list = append(list, fmt.Sprintf("%s and %v", text.Count(cell.vcpus, "vCPU", "vCPUs"), cell.memory))
	}
	c.Text = fmt.Sprintf("uneven cells instead: %s (topology.cells)", strings.Join(list, ", "))
	return c
}

// smaller finds the largest size of the guest that fits: fewer vCPUs, or less
// memory, or both if neither alone is enough.
func (p *problem) smaller(r Request) []Change {
	var out []Change
	unit := max(p.spec.PageSize, smallUnit)
	units := int(p.spec.Memory / unit)
	vcpus := func(n, _ int) Change {
		return p.change(fmt.Sprintf("%s instead of %d", text.Count(n, "vCPU", "vCPUs"), p.spec.VCPUs),
			func(s *guest.Spec, _ *policy.Policy) { p.resize(s, n, p.spec.Memory) })
	}
	memory := func(_, n int) Change {
		m := topology.Bytes(n) * unit
		return p.change(fmt.Sprintf("%v of memory instead of %v", m, p.spec.Memory),
			func(s *guest.Spec, _ *policy.Policy) { p.resize(s, p.spec.VCPUs, m) })
	}
	both := func(n, m int) Change {
		size := topology.Bytes(m) * unit
		return p.change(fmt.Sprintf("%s and %v of memory", text.Count(n, "vCPU", "vCPUs"), size),
			func(s *guest.Spec, _ *policy.Policy) { p.resize(s, n, size) })
	}
	if c, ok := greatest(p.spec.VCPUs-1, func(n int) Change { return vcpus(n, 0) }, r); ok {
		out = append(out, c)
	}
	if c, ok := greatest(units-1, func(n int) Change { return memory(0, n) }, r); ok {
		out = append(out, c)
	}
	if len(out) == 0 {
		part := func(n int) Change { return both(max(1, p.spec.VCPUs*n/partSteps), max(1, units*n/partSteps)) }
		if c, ok := greatest(partSteps-1, part, r); ok {
			out = append(out, c)
		}
	}
	sort.SliceStable(out, func(a, b int) bool { return p.loss(out[a]) < p.loss(out[b]) })
	return out
}

// partSteps is the number of steps in which both vCPUs and memory are reduced.
const partSteps = 64

// resize changes the guest's size. Explicit cells become the same number of equal
// cells.
func (p *problem) resize(s *guest.Spec, vcpus int, memory topology.Bytes) {
	s.VCPUs, s.Memory = vcpus, memory
	if len(s.Topology.Cells) > 0 {
		s.Topology.Count, s.Topology.Cells = len(s.Topology.Cells), nil
	}
}

// loss returns the shares of vCPUs and memory that a change removes, added up.
func (p *problem) loss(c Change) float64 {
	return 2 - float64(c.Spec.VCPUs)/float64(p.spec.VCPUs) - float64(c.Spec.Memory)/float64(p.spec.Memory)
}

// greatest returns the change with the greatest n from 1 to most that fits, by
// binary search: a size that fits at n also fits below, except for rounding.
func greatest(most int, at func(n int) Change, r Request) (Change, bool) {
	if most < 1 {
		return Change{}, false
	}
	tooMuch := sort.Search(most, func(i int) bool { return !fits(r, at(i+1)) })
	if tooMuch == 0 {
		return Change{}, false
	}
	return at(tooMuch), true
}
