package peers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// Of layouts that do not say otherwise. numad leaves VMs alone that use less
// than 300 MiB; a VM fills 85 % of its free memory.
const (
	usualMemory  = 352 * topology.MiB
	usualDelay   = 3
	usualSeconds = 75
	changeAt     = 60
	afterChange  = 60 // that a run lasts after its last change
	createdAt    = 15
)

// DefaultLayout is the layout of a benchmark whose command names none.
const DefaultLayout = "default"

// AllLayouts names all layouts together.
const AllLayouts = "all"

// Layouts returns the named layouts, in the order in which they run.
func Layouts() []Layout {
	n0, all4 := []int{0}, []int{0, 1, 2, 3}
	usual := VM{VCPUs: 1, Memory: usualMemory, Start: n0}
	spread := VM{VCPUs: 1, Memory: usualMemory, Start: all4}
	idle := []Phase{{At: 0, From: 0, To: 0}}
	table := []Layout{
		{Name: DefaultLayout, About: "node 0 has CPUs for all: no memory need be copied",
			NodeCPUs: 4, VMs: times(3, usual)},
		{Name: "tight", About: "node 0 has CPUs for two of four: memory must be copied",
			NodeCPUs: 2, VMs: times(4, usual)},
		{Name: "one-cpu", About: "a node has a CPU for one VM",
			NodeCPUs: 1, VMs: times(3, usual)},
		{Name: "two-vcpus", About: "two vCPUs each fill a node",
			NodeCPUs: 2, VMs: times(3, VM{VCPUs: 2, Memory: usualMemory, Start: n0})},
		{Name: "mixed", About: "1, 2 and 3 vCPUs, memory in proportion, on two nodes",
			NodeCPUs: 3, VMs: []VM{
				{VCPUs: 1, Memory: 352 * topology.MiB, Start: n0},
				{VCPUs: 2, Memory: 512 * topology.MiB, Start: n0},
				{VCPUs: 3, Memory: 640 * topology.MiB, Start: []int{3}},
			}},
		{Name: "smeared", About: "memory spread over all nodes",
			NodeCPUs: 2, VMs: times(4, spread)},
		{Name: "half-smeared", About: "two VMs' memory in one place, two VMs' on two nodes",
			NodeCPUs: 2, VMs: []VM{usual, usual,
				{VCPUs: 1, Memory: usualMemory, Start: []int{1, 2}},
				{VCPUs: 1, Memory: usualMemory, Start: []int{0, 3}}}},
		{Name: "idle-neighbours", About: "two idle VMs take the memory of two nodes",
			NodeCPUs: 2, NodeRoom: 1152 * topology.MiB, VMs: []VM{usual, usual, usual,
				{VCPUs: 2, Memory: 1024 * topology.MiB, Start: []int{1}, Phases: idle},
				{VCPUs: 2, Memory: 1024 * topology.MiB, Start: []int{2}, Phases: idle}}},
		{Name: "goes-idle", About: "two of four VMs become idle after 60 s",
			NodeCPUs: 2, VMs: []VM{usual, usual,
				{VCPUs: 1, Memory: usualMemory, Start: n0, Phases: []Phase{{At: changeAt}}},
				{VCPUs: 1, Memory: usualMemory, Start: n0, Phases: []Phase{{At: changeAt}}}}},
		{Name: "working-set", About: "work on a third of the memory, after 60 s on the other two thirds",
			NodeCPUs: 1, VMs: times(3, VM{VCPUs: 1, Memory: usualMemory, Start: n0,
				Phases: []Phase{{At: 0, From: 0, To: 33}, {At: changeAt, From: 33, To: 100}}})},
		{Name: "late", About: "a fourth VM is idle, and begins to work after 60 s",
			NodeCPUs: 2, VMs: append(times(3, usual), VM{VCPUs: 1, Memory: usualMemory, Start: n0,
				Phases: []Phase{{}, {At: changeAt, To: wholePercent}}})},
		{Name: "eight", About: "eight nodes of one CPU",
			Nodes: nodesOfEight, NodeCPUs: 1, VMs: times(4, VM{VCPUs: 1, Memory: 320 * topology.MiB, Start: n0})},
		{Name: "eight-smeared", About: "eight nodes, six VMs, memory on four nodes",
			Nodes: nodesOfEight, NodeCPUs: 1,
			VMs: times(6, VM{VCPUs: 1, Memory: 320 * topology.MiB, Start: []int{0, 2, 4, 6}})},
	}
	for i := range table {
		table[i] = table[i].completed()
	}
	return table
}

func times(n int, v VM) []VM { return slices.Repeat([]VM{v}, n) }

// completed fills in what a layout does not say.
func (l Layout) completed() Layout {
	if l.Nodes == 0 {
		l.Nodes = nodesOfSquare
	}
	if l.DelayScale == 0 {
		l.DelayScale = usualDelay
	}
	if l.NodeRoom == 0 {
		l.NodeRoom = l.usualRoom()
	}
	l.NodeRoom += l.NodeRoom % (2 * topology.MiB)
	if l.Seconds == 0 {
		l.Seconds = usualSeconds
		if last := l.lastChange(); last > 0 {
			l.Seconds = last + afterChange
		}
	}
	return l
}

// usualRoom is room for all VMs on any of four nodes. Eight nodes have half of it
// each, or as much as the largest VM needs: this machine must have all of it.
func (l Layout) usualRoom() topology.Bytes {
	var all, largest topology.Bytes
	for _, v := range l.VMs {
		all, largest = all+v.Memory, max(largest, v.Memory)
	}
	if l.Nodes == nodesOfEight {
		return max(all/2/(2*topology.MiB)*(2*topology.MiB), largest)
	}
	return all
}

// LayoutNames returns the names of all layouts.
func LayoutNames() []string {
	var names []string
	for _, l := range Layouts() {
		names = append(names, l.Name)
	}
	return names
}

// FindLayouts returns the layouts of these names, each once, in the order of the
// names; "all" stands for all.
func FindLayouts(names []string) ([]Layout, error) {
	var found []Layout
	all := Layouts()
	for _, name := range names {
		i := slices.IndexFunc(all, func(l Layout) bool { return l.Name == name })
		switch {
		case name == AllLayouts:
			found = append(found, all...)
		case i < 0:
			hint := ""
			if near := text.Nearest(name, LayoutNames()); near != "" {
				hint = fmt.Sprintf("; did you mean %q?", near)
			}
			return nil, fmt.Errorf("layout %q: allowed are %s, %s%s", name, AllLayouts,
				strings.Join(LayoutNames(), ", "), hint)
		default:
			found = append(found, all[i])
		}
	}
	var once []Layout
	for _, l := range found {
		if !slices.ContainsFunc(once, func(o Layout) bool { return o.Name == l.Name }) {
			once = append(once, l)
		}
	}
	return once, nil
}

// Dimensions describe a layout that has no name.
type Dimensions struct {
	Nodes, NodeCPUs int
	Guests          int              // VMs that work
	VCPUs           []int            // of each, or one figure for all
	Memory          []topology.Bytes // of each, or one figure for all
	Start           string           // where their memory is at the beginning: see Starts
	Idle            int              // idle VMs in addition, each alone on a node
	IdleMemory      topology.Bytes   // of each
	Change          string           // what half of the VMs do after ChangeAt: see Changes
	ChangeAt        int              // seconds
	Late            int              // of the VMs that work, those that are created in the midst
	DelayScale      float64
}

// Values of Dimensions.Start and Dimensions.Change.
const (
	StartNode0  = "node0"
	StartSpread = "spread"

	ChangeNone       = "none"
	ChangeIdle       = "idle"
	ChangeBusy       = "busy"
	ChangeWorkingSet = "working-set"
)

// Starts are the places where the memory may be at the beginning.
func Starts() []string { return []string{StartNode0, StartSpread} }

// Changes are what VMs may do in the midst of a run.
func Changes() []string { return []string{ChangeNone, ChangeIdle, ChangeBusy, ChangeWorkingSet} }

// DefaultDimensions are those of the default layout.
func DefaultDimensions() Dimensions {
	return Dimensions{Nodes: nodesOfSquare, NodeCPUs: 4, Guests: 3, VCPUs: []int{1},
		Memory: []topology.Bytes{usualMemory}, Start: StartNode0, IdleMemory: topology.GiB, Change: ChangeNone,
		ChangeAt: changeAt, DelayScale: usualDelay}
}

// Layout returns the layout of these dimensions. It has the name of a named
// layout if it is the same. Validate says whether it can run.
func (d Dimensions) Layout() (Layout, error) {
	if err := d.validate(); err != nil {
		return Layout{}, err
	}
	l := Layout{Nodes: d.Nodes, NodeCPUs: d.NodeCPUs, DelayScale: d.DelayScale}
	for i := range d.Guests {
		l.VMs = append(l.VMs, d.vm(i))
	}
	for i := range d.Idle { // the last nodes: node 0 has the other VMs' memory
		l.VMs = append(l.VMs, VM{VCPUs: min(2, d.NodeCPUs), Memory: d.IdleMemory, Start: []int{d.Nodes - 1 - i},
			Phases: []Phase{{}}})
	}
	l = l.completed()
	l.Name = d.name()
	for _, named := range Layouts() {
		if named.sameAs(l) {
			return named, nil
		}
	}
	return l, nil
}

func (d Dimensions) validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if d.Nodes != nodesOfSquare && d.Nodes != nodesOfEight { // the VMs' start depends on it
		wrong("--host-nodes %d: allowed are %d and %d", d.Nodes, nodesOfSquare, nodesOfEight)
	}
	if d.Guests < 1 || d.Guests > mostVMs {
		wrong("--guests %d: allowed are 1 to %d", d.Guests, mostVMs)
	}
	if len(d.VCPUs) != 1 && len(d.VCPUs) != d.Guests {
		wrong("--vcpus: %d figures for %d VMs; give one figure, or one for each VM", len(d.VCPUs), d.Guests)
	}
	if len(d.Memory) != 1 && len(d.Memory) != d.Guests {
		wrong("--memory: %d figures for %d VMs; give one figure, or one for each VM", len(d.Memory), d.Guests)
	}
	if !slices.Contains(Starts(), d.Start) {
		wrong("--start %q: allowed are %s", d.Start, strings.Join(Starts(), ", "))
	}
	if !slices.Contains(Changes(), d.Change) {
		wrong("--change %q: allowed are %s", d.Change, strings.Join(Changes(), ", "))
	}
	if d.Idle < 0 || d.Idle > d.Nodes-1 {
		wrong("--idle-guests %d: allowed are 0 to %d, one on each node but node 0", d.Idle, d.Nodes-1)
	}
	if d.Late < 0 || d.Late > d.Guests-1 {
		wrong("--late-guests %d: allowed are 0 to %d of %d VMs", d.Late, d.Guests-1, d.Guests)
	}
	return errors.Join(errs...)
}

// vm is a VM that works: the last ones are late, and half of the others change.
func (d Dimensions) vm(i int) VM {
	v := VM{VCPUs: d.VCPUs[min(i, len(d.VCPUs)-1)], Memory: d.Memory[min(i, len(d.Memory)-1)], Start: []int{0}}
	if d.Start == StartSpread {
		v.Start = nil
		for n := range d.Nodes {
			v.Start = append(v.Start, n)
		}
	}
	steady := d.Guests - d.Late
	switch {
	case i >= steady:
		v.Created = createdAt
	case d.Change == ChangeWorkingSet:
		v.Phases = []Phase{{From: 0, To: 33}, {At: d.ChangeAt, From: 33, To: wholePercent}}
	case d.Change == ChangeIdle && i >= (steady+1)/2:
		v.Phases = []Phase{{At: d.ChangeAt}}
	case d.Change == ChangeBusy && i >= (steady+1)/2:
		v.Phases = []Phase{{}, {At: d.ChangeAt, To: wholePercent}}
	}
	return v
}

// name distinguishes layouts of different dimensions in a file of results.
func (d Dimensions) name() string {
	mib := make([]int, 0, len(d.Memory))
	for _, m := range d.Memory {
		mib = append(mib, int(m/topology.MiB))
	}
	name := fmt.Sprintf("%dx%sv-%sM-%dx%dc", d.Guests, list(d.VCPUs), list(mib), d.Nodes, d.NodeCPUs)
	if d.Start != StartNode0 {
		name += "-" + d.Start
	}
	if d.Idle > 0 {
		name += fmt.Sprintf("-%didle%dM", d.Idle, d.IdleMemory/topology.MiB)
	}
	if d.Change != ChangeNone {
		name += fmt.Sprintf("-%s%d", d.Change, d.ChangeAt)
	}
	if d.Late > 0 {
		name += fmt.Sprintf("-%dlate", d.Late)
	}
	if d.DelayScale != usualDelay {
		name += fmt.Sprintf("-delay%g", d.DelayScale)
	}
	return name
}
