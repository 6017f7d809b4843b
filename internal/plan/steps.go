package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Steps bring one guest to a placement, in this order.
type Steps struct {
	Guest     string          `json:"guest"`
	PID       int             `json:"pid,omitempty"`
	Basis     Basis           `json:"basis"`
	Placement guest.Placement `json:"placement"`
	Steps     []Step          `json:"steps"`
	// Cannot lists the requests of the placement that no step can satisfy, with the reason.
	Cannot []Refusal `json:"cannot,omitempty"`
}

// Basis identifies the run of the guest that the steps were computed for. A restarted guest has another process,
// or, without one on the host, another Run.
type Basis struct {
	PID        int    `json:"pid,omitempty"`
	StartTicks uint64 `json:"start_ticks,omitempty"` // field 22 of /proc/PID/stat
	Run        string `json:"run,omitempty"`         // of the hypervisor, for a guest without a process
}

// Refusal is an action that is impossible, with the reason.
type Refusal struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Kind is the kind of a step.
type Kind string

// The kinds of steps, in the order in which Steps has them: first those that widen
// cpusets, then CPUs, then the bulk copy, and those that narrow cpusets last. A
// cpuset write that narrows copies whole processes on one host-wide queue and
// reports nothing, so it must find no pages left to copy.
const (
	Record     Kind = "record-intent" // write spec and placement into the guest's metadata
	GrowPool   Kind = "grow-huge-page-pool"
	AllowNodes Kind = "allow-nodes"     // widen cpuset.mems of the guest's thread groups
	TuneLive   Kind = "numatune-live"   // libvirt virDomainSetNumaParameters, mode restrictive
	PinVCPU    Kind = "pin-vcpu"        // libvirt virDomainPinVcpuFlags
	PinHelper  Kind = "pin-emulator"    // libvirt virDomainPinEmulator
	PinIO      Kind = "pin-io-thread"   // libvirt virDomainPinIOThread
	Affinity   Kind = "set-affinity"    // sched_setaffinity of one thread (plain processes, vhost)
	SetPolicy  Kind = "set-policy"      // mbind of a memfd from outside
	MoveOwn    Kind = "move-own-memory" // move_pages of all memory except guest RAM: heap, stacks, device buffers
	MoveRange  Kind = "move-memory"     // move_pages of one mapping
	Recreate   Kind = "recreate"        // a live migration of the guest to its own host, with its vCPUs bound
	HoldNodes  Kind = "hold-to-nodes"   // narrow cpuset.mems of the guest's thread groups
	ShrinkPool Kind = "shrink-huge-page-pool"
	Configure  Kind = "write-configuration" // persistent XML, for the next start
)

// Step is one action. Kind determines which fields apply.
type Step struct {
	Kind Kind   `json:"kind"`
	Why  string `json:"why"`

	VCPU     guest.VCPUID    `json:"vcpu,omitempty"`
	IOThread int             `json:"io_thread,omitempty"`
	TID      int             `json:"tid,omitempty"`
	CPUs     topology.CPUSet `json:"cpus,omitzero"`
	// Prefer are the CPUs that the vCPU prefers, where the hypervisor knows such; empty: CPUs.
	Prefer topology.CPUSet  `json:"prefer,omitzero"`
	Nodes  topology.NodeSet `json:"nodes,omitzero"`
	Mode   guest.MemoryMode `json:"mode,omitempty"`

	Address  uint64         `json:"address,omitempty"`
	Size     topology.Bytes `json:"size_bytes,omitempty"`
	PageSize topology.Bytes `json:"page_size_bytes,omitempty"`
	// Bytes is the observed amount of memory on other nodes.
	Bytes topology.Bytes  `json:"misplaced_bytes,omitempty"`
	Parts []Part          `json:"parts,omitempty"` // of move-own-memory
	File  string          `json:"file,omitempty"`
	Pages uint64          `json:"pages,omitempty"`
	Node  topology.NodeID `json:"node,omitempty"`
	// Definition is the operator's definition of the guest for recreate; empty: that of its hypervisor.
	Definition []byte `json:"-"`

	// Price is what recreate takes, as expected.
	Price *Recreation `json:"price,omitempty"`

	// Quick leaves pages that are in use where they are, instead of trying each of
	// them again: the caller does that later.
	Quick bool `json:"-"`
	// Threads is how many threads copy at the same time; 0 is 1.
	Threads int `json:"-"`
}

// Part is one mapping of a step that covers several.
type Part struct {
	Address  uint64         `json:"address"`
	Size     topology.Bytes `json:"size_bytes"`
	PageSize topology.Bytes `json:"page_size_bytes"`
}

// Moved is the result for the pages of one mapping.
type Moved struct {
	Moved  topology.Bytes    `json:"moved_bytes"`
	Failed topology.Bytes    `json:"failed_bytes"`
	Why    map[string]uint64 `json:"why_failed,omitempty"` // number of pages by the kernel's reason: "EBUSY": 12
}

// Shortfall says how much did not move, and why: the most frequent reason first.
func (m Moved) Shortfall() string {
	why := slices.SortedFunc(maps.Keys(m.Why), func(a, b string) int {
		return cmp.Or(cmp.Compare(m.Why[b], m.Why[a]), cmp.Compare(a, b))
	})
	for i, name := range why {
		pages := "pages"
		if m.Why[name] == 1 {
			pages = "page"
		}
		why[i] = fmt.Sprintf("%d %s: %s", m.Why[name], pages, cmp.Or(whyPages[name], name))
	}
	return fmt.Sprintf("%v did not move (%s)", m.Failed, strings.Join(why, "; "))
}

// whyPages are the reasons of move_pages(2), and HIDDEN, in words.
var whyPages = map[string]string{
	"EACCES": "another process shares them",
	"EAGAIN": "the kernel gave up after other pages failed",
	"EBUSY":  "in use or pinned",
	"ENOMEM": "no free memory on the node",
	"HIDDEN": "NUMA balancing hides them from move_pages(2)",
}

// String returns the step in one line, without its reason.
func (s Step) String() string {
	switch s.Kind {
	case GrowPool, ShrinkPool:
		return fmt.Sprintf("%s: %d pages of %v on node %d", s.Kind, s.Pages, s.PageSize, s.Node)
	case AllowNodes, HoldNodes:
		return fmt.Sprintf("%s %s", s.Kind, s.Nodes)
	case TuneLive:
		return fmt.Sprintf("%s: mode %s, nodes %s", s.Kind, s.Mode, s.Nodes)
	case PinVCPU:
		if !s.Prefer.IsEmpty() {
			return fmt.Sprintf("%s %d to CPUs %s, preferring CPUs %s", s.Kind, s.VCPU, s.CPUs, s.Prefer)
		}
		return fmt.Sprintf("%s %d to CPUs %s", s.Kind, s.VCPU, s.CPUs)
	case PinHelper:
		return fmt.Sprintf("%s to CPUs %s", s.Kind, s.CPUs)
	case PinIO:
		return fmt.Sprintf("%s %d to CPUs %s", s.Kind, s.IOThread, s.CPUs)
	case Affinity:
		return fmt.Sprintf("%s of thread %d to CPUs %s", s.Kind, s.TID, s.CPUs)
	case SetPolicy:
		return fmt.Sprintf("%s of %v at %#x: %s on nodes %s", s.Kind, s.Size, s.Address, s.Mode, s.Nodes)
	case MoveOwn:
		return fmt.Sprintf("%s: %v in %d mappings to nodes %s", s.Kind, s.Bytes, len(s.Parts), s.Nodes)
	case Recreate:
		if s.Price != nil {
			return fmt.Sprintf("%s: %v to nodes %s; %s", s.Kind, s.Bytes, s.Nodes, s.Price)
		}
		return fmt.Sprintf("%s: %v to nodes %s", s.Kind, s.Bytes, s.Nodes)
	case MoveRange:
		return fmt.Sprintf("%s: %v at %#x to nodes %s", s.Kind, s.Bytes, s.Address, s.Nodes)
	default:
		return string(s.Kind)
	}
}

// Parts divides the steps at the start and at the end of copying, so that guests
// that make room for each other can copy in turns: before widens cpusets and moves
// vCPUs, after narrows cpusets. Even if no step copies memory, narrowing belongs to
// after: the kernel then walks all memory of the guest, and another guest's vCPUs
// must not wait for that.
func (p Steps) Parts() (before, copies, after []Step) {
	first, end := len(p.Steps), len(p.Steps)
	for i, s := range p.Steps {
		if s.Copies() {
			first, end = min(first, i), i+1
		}
	}
	if first == len(p.Steps) {
		for first > 0 && p.Steps[first-1].narrows() {
			first--
		}
		end = first
	}
	return p.Steps[:first], p.Steps[first:end], p.Steps[end:]
}

// narrows reports whether the step restricts a guest to its new nodes, now or at
// its next start.
func (s Step) narrows() bool {
	return s.Kind == TuneLive || s.Kind == HoldNodes || s.Kind == Configure
}

// Limits reports whether the step changes the nodes from which a guest may take
// memory.
func (s Step) Limits() bool {
	return s.Kind == TuneLive || s.Kind == AllowNodes || s.Kind == HoldNodes
}

// Copies reports whether the step copies memory.
func (s Step) Copies() bool { return s.Kind == MoveOwn || s.Kind == MoveRange }

// Pins reports whether the step moves threads to other CPUs.
func (s Step) Pins() bool {
	return s.Kind == PinVCPU || s.Kind == PinHelper || s.Kind == PinIO || s.Kind == Affinity
}

// Text formats the steps for people: each step on a line, with its reason.
func (p Steps) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d steps to nodes %s\n", p.Guest, len(p.Steps), p.Placement.Nodes)
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "%3d. %s\n     %s\n", i+1, s, s.Why)
	}
	for _, c := range p.Cannot {
		fmt.Fprintf(&b, "  cannot: %s: %s\n", c.What, c.Why)
	}
	return b.String()
}
