package fleetapi

import (
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Plan is what the server found when it last looked for hosts that cannot relieve their VMs
// themselves: migrations that would, and why the other VMs stay.
type Plan struct {
	// Made is when the plan was last written: after each change, and every few minutes. Zero: not yet.
	Made time.Time `json:"made,omitzero"`
	// Mode is the most that the policy allows: off, advise or auto.
	Mode       policy.Mode        `json:"mode"`
	Migrations []PlannedMigration `json:"migrations"`
	Blocked    []BlockedVM        `json:"blocked"`
	Omitted    int                `json:"omitted,omitempty"` // entries that do not fit into a plan
}

// PlannedMigration is a migration that is worth making.
type PlannedMigration struct {
	VM    string           `json:"vm"`
	From  string           `json:"from"`
	To    string           `json:"to"`
	Nodes topology.NodeSet `json:"nodes"` // of the target
	// Advised migrations wait for an operator: the mode does not allow them.
	Advised  bool    `json:"advised,omitempty"`
	Relieves string  `json:"relieves"`   // the VM whose cost it lowers most
	Saves    float64 `json:"saves_cpus"` // while the present loads last
	Price    Price   `json:"price"`
	Why      string  `json:"why"`
}

// Price is what a migration costs once.
type Price struct {
	Bytes      Bytes         `json:"bytes"`    // memory to copy
	Took       time.Duration `json:"took_ns"`  // estimated
	Downtime   time.Duration `json:"stops_ns"` // estimated
	CPUSeconds float64       `json:"cpu_seconds"`
}

// BlockedVM is a VM that should leave its host, and why it does not.
type BlockedVM struct {
	VM    string    `json:"vm"`
	Host  string    `json:"host"`
	Kind  string    `json:"kind"`
	Until time.Time `json:"until,omitzero"` // of a pause
	Why   string    `json:"why"`
}

// MoveOutcome says how a move ended.
type MoveOutcome string

// Outcomes of moves.
const (
	MoveRunning MoveOutcome = "running" // it has not ended
	MoveArrived MoveOutcome = "arrived" // the VM runs on the target, verified
	MoveStayed  MoveOutcome = "stayed"  // the source has the VM, or the VM ended on the way
)

// Words returns the outcomes of moves.
func (MoveOutcome) Words() []string {
	return []string{string(MoveRunning), string(MoveArrived), string(MoveStayed)}
}

// Move is a live migration of a VM between two hosts.
type Move struct {
	ID      string      `json:"id"` // descending by the time of the beginning
	VM      string      `json:"vm"`
	Project string      `json:"project"`
	From    string      `json:"from"`
	To      string      `json:"to"`
	Began   time.Time   `json:"began"`
	Ended   time.Time   `json:"ended,omitzero"`
	Outcome MoveOutcome `json:"outcome"`
	Why     string      `json:"why"`
	// Options are how memory and disks are copied.
	Options  fleet.MigrationOptions `json:"options,omitzero"`
	Message  string                 `json:"message,omitempty"`   // why it stayed
	Downtime time.Duration          `json:"stopped_ns,omitzero"` // for how long the VM stopped
	Copied   Bytes                  `json:"copied_bytes,omitempty"`
	// Remaining is the memory that is still to be copied, of one that runs.
	Remaining Bytes `json:"remaining_bytes,omitempty"`
}

// Moves is a page of moves, the newest first.
type Moves struct {
	Moves []Move `json:"moves"`
	// Next is the cursor of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

// Headroom says for each host whether its VMs would fit on the other hosts, on their NUMA nodes, if it failed.
type Headroom struct {
	Hosts []HostHeadroom `json:"hosts"`
	// Next is the cursor of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

// HostHeadroom says whether the VMs of one host would fit on the others.
type HostHeadroom struct {
	Host string `json:"host"`
	VMs  int    `json:"vms"`
	// Missing are VMs that would not fit; empty: all fit.
	Missing []MissingVM `json:"missing,omitempty"`
	// Proven says that no assignment lets all fit if some are missing.
	Proven bool `json:"proven"`
}

// MissingVM is a VM that would not fit elsewhere.
type MissingVM struct {
	VM  string `json:"vm"`
	Why string `json:"why"`
}
