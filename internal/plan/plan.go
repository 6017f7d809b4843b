// Package plan defines the types that the balancer and the executor share: Plan,
// the moves of a host in order, and Steps, the actions that bring one guest to a
// placement.
//
// Both are values: a program can print them (a dry run), save them, and execute
// them later. Both name the basis they were computed from, so that the executor
// refuses a stale plan and does not force it.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Plan is the plan of a host: its moves, in the order in which they must be made.
// After each of them the host is in a legal state.
type Plan struct {
	Host  string    `json:"host"`
	Taken time.Time `json:"taken"` // time of the inventory that it was computed from
	Moves []Move    `json:"moves"`
	// Degraded lists the guests that have a reason to move, and since when.
	// It belongs to the history of the next round.
	Degraded []Degraded `json:"degraded,omitempty"`
	// Waiting lists the guests that wait for CPUs, but less than degraded ones. They move if
	// that lasts and the move is cheap. The next plan needs them; they are not written to files.
	Waiting []Degraded `json:"-"`
	// Blocked gives the reason for each guest that does not move although it is degraded or would have to make room.
	Blocked []Blocked `json:"blocked,omitempty"`
	// Before and After are the host's cost now and after all moves (advised ones
	// included), in the units of the price list times CPUs.
	Before float64 `json:"cost_before"`
	After  float64 `json:"cost_after"`
}

// MoveKind is the kind of a move.
type MoveKind string

// The kinds of moves.
const (
	Repin       MoveKind = "repin"             // vCPUs move, to the memory or away from busy CPUs
	FetchLocal  MoveKind = "move-guest-memory" // memory moves to the vCPUs
	MoveGuest   MoveKind = "move"              // vCPUs and memory move to other nodes
	Swap        MoveKind = "swap"              // guests exchange nodes, or one makes room for another
	Split       MoveKind = "split"             // to more nodes
	Consolidate MoveKind = "consolidate"       // to fewer nodes
	Spread      MoveKind = "spread"            // away from other guests that load the same memory
)

// moveKinds lists all of them.
var moveKinds = []MoveKind{Repin, FetchLocal, MoveGuest, Swap, Split, Consolidate, Spread, Batch}

// IsValid reports whether it is one of the kinds of moves.
func (k MoveKind) IsValid() bool { return slices.Contains(moveKinds, k) }

// Move is one move of one guest, or of a few guests whose moves help only together:
// their memory moves one after the other, and in turns where they make room for
// each other.
type Move struct {
	Kind   MoveKind    `json:"kind"`
	Guests []GuestMove `json:"guests"`
	// Advised moves are shown and not made, because a guest's mode does not allow them.
	Advised bool    `json:"advised,omitempty"`
	Benefit Benefit `json:"benefit"`
	Cost    Price   `json:"price"`
	Why     string  `json:"why"`
}

// GuestMove is the old and the new placement of one guest.
type GuestMove struct {
	Guest     string          `json:"guest"`
	Placement guest.Placement `json:"placement"`
	// Kind is the kind of this part of a batch; empty: the kind of the move.
	Kind MoveKind `json:"kind,omitempty"`
	// Bytes is the amount of memory on other nodes, which has to be copied.
	Bytes topology.Bytes `json:"bytes"`
	// Saves is the CPU time that the guest itself no longer loses, in CPUs (seconds
	// a second); 0: not known. The guest that saves most per byte is copied first.
	Saves float64 `json:"saves_cpus,omitempty"`
	// Demand is how many CPUs the guest used and waited for when the move was planned; 0: not known.
	Demand float64 `json:"demand_cpus,omitempty"`
	Undo   Undo    `json:"undo"`
	// Basis is the process for which a move began, for the journal; a plan that was
	// not executed has none.
	Basis Basis `json:"basis,omitzero"`
	// Process means that it is a plain process, not a guest.
	Process bool `json:"process,omitempty"`
}

// Undo is the state of a guest before a move: its placement if it had one, the CPUs
// on which its vCPUs could run, and the location of its memory.
type Undo struct {
	Placement *guest.Placement      `json:"placement,omitempty"`
	VCPUNodes topology.NodeSet      `json:"vcpu_nodes"`
	Memory    topology.MemoryByNode `json:"memory_by_node"`

	// The following fields are recorded where a command binds a guest or a process.

	Spec *guest.Spec                      `json:"spec,omitempty"` // the spec that Placement was made for
	Pins map[guest.VCPUID]topology.CPUSet `json:"vcpu_pins,omitempty"`
	// SoftPins are the CPUs that each vCPU preferred, all CPUs for one without a preference; nil: the hypervisor
	// knows none.
	SoftPins     map[guest.VCPUID]topology.CPUSet `json:"vcpu_soft_pins,omitempty"`
	EmulatorPin  topology.CPUSet                  `json:"emulator_pin,omitzero"`
	IOThreadPins map[int]topology.CPUSet          `json:"io_thread_pins,omitempty"`
	// Allowed are the nodes from which its threads could take memory (cpuset.mems).
	Allowed topology.NodeSet `json:"allowed_nodes,omitzero"`
	// TuneMode and TuneNodes are libvirt's numatune; an empty mode: none.
	TuneMode  string           `json:"numatune_mode,omitempty"`
	TuneNodes topology.NodeSet `json:"numatune_nodes,omitzero"`
	// StoredBinding is what the stored configuration of a guest without a placement
	// had before, in the hypervisor's own form; empty: not recorded.
	StoredBinding string `json:"stored_binding,omitempty"`
}

// Benefit is the saving of a move while it lasts, over all guests of the host.
type Benefit struct {
	// Cost is the decrease of the host's cost, see Plan.
	Cost float64 `json:"cost"`
	// AccessCPUs is the CPU time no longer lost to remote memory, and WaitCPUs the time
	// no longer lost to waiting for CPUs, both in CPUs.
	AccessCPUs float64 `json:"access_cpus"`
	WaitCPUs   float64 `json:"wait_cpus"`
	// Horizon is the expected duration of the saving.
	Horizon time.Duration `json:"horizon_ns"`
}

// Recreation is what it takes to make a running guest again on its host, as expected: a live migration to the host
// itself. Its hypervisor reports neither how fast the guest changes its memory nor how long it pauses, so the price
// has bounds.
type Recreation struct {
	// Twice is the memory that the guest has twice until its copy takes over.
	Twice topology.Bytes `json:"twice_bytes"`
	// Least is for a guest that changes nothing meanwhile, Most for one that changes all of its memory in each pass.
	Least time.Duration `json:"least_ns"`
	Most  time.Duration `json:"most_ns"`
	// Pause is the longest time for which the guest stands still, at the end of Most.
	Pause          time.Duration  `json:"pause_ns"`
	BytesPerSecond topology.Bytes `json:"bytes_per_second"`
	// RateFrom names the source of BytesPerSecond, see policy.Balance.CopyRate.
	RateFrom string `json:"rate_from"`
}

// passes is how often Xen's tools copy what the guest has changed meanwhile, at most, before they suspend it for the
// last pass (libxenguest: SPP_MAX_ITERATIONS).
const passes = 5

// NewRecreation is the price of making a guest of this size again, at a rate above 0.
func NewRecreation(size, rate topology.Bytes, from string) Recreation {
	once := time.Duration(float64(size) / float64(rate) * float64(time.Second))
	return Recreation{Twice: size, Least: once, Most: (passes + 1) * once, Pause: once, BytesPerSecond: rate,
		RateFrom: from}
}

// String says in one line what it takes.
func (r Recreation) String() string {
	return fmt.Sprintf("takes %s to %s at %v/s (%s), at the end of which the VM pauses, for at most %s; needs %v "+
		"twice meanwhile", seconds(r.Least), seconds(r.Most), r.BytesPerSecond, r.RateFrom, seconds(r.Pause), r.Twice)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// Price is the one-time cost of a move.
type Price struct {
	// Cost is the price of copying in the units of Benefit.Cost. It includes the loss
	// from page tables that stay on the old nodes.
	Cost  float64        `json:"cost"`
	Bytes topology.Bytes `json:"bytes"`
	// Took is the duration of copying at BytesPerSecond, the bandwidth that copying uses.
	Took           time.Duration  `json:"took_ns"`
	BytesPerSecond topology.Bytes `json:"bytes_per_second"`
	// RateFrom names the source of BytesPerSecond, see policy.Balance.CopyRate.
	RateFrom string `json:"rate_from,omitempty"`
	// RateMeasured means that moves on this host have shown how fast it copies memory.
	// Otherwise Took is an assumption that only decisions use: it has been wrong by a
	// factor of 140.
	RateMeasured bool `json:"rate_measured"`
	// PageTables is the share of the guests' page tables on other nodes than their vCPUs.
	PageTables float64 `json:"page_tables"`
}

// Time returns the duration of copying; false means that no move on this host has shown it yet.
func (p Price) Time() (time.Duration, bool) { return p.Took, p.RateMeasured || p.Bytes == 0 }

// String returns the amount to copy, and the duration of copying if it is known.
func (p Price) String() string {
	took, known := p.Time()
	switch {
	case p.Bytes == 0:
		return "copies no memory"
	case !known:
		return fmt.Sprintf("%v to copy (time unknown: nothing copied on this host yet)", p.Bytes)
	}
	from := ""
	if p.RateFrom != "" {
		from = " (" + p.RateFrom + ")"
	}
	return fmt.Sprintf("copies %v in %v at %v a second%s", p.Bytes, took.Round(100*time.Millisecond), p.BytesPerSecond,
		from)
}

// Degraded is a guest with a reason to move.
type Degraded struct {
	Guest  string    `json:"guest"`
	Since  time.Time `json:"since"`
	Wait   float64   `json:"wait"`    // share of its requested CPU time that it does not get
	Access float64   `json:"access"`  // its mean access latency relative to the best of the host, less 1
	Use    float64   `json:"traffic"` // used share of its memory's bandwidth, all guests together

	// Reasons are the figures above that reach their threshold; Why gives the same in words.
	Reasons []DegradedReason `json:"reasons,omitempty"`
	Why     string           `json:"why"`

	// Proposed are moves that would relieve it and have to prove worth it for longer. The
	// next plan needs them; they are not written to files.
	Proposed []Proposal `json:"-"`
}

// Proposal is a move that a plan found worth making but did not make yet, because loads vary.
type Proposal struct {
	Nodes map[string]topology.NodeSet // target nodes by guest
	Since time.Time                   // worth it in every plan since then
}

// DegradedReason is a cause that slows a guest.
type DegradedReason string

// Reasons.
const (
	CPUWait         DegradedReason = "cpu_wait"         // its vCPUs wait for CPUs
	RemoteAccess    DegradedReason = "remote_access"    // its memory is far from its vCPUs
	MemoryBandwidth DegradedReason = "memory_bandwidth" // its nodes' memory bandwidth is in use
)

// Names lists a move's guests: "db1, web2".
func (m Move) Names() []string {
	names := make([]string, len(m.Guests))
	for i, g := range m.Guests {
		names[i] = g.Guest
	}
	return names
}

// Way describes how one guest of the move moves: kind is the kind of its part,
// from the nodes that it leaves. Where its memory alone moves, these are the
// nodes of that memory, else the nodes of its vCPUs.
func (m Move) Way(g GuestMove) (kind MoveKind, from topology.NodeSet) {
	kind = cmp.Or(g.Kind, m.Kind)
	if kind != FetchLocal {
		return kind, g.Undo.VCPUNodes
	}
	from = topology.SetOf(g.Undo.Memory.Nodes()...)
	if far := from.Minus(g.Placement.Nodes); !far.IsEmpty() {
		from = far
	}
	return kind, from
}

// To returns the nodes to which the guest goes: those of its vCPUs, if its memory cannot follow them.
func (g GuestMove) To() topology.NodeSet {
	if vcpus := g.Placement.Apart(); !vcpus.IsEmpty() {
		return vcpus
	}
	return g.Placement.Nodes
}

// String returns the move in one line, without its reason.
func (m Move) String() string {
	parts := make([]string, len(m.Guests))
	for i, g := range m.Guests {
		parts[i] = fmt.Sprintf("%s to nodes %s (%v to copy)", g.Guest, g.To(), g.Bytes)
		if apart := g.Placement.Apart(); !apart.IsEmpty() {
			parts[i] = fmt.Sprintf("vCPUs of %s to nodes %s (memory stays)", g.Guest, apart)
		}
		if g.Kind != "" {
			parts[i] = fmt.Sprintf("%s %s", g.Kind, parts[i])
		}
	}
	text := fmt.Sprintf("%s: %s", m.Kind, strings.Join(parts, ", "))
	if m.Advised {
		text += " [advised only]"
	}
	return text
}

// Text formats the plan for people: each move on a line, with its reason.
func (p Plan) Text() string {
	var b strings.Builder
	switch len(p.Moves) {
	case 0:
		fmt.Fprintf(&b, "%s: nothing to move\n", p.Host)
	case 1:
		fmt.Fprintf(&b, "%s: 1 move; cost %.3g now, %.3g after\n", p.Host, p.Before, p.After)
	default:
		fmt.Fprintf(&b, "%s: %d moves; cost %.3g now, %.3g after\n", p.Host, len(p.Moves), p.Before, p.After)
	}
	for i, m := range p.Moves {
		fmt.Fprintf(&b, "%3d. %s\n     %s\n", i+1, m, m.Why)
	}
	for _, s := range p.Blocked {
		fmt.Fprintf(&b, "  blocked: %s: %s\n", s.Guest, s.Why)
	}
	return b.String()
}
