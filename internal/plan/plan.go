// Package plan holds the words for what the balancer and the executor agree on:
// Plan, the moves of a host in order, and Steps, the actions that bring one
// guest to a placement.
//
// Both are values: they can be printed (a dry run), saved, and carried out
// later. Both name the basis they were computed from, so that a stale plan is
// refused rather than forced.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Plan is the plan of a host: its moves, in the order in which they must be
// made. After each of them the host is in a legal state.
type Plan struct {
	Host  string    `json:"host"`
	Taken time.Time `json:"taken"` // of the inventory that it was computed from
	Moves []Move    `json:"moves"`
	// Degraded lists the guests that have a reason to move, and since when.
	// It belongs to the history of the next round.
	Degraded []Degraded `json:"degraded,omitempty"`
	// Blocked says why guests that are degraded, or would have to make room, do not move.
	Blocked []Blocked `json:"blocked,omitempty"`
	// Before and After are the host's cost now and when all moves are made
	// (those only advised included), in the units of the price list times CPUs.
	Before float64 `json:"cost_before"`
	After  float64 `json:"cost_after"`
}

// MoveKind says what a move does.
type MoveKind string

// The kinds of moves.
const (
	Repin       MoveKind = "repin"             // vCPUs go to the memory
	FetchLocal  MoveKind = "move-guest-memory" // memory comes to the vCPUs
	MoveGuest   MoveKind = "move"              // vCPUs and memory go to other nodes
	Swap        MoveKind = "swap"              // guests exchange nodes, or one makes room for another
	Split       MoveKind = "split"             // to more nodes
	Consolidate MoveKind = "consolidate"       // to fewer nodes
	Spread      MoveKind = "spread"            // away from others that keep the same memory busy
)

// moveKinds are all of them.
var moveKinds = []MoveKind{Repin, FetchLocal, MoveGuest, Swap, Split, Consolidate, Spread, Batch}

// IsValid reports whether it is one of the kinds of moves.
func (k MoveKind) IsValid() bool { return slices.Contains(moveKinds, k) }

// Move is one move of one guest, or of a few that only help together: their
// vCPUs are moved first, then their memory in turns, so that each makes room for
// the next.
type Move struct {
	Kind   MoveKind    `json:"kind"`
	Guests []GuestMove `json:"guests"`
	// Advised moves are shown and not made: a guest's mode does not allow it.
	Advised bool    `json:"advised,omitempty"`
	Benefit Benefit `json:"benefit"`
	Cost    Price   `json:"price"`
	Why     string  `json:"why"`
}

// GuestMove is what one guest gets, and had.
type GuestMove struct {
	Guest     string          `json:"guest"`
	Placement guest.Placement `json:"placement"`
	// Bytes is how much memory is elsewhere and has to be copied.
	Bytes topology.Bytes `json:"bytes"`
	Undo  Undo           `json:"undo"`
	// Basis is the process that a move was begun on, for the journal; a plan that
	// was only made has none.
	Basis Basis `json:"basis,omitzero"`
	// Process says that it is a plain process, not a guest.
	Process bool `json:"process,omitempty"`
}

// Undo is how a guest was before a move: its placement where it had one, and
// where its vCPUs could run and its memory lay.
type Undo struct {
	Placement *guest.Placement      `json:"placement,omitempty"`
	VCPUNodes topology.NodeSet      `json:"vcpu_nodes"`
	Memory    topology.MemoryByNode `json:"memory_by_node"`

	// What follows is recorded where a command binds a guest or a process.

	Spec         *guest.Spec                      `json:"spec,omitempty"` // that Placement was made for
	Pins         map[guest.VCPUID]topology.CPUSet `json:"vcpu_pins,omitempty"`
	EmulatorPin  topology.CPUSet                  `json:"emulator_pin,omitzero"`
	IOThreadPins map[int]topology.CPUSet          `json:"io_thread_pins,omitempty"`
	// Allowed are the nodes that its threads could take memory from (cpuset.mems).
	Allowed topology.NodeSet `json:"allowed_nodes,omitzero"`
	// TuneMode and TuneNodes are libvirt's numatune; an empty mode: none.
	TuneMode  string           `json:"numatune_mode,omitempty"`
	TuneNodes topology.NodeSet `json:"numatune_nodes,omitzero"`
}

// Benefit is what a move saves while it lasts, over all guests of the host.
type Benefit struct {
	// Cost is by how much the host's cost falls, see Plan.
	Cost float64 `json:"cost"`
	// AccessCPUs is CPU time no longer lost to far memory and WaitCPUs to
	// waiting for CPUs, both in CPUs.
	AccessCPUs float64 `json:"access_cpus"`
	WaitCPUs   float64 `json:"wait_cpus"`
	// Horizon is how long that is expected to last.
	Horizon time.Duration `json:"horizon_ns"`
}

// Price is what a move costs once.
type Price struct {
	// Cost is the price of copying in the units of Benefit.Cost, what is lost
	// with page tables that stay behind included.
	Cost  float64        `json:"cost"`
	Bytes topology.Bytes `json:"bytes"`
	// Took is how long copying takes at BytesPerSecond, the bandwidth that it takes meanwhile.
	Took           time.Duration  `json:"took_ns"`
	BytesPerSecond topology.Bytes `json:"bytes_per_second"`
	// RateFrom says where BytesPerSecond is from, see policy.Balance.CopyRate.
	RateFrom string `json:"rate_from,omitempty"`
	// RateMeasured says that moves on this host have shown how fast memory is
	// copied. Without, Took is an assumption that only decisions use: it has been
	// wrong by a factor of 140.
	RateMeasured bool `json:"rate_measured"`
	// PageTables is the part of the guests' page tables left on other nodes than their vCPUs.
	PageTables float64 `json:"page_tables"`
}

// Time is how long copying takes; false: nothing has shown it on this host yet.
func (p Price) Time() (time.Duration, bool) { return p.Took, p.RateMeasured || p.Bytes == 0 }

// String says what is copied, and how long that takes where it is known.
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
	Wait   float64   `json:"wait"`    // share of the CPU time it wants that it does not get
	Access float64   `json:"access"`  // latency of its mean access over the best of the host, less 1
	Use    float64   `json:"traffic"` // of its memory's bandwidth, all guests together

	// Reasons are the figures above that reach their threshold; Why says the same in words.
	Reasons []DegradedReason `json:"reasons,omitempty"`
	Why     string           `json:"why"`
}

// DegradedReason is what slows a guest.
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

// String gives the move in one line, without its reason.
func (m Move) String() string {
	parts := make([]string, len(m.Guests))
	for i, g := range m.Guests {
		parts[i] = fmt.Sprintf("%s to nodes %s (%v to copy)", g.Guest, g.Placement.Nodes, g.Bytes)
	}
	text := fmt.Sprintf("%s: %s", m.Kind, strings.Join(parts, ", "))
	if m.Advised {
		text += " [advised only]"
	}
	return text
}

// Text gives the plan for people: each move on a line, with its reason.
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
