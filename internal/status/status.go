// Package status holds what a host's daemon reports about itself and its host:
// the source of 'numavisor top' and of metrics.
package status

import (
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Status is the daemon's view at one moment.
type Status struct {
	Host     string            `json:"host"`
	Started  time.Time         `json:"started"` // the daemon
	Topology topology.Topology `json:"topology"`
	// Sample is the latest measurement.
	Sample inventory.Sample `json:"sample"`
	Guests []Guest          `json:"guests"` // all known, ascending by name
	// Mode is the host's, as the policy has it; Held says why nothing moves in
	// spite of it (paused, outside the maintenance windows); empty if nothing holds.
	Mode policy.Mode `json:"mode"`
	// Policy is the one in force.
	Policy Policy `json:"policy"`
	Held   string `json:"held,omitempty"`
	Pause  *Pause `json:"pause,omitempty"`
	// Planned is when the last plan was made; Degraded and Blocked are its
	// results.
	Planned  time.Time       `json:"planned,omitzero"`
	Degraded []plan.Degraded `json:"degraded,omitempty"`
	Blocked  []plan.Blocked  `json:"blocked,omitempty"`
	// MoverBytesPerSecond is how fast moves copied memory here when nothing held
	// them back, which plans count with; 0: not known yet.
	MoverBytesPerSecond topology.Bytes `json:"mover_bytes_per_second,omitempty"`
	// Advice are worthwhile moves that the mode, a pause or a window prevents.
	Advice []Advice `json:"advice,omitempty"`
	// Moving are the moves in progress.
	Moving      []Moving      `json:"moving,omitempty"`
	Alarms      []alarm.Alarm `json:"alarms,omitempty"` // those that last
	Competitors []Competitor  `json:"competitors,omitempty"`
	Totals      Totals        `json:"totals"`
	Self        Self          `json:"self"`
	// Fleet is the host's membership of a fleet; nil: the daemon has not joined one.
	Fleet *Fleet `json:"fleet,omitempty"`
}

// Fleet is a host's membership of a fleet.
type Fleet struct {
	Server string `json:"server"` // URL
	Host   string `json:"host"`   // the host's name in the fleet
	// Connected says whether the server is reachable; Since is since when it is, or is not.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	Why       string    `json:"why,omitempty"` // it is not reachable
}

// Policy names the policy that a daemon decides by.
type Policy struct {
	File   string `json:"file,omitempty"`   // that it was read from; without this file, the default policy is in force
	Digest string `json:"digest,omitempty"` // see policy.Policy.Digest
}

// Guest is a guest as the daemon sees it, in addition to its sample.
type Guest struct {
	Name    string         `json:"name"`
	State   string         `json:"state"`
	Managed bool           `json:"managed"`
	Adopted bool           `json:"adopted,omitempty"` // managed, and made by others
	Mode    policy.Mode    `json:"mode"`              // what may be done to it
	VCPUs   int            `json:"vcpus"`
	Memory  topology.Bytes `json:"memory_bytes"`
	// Nodes are the nodes on which the guest is intended to be; none without an
	// intent.
	Nodes topology.NodeSet `json:"nodes,omitzero"`
	// LocalShare is the part of its memory that is local to the vCPUs using it; nil: not known.
	LocalShare *float64 `json:"local_share,omitempty"`
	// LocalSource says by what vCPUs count as near: by the CPU that each ran on
	// last, or by those that they may run on.
	LocalSource string   `json:"local_source,omitempty"`
	Drift       []string `json:"drift,omitempty"`
	// CooldownUntil is when balancing may move the guest again; zero if it may now.
	CooldownUntil time.Time `json:"cooldown_until,omitzero"`
}

// Pause is an operator's order to move nothing.
type Pause struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // zero: until resumed
	Why   string    `json:"why,omitempty"`
}

// Advice is a move that waits for the operator to accept it.
type Advice struct {
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
	Move  plan.Move `json:"move"`
}

// LongestWait is the longest time between two samples of a calm host on which a sample takes long, unless the regular
// time is longer.
const LongestWait = 15 * time.Second

// Moving is a move in progress.
type Moving struct {
	ID    string         `json:"id"`
	Began time.Time      `json:"began"`
	Move  plan.Move      `json:"move"`
	Step  string         `json:"step"`       // what it does now, in words
	Done  topology.Bytes `json:"done_bytes"` // copied or found in place
	Total topology.Bytes `json:"total_bytes"`
	// BytesPerSecond is the pace now: what the guest's disturbance allows.
	BytesPerSecond topology.Bytes `json:"bytes_per_second"`
}

// Competitor is another program that moves pages or changes bindings on this
// host.
type Competitor struct {
	// Name is "kernel NUMA balancing", "numad", "KSM across nodes", "libvirt placement", "changes to VM NAME" or, if
	// these went offline or other VMs got them for themselves, "CPUs that VM NAME lost".
	Name string `json:"name"`
	// What describes what it does here, as observed; Answer describes what the
	// daemon does about it by policy, and the result.
	What   string `json:"what"`
	Answer string `json:"answer"`
	// Expected says that the policy leaves the competitor alone and that it does
	// not touch memory that Numavisor placed: information, no alarm.
	Expected bool `json:"expected,omitempty"`
}

// Totals are counts since the daemon started.
type Totals struct {
	Samples        uint64         `json:"samples"`
	Plans          uint64         `json:"plans"`
	MovesDone      uint64         `json:"moves_done"`
	MovesPart      uint64         `json:"moves_partial"`
	MovesFailed    uint64         `json:"moves_failed"`    // undone ones included,
	MovesCancelled uint64         `json:"moves_cancelled"` // but those that an operator wanted undone
	Repairs        uint64         `json:"repairs"`
	MovedBytes     topology.Bytes `json:"moved_bytes"`
	// PulledBytes is the memory that kernel balancing brought to the vCPUs of moved VMs.
	PulledBytes topology.Bytes `json:"pulled_bytes"`
}

// Self is the daemon's own use of resources.
type Self struct {
	CPU      time.Duration  `json:"cpu_ns"` // since it started
	Resident topology.Bytes `json:"resident_bytes"`
	// Sample and Plan are the CPU time of the last one of each.
	Sample time.Duration `json:"sample_ns"`
	Plan   time.Duration `json:"plan_ns"`
}
