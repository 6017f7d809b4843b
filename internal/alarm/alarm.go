// Package alarm defines the alarms of a host, active and cleared: values that the
// rules compare with thresholds.
package alarm

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Quantity is a watched quantity. Each has its own thresholds (policy.Alarms).
type Quantity string

// Quantities. Shares are from 0 to 1.
const (
	NodeCPU       Quantity = "node-cpu"        // share of a node's CPUs in use
	NodeWait      Quantity = "node-wait"       // threads that wait for a CPU, per CPU of the node
	NodeMemory    Quantity = "node-memory"     // share of a node's memory in use
	NodeHugePages Quantity = "node-huge-pages" // share of a node's pool of one size in use
	NodeTraffic   Quantity = "node-traffic"    // share of a node's memory bandwidth in use
	HostPressure  Quantity = "host-pressure"   // share of time in which tasks waited for memory
	GuestWait     Quantity = "guest-wait"      // share of the CPU time that a guest requests and does not get
	// share of a guest's accesses (by estimate: memory) that is not local
	GuestRemote      Quantity = "guest-remote"
	GuestDrift       Quantity = "guest-drift"       // share of a guest's memory that is not on its intended nodes
	KernelMoves      Quantity = "kernel-moves"      // MB a second that kernel NUMA balancing moves against us
	CompetingMover   Quantity = "competitor"        // 1 while another program moves pages (numad, KSM, ...)
	SourceUnreadable Quantity = "source-unreadable" // 1 while a source cannot be read
	StuckMove        Quantity = "move-failed"       // moves of a guest that failed within the last hour
	GuestAgent       Quantity = "guest-agent"       // 1 while the agent of a mirrored guest does not answer
	// vCPUs of a mirrored guest that ran after it had released them, while the last hour has one
	GuestMisbehaves Quantity = "guest-misbehaves"
)

// Words returns all quantities.
func (Quantity) Words() []string {
	all := []Quantity{NodeCPU, NodeWait, NodeMemory, NodeHugePages, NodeTraffic, HostPressure, GuestWait, GuestRemote,
		GuestDrift, KernelMoves, CompetingMover, SourceUnreadable, StuckMove, GuestAgent,
		GuestMisbehaves}
	words := make([]string, len(all))
	for i, q := range all {
		words[i] = string(q)
	}
	return words
}

// Amount formats a value of the quantity with its unit.
func (q Quantity) Amount(v float64) string {
	switch q {
	case NodeWait:
		return fmt.Sprintf("%.2f per CPU", v)
	case KernelMoves:
		return fmt.Sprintf("%.1f MB/s", v)
	case CompetingMover, SourceUnreadable, StuckMove, GuestAgent, GuestMisbehaves:
		return fmt.Sprintf("%.0f", v)
	case NodeCPU, NodeMemory, NodeHugePages, NodeTraffic, HostPressure, GuestWait, GuestRemote, GuestDrift: // shares
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

// Severity is the severity of an alarm.
type Severity string

// Severities, in rising order.
const (
	Warning  Severity = "warning"
	Critical Severity = "critical"
)

// Alarm is one quantity of one object beyond its threshold.
type Alarm struct {
	Quantity Quantity      `json:"quantity"`
	Object   inventory.Ref `json:"object"`
	Severity Severity      `json:"severity"`
	// Value is the latest measured value, Threshold the threshold that it exceeded, in
	// the quantity's unit. Worst is the worst value since the alarm was raised.
	Value     float64 `json:"value"`
	Threshold float64 `json:"threshold"`
	Worst     float64 `json:"worst"`
	// Guests are those that cause the alarm, the greatest cause first.
	Guests []string `json:"guests,omitempty"`
	Why    string   `json:"why"` // in words, with the figures and their source
	// First is the time when the alarm was raised, Last the time when the value was
	// last beyond its threshold, and Cleared the end of the alarm, zero while it lasts.
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Cleared time.Time `json:"cleared,omitzero"`
}

// Active reports whether the alarm has not been cleared.
func (a Alarm) Active() bool { return a.Cleared.IsZero() }
