// Package alarm holds what is wrong on a host, or was: values that thresholds
// are held against, by which alarms are raised and cleared.
package alarm

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Quantity is what is watched. Each has its own thresholds (policy.Alarms).
type Quantity string

// Quantities. Shares are from 0 to 1.
const (
	NodeCPU       Quantity = "node-cpu"        // share of a node's CPUs in use
	NodeWait      Quantity = "node-wait"       // threads that wait for a CPU, per CPU of the node
	NodeMemory    Quantity = "node-memory"     // share of a node's memory in use
	NodeHugePages Quantity = "node-huge-pages" // share of a node's pool of one size in use
	NodeTraffic   Quantity = "node-traffic"    // share of a node's memory bandwidth in use
	HostPressure  Quantity = "host-pressure"   // share of time in which tasks waited for memory
	GuestWait     Quantity = "guest-wait"      // share of the CPU time that a guest wants and does not get
	// share of a guest's accesses (by estimate: memory) that is not local
	GuestRemote      Quantity = "guest-remote"
	GuestDrift       Quantity = "guest-drift"       // share of a guest's memory that is not on its intended nodes
	KernelMoves      Quantity = "kernel-moves"      // MB a second that the kernel's NUMA balancing moves against us
	CompetingMover   Quantity = "competitor"        // 1 while somebody else moves pages on this host (numad, KSM, ...)
	SourceUnreadable Quantity = "source-unreadable" // 1 while a source cannot be read
	StuckMove        Quantity = "move-failed"       // moves of a guest that failed within the last hour
)

// Words returns all quantities.
func (Quantity) Words() []string {
	all := []Quantity{NodeCPU, NodeWait, NodeMemory, NodeHugePages, NodeTraffic, HostPressure, GuestWait, GuestRemote,
		GuestDrift, KernelMoves, CompetingMover, SourceUnreadable, StuckMove}
	words := make([]string, len(all))
	for i, q := range all {
		words[i] = string(q)
	}
	return words
}

// Amount shows a value of the quantity with its unit.
func (q Quantity) Amount(v float64) string {
	switch q {
	case NodeWait:
		return fmt.Sprintf("%.2f per CPU", v)
	case KernelMoves:
		return fmt.Sprintf("%.1f MB/s", v)
	case CompetingMover, SourceUnreadable, StuckMove:
		return fmt.Sprintf("%.0f", v)
	case NodeCPU, NodeMemory, NodeHugePages, NodeTraffic, HostPressure, GuestWait, GuestRemote, GuestDrift: // shares
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

// Severity says how bad it is.
type Severity string

// Severities, in rising order.
const (
	Warning  Severity = "warning"
	Critical Severity = "critical"
)

// Alarm is one quantity of one object beyond a threshold.
type Alarm struct {
	Quantity Quantity      `json:"quantity"`
	Object   inventory.Ref `json:"object"`
	Severity Severity      `json:"severity"`
	// Value is the latest measured one, Threshold the one that it went beyond, in
	// the quantity's unit; Worst the farthest since it was raised.
	Value     float64 `json:"value"`
	Threshold float64 `json:"threshold"`
	Worst     float64 `json:"worst"`
	// Guests are those that cause it, the greatest cause first.
	Guests []string `json:"guests,omitempty"`
	Why    string   `json:"why"` // in words, with the figures and their source
	// First is when it was raised, Last when it was last beyond its threshold,
	// Cleared when it ended; zero while it lasts.
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Cleared time.Time `json:"cleared,omitzero"`
}

// Active reports whether the alarm lasts.
func (a Alarm) Active() bool { return a.Cleared.IsZero() }
