package peers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

// Layout is the host and the VMs of a run: where everything is at the
// beginning, what each VM does, and what changes.
type Layout struct {
	Name  string `json:"name"`
	About string `json:"about,omitempty"`
	Nodes int    `json:"nodes"` // of the host: 4, a square, or 8, two halves of four
	// NodeCPUs and NodeRoom are the CPUs of each node, and its memory for VMs; a
	// node where more memory begins has as much. It has hostMemory in addition.
	NodeCPUs int            `json:"node_cpus"`
	NodeRoom topology.Bytes `json:"node_room"`
	// DelayScale is how many times 85, 140 and 240 ns an access is delayed:
	// more than once, since the emulated CPU is slower than a real one.
	DelayScale float64 `json:"delay_scale"`
	Seconds    int     `json:"seconds"` // length of a run
	VMs        []VM    `json:"vms"`
}

// VM is one VM of a layout.
type VM struct {
	VCPUs  int            `json:"vcpus"`
	Memory topology.Bytes `json:"memory"`
	// Start are the nodes that have the VM's memory at the beginning, in equal
	// parts, under all managers with a worst-case start.
	Start []int `json:"start"`
	// Phases say which part of its memory the VM works on; none: all of it, all
	// the time. Before the first phase it works on all of it.
	Phases []Phase `json:"phases,omitempty"`
	// Created is how many seconds after the beginning the VM is created, where
	// libvirt and the kernel put it unless the manager places it; what counts is
	// where its memory is when it begins to work, bootSeconds later. 0: it is
	// ready before the beginning.
	Created int `json:"created,omitempty"`
}

// Phase is the part of its memory on which a VM works from a time on.
type Phase struct {
	At   int `json:"at"`   // seconds since the beginning
	From int `json:"from"` // percent of each vCPU's part; From and To equal: the VM is idle
	To   int `json:"to"`
}

// Limits of what can be measured: QEMU emulates all CPUs on the two or so of this machine.
const (
	mostVMs       = 8
	mostVCPUs     = 8 // of one VM
	mostNodeCPUs  = 16
	leastMemory   = 64 * topology.MiB
	mostMemory    = 4 * topology.GiB
	mostPhases    = 8 // that guest.c reads
	mostDelay     = 100
	leastSeconds  = 5
	mostSeconds   = 3600
	wholePercent  = 100
	hostMemory    = 768 * topology.MiB // of each node, for the kernel, libvirt, QEMU and the memory file system
	bootSeconds   = 150                // from a VM's creation in the midst of a run to its first work
	pageInMiB     = 256
	shapeOfFour   = "square4"
	shapeOfEight  = "eight"
	nodesOfSquare = 4
	nodesOfEight  = 8
)

// busy reports whether the VM works at any time.
func (v VM) busy() bool {
	return len(v.Phases) == 0 || v.Phases[0].At > 0 ||
		slices.ContainsFunc(v.Phases, func(p Phase) bool { return p.From < p.To })
}

// Validate returns an error for a layout that cannot run, with each field that is wrong.
func (l Layout) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if l.Nodes != nodesOfSquare && l.Nodes != nodesOfEight {
		wrong("nodes: %d; allowed are %d and %d", l.Nodes, nodesOfSquare, nodesOfEight)
	}
	if l.NodeCPUs < 1 || l.NodeCPUs > mostNodeCPUs {
		wrong("CPUs of a node: %d; allowed are 1 to %d", l.NodeCPUs, mostNodeCPUs)
	}
	if l.NodeRoom < leastMemory || l.NodeRoom%(2*topology.MiB) != 0 {
		wrong("memory of a node for VMs: %v; allowed are multiples of 2 MiB from %v on", l.NodeRoom, leastMemory)
	}
	if !(l.DelayScale > 0 && l.DelayScale <= mostDelay) {
		wrong("delay scale: %v; allowed are more than 0 to %d", l.DelayScale, mostDelay)
	}
	if l.Seconds < leastSeconds || l.Seconds > mostSeconds {
		wrong("seconds: %d; allowed are %d to %d", l.Seconds, leastSeconds, mostSeconds)
	}
	if len(l.VMs) < 1 || len(l.VMs) > mostVMs {
		wrong("VMs: %d; allowed are 1 to %d", len(l.VMs), mostVMs)
	}
	for i, v := range l.VMs {
		for _, err := range v.wrong(l) {
			wrong("VM %s: %w", nameOf(i), err)
		}
	}
	if errs == nil {
		errs = l.wrongTogether()
	}
	return errors.Join(errs...)
}

// wrong returns what is wrong with one VM.
func (v VM) wrong(l Layout) []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case v.VCPUs < 1 || v.VCPUs > mostVCPUs:
		wrong("vCPUs: %d; allowed are 1 to %d", v.VCPUs, mostVCPUs)
	case v.busy() && v.VCPUs > l.NodeCPUs:
		wrong("vCPUs: %d; a node has %s, and the baseline pins each working VM to one node", v.VCPUs,
			text.Count(l.NodeCPUs, "CPU", "CPUs"))
	}
	if v.Memory < leastMemory || v.Memory > mostMemory || v.Memory%topology.MiB != 0 {
		wrong("memory: %v; allowed are whole MiB from %v to %v", v.Memory, leastMemory, mostMemory)
	}
	if len(v.Start) == 0 {
		wrong("start: no node; name the nodes that have its memory at the beginning")
	}
	for i, n := range v.Start {
		if n < 0 || n >= l.Nodes || slices.Contains(v.Start[:i], n) {
			wrong("start: node %d; allowed are 0 to %d, each once", n, l.Nodes-1)
		}
	}
	if len(v.Phases) > mostPhases {
		wrong("phases: %d; allowed are up to %d", len(v.Phases), mostPhases)
	}
	for i, p := range v.Phases {
		if p.From < 0 || p.To < p.From || p.To > wholePercent {
			wrong("phase at %d s: %d to %d %%; allowed are 0 to 100, ascending", p.At, p.From, p.To)
		}
		if p.At < 0 || p.At >= l.Seconds || i > 0 && p.At <= v.Phases[i-1].At {
			wrong("phase at %d s: the times must ascend, and a run lasts %d s", p.At, l.Seconds)
		}
	}
	switch {
	case v.Created < 0 || v.Created > 0 && v.Created+bootSeconds >= l.Seconds:
		wrong("created after %d s: it works %d s later, and a run lasts %d s", v.Created, bootSeconds, l.Seconds)
	case v.Created > 0 && len(v.Phases) > 0:
		wrong("created after %d s: such a VM has no phases", v.Created)
	}
	return errs
}

// wrongTogether returns what is wrong with all VMs together.
func (l Layout) wrongTogether() []error {
	if _, ok := l.homes(); !ok {
		return []error{fmt.Errorf("VMs: they do not fit on %d nodes of %s and %v of memory for VMs, each working "+
			"VM on one node with a CPU for each vCPU: there would be no hand-pinned baseline", l.Nodes,
			text.Count(l.NodeCPUs, "CPU", "CPUs"), l.NodeRoom)}
	}
	return nil
}

// rooms are the memory of each node for VMs.
func (l Layout) rooms() []topology.Bytes {
	rooms := make([]topology.Bytes, l.Nodes)
	for _, v := range l.VMs {
		for _, n := range v.Start {
			rooms[n] += (v.Memory + topology.Bytes(len(v.Start)) - 1) / topology.Bytes(len(v.Start))
		}
	}
	const unit = 2 * topology.MiB // of a node's memory
	for n := range rooms {
		rooms[n] = max(l.NodeRoom, (rooms[n]+unit-1)/unit*unit)
	}
	return rooms
}

// sameAs reports whether two layouts give runs that can be compared.
func (l Layout) sameAs(other Layout) bool {
	l.Name, l.About, other.Name, other.About = "", "", "", ""
	return fmt.Sprintf("%+v", l) == fmt.Sprintf("%+v", other)
}

// shape is a square or two halves, with this layout's nodes.
func (l Layout) shape() (lab.Shape, error) {
	name := shapeOfFour
	if l.Nodes == nodesOfEight {
		name = shapeOfEight
	}
	s, err := lab.FindShape(name)
	if err != nil {
		return s, err
	}
	s.Name, s.DelayScale, s.DelayLocal = "peers", l.DelayScale, true
	for i, room := range l.rooms() {
		s.Nodes[i] = lab.Node{CPUs: l.NodeCPUs, Memory: room + hostMemory}
	}
	return s, s.Validate()
}

func nameOf(vm int) string { return fmt.Sprintf("w%d", vm) }

func (l Layout) names() []string {
	var names []string
	for i := range l.VMs {
		names = append(names, nameOf(i))
	}
	return names
}

// lastChange is how many seconds after the beginning the last VM changes what
// it does, or begins to work.
func (l Layout) lastChange() int {
	last := 0
	for _, v := range l.VMs {
		if v.Created > 0 {
			last = max(last, v.Created+bootSeconds)
		}
		for _, p := range v.Phases {
			last = max(last, p.At)
		}
	}
	return last
}

// String describes a layout in a line: VMs, host, start, changes.
func (l Layout) String() string {
	var vms []string
	for i := 0; i < len(l.VMs); {
		n := i
		for n < len(l.VMs) && l.VMs[n].kind() == l.VMs[i].kind() {
			n++
		}
		vms = append(vms, fmt.Sprintf("%d x %s", n-i, l.VMs[i].kind()))
		i = n
	}
	return fmt.Sprintf("%d nodes of %s and %v; VMs: %s; %d s", l.Nodes, text.Count(l.NodeCPUs, "CPU", "CPUs"), l.NodeRoom,
		strings.Join(vms, ", "), l.Seconds)
}

// kind describes a VM: VMs with equal descriptions are alike.
func (v VM) kind() string {
	kind := fmt.Sprintf("%s, %v", text.Count(v.VCPUs, "vCPU", "vCPUs"), v.Memory)
	if v.Created > 0 {
		return fmt.Sprintf("%s, created after %d s", kind, v.Created) // such a VM has no phases
	}
	kind += " on " + list(v.Start)
	for _, p := range v.Phases {
		what := fmt.Sprintf("works on %d to %d %%", p.From, p.To)
		if p.From == p.To {
			what = "idle"
		}
		if p.At > 0 {
			what = fmt.Sprintf("from %d s on %s", p.At, what)
		}
		kind += ", " + what
	}
	return kind
}

// list writes nodes or CPUs as libvirt reads them: "0,2".
func list(ids []int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]") }
