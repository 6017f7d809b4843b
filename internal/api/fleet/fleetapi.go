// Package fleetapi is the REST API of a fleet's server, as its clients see it: the documents, the
// operations with the role that each needs, and a client. Package rest (below) serves it.
//
// Every answer to a failed request is a Problem (RFC 9457). A document that can be changed has a
// revision, which is its entity tag as well: a request with If-Match changes only this revision.
package fleetapi

import (
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// HostState is whether the server hears from a host.
type HostState string

// States of a host.
const (
	HostReachable   HostState = "reachable"
	HostUnreachable HostState = "unreachable" // its VMs are unknown, and never started elsewhere
	HostDead        HostState = "dead"        // an operator said so: its VMs are started elsewhere
)

// Words returns the states of a host.
func (HostState) Words() []string {
	return []string{string(HostReachable), string(HostUnreachable), string(HostDead)}
}

// Host is a host of the fleet.
type Host struct {
	fleet.Host
	Revision int64     `json:"revision"`
	State    HostState `json:"state"`
	// Reported is when the daemon last reported the host's inventory; zero: not yet.
	Reported time.Time `json:"reported,omitzero"`
	Daemon   string    `json:"daemon,omitempty"` // the version of its daemon
	Nodes    int       `json:"nodes"`
	CPUs     int       `json:"cpus"`
	Memory   Bytes     `json:"memory_bytes"`
	// Left is memory in small pages that no VM holds.
	Left   Bytes          `json:"left_bytes"`
	VMs    int            `json:"vms"` // of the fleet, those that migrate to it included
	Alarms map[string]int `json:"alarms,omitempty"`
	// CPU is how many CPUs are in use, Wait how many threads wait; nil: this server has not heard lately.
	CPU  *float64 `json:"cpu,omitempty"`
	Wait *float64 `json:"wait,omitempty"`
	// Remaining are VMs that run elsewhere, and of which the host has not removed what is left.
	Remaining []string `json:"remaining,omitempty"`
}

// Bytes is an amount of memory. Requests may write it as text, such as "16G".
type Bytes = topology.Bytes

// Hosts is a page of hosts.
type Hosts struct {
	Hosts []Host `json:"hosts"`
	// Next is the cursor of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

// HostEdit changes what operators say about a host. Nil fields stay as they are.
type HostEdit struct {
	Rack       *string            `json:"rack,omitempty" maxLength:"240"`
	Labels     *map[string]string `json:"labels,omitempty" maxProperties:"64"`
	Preference *float64           `json:"preference,omitempty" minimum:"-1000" maximum:"1000"`
}

// Reason is why somebody did something.
type Reason struct {
	Why string `json:"why,omitempty" maxLength:"1000"`
}

// Node is a NUMA node of a host, as the scheduler sees it.
type Node struct {
	Node topology.NodeID `json:"node"`
	CPUs topology.CPUSet `json:"cpus"`
	// Shared CPUs are neither housekeeping nor exclusive to a VM.
	Shared    topology.CPUSet `json:"shared"`
	Exclusive topology.CPUSet `json:"exclusive,omitzero"`
	// VCPUs is the number of vCPUs that share the shared CPUs.
	VCPUs    float64 `json:"vcpus"`
	Memory   Bytes   `json:"memory_bytes"`
	Promised Bytes   `json:"promised_bytes"` // to VMs
	Left     Bytes   `json:"left_bytes"`     // in small pages
	// Huge pages that are free and not promised, by size.
	Huge []Pool `json:"huge_pages,omitempty"`
	// CPU is how many CPUs are in use, Wait how many threads wait; nil: not measured.
	CPU  *float64 `json:"cpu,omitempty"`
	Wait *float64 `json:"wait,omitempty"`
}

// Pool is the free part of a node's huge pages of one size.
type Pool struct {
	Size Bytes  `json:"size_bytes"`
	Free uint64 `json:"free"` // pages
}

// Nodes are the nodes of a host.
type Nodes struct {
	Host  string `json:"host"`
	Nodes []Node `json:"nodes"`
}

// VMState says in one word how a VM is.
type VMState string

// States of a VM.
const (
	VMPending   VMState = "pending"   // no host was found yet
	VMWorking   VMState = "working"   // the host makes it so
	VMRunning   VMState = "running"   // runs, bound and verified
	VMStopped   VMState = "stopped"   //
	VMMigrating VMState = "migrating" // to another host
	VMDeleting  VMState = "deleting"
	VMFailed    VMState = "failed"  // the host retries
	VMUnknown   VMState = "unknown" // the host is unreachable
)

// Words returns the states of a VM.
func (VMState) Words() []string {
	return []string{string(VMPending), string(VMWorking), string(VMRunning), string(VMStopped), string(VMMigrating),
		string(VMDeleting), string(VMFailed), string(VMUnknown)}
}

// VM is a VM of the fleet: what its users want, what the fleet decided, and what its host reports.
type VM struct {
	fleet.VM
	Revision int64   `json:"revision"`
	State    VMState `json:"state"`
	// Status is the last report of the host.
	Status *fleet.VMStatus `json:"status,omitempty"`
	// Load is the load of the last seconds; nil: this server has not heard lately.
	Load *fleet.VMLoad `json:"load,omitempty"`
	// Why gives the reasons for the host and the nodes. Lists do not have it.
	Why *Why `json:"why,omitempty"`
}

// VMs is a page of VMs.
type VMs struct {
	VMs []VM `json:"vms"`
	// Next is the cursor of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

// Why gives the reasons for a decision about a VM.
type Why struct {
	Summary string    `json:"summary"`
	Text    string    `json:"text,omitempty"` // the reasons in lines, for people
	Decided time.Time `json:"decided"`
	Cost    float64   `json:"cost"`
	Fitted  int       `json:"fitted"` // hosts that the VM fits on, by their summaries
	// Excluded counts the hosts that were not candidates.
	Excluded []Excluded `json:"excluded,omitempty"`
	// Next are the best of the other hosts.
	Next []NextHost `json:"next,omitempty"`
	// Terms are the prices that make up the cost of the nodes.
	Terms []Term `json:"terms,omitempty"`
}

// Excluded is a number of hosts that were not candidates for one reason.
type Excluded struct {
	Reason string `json:"reason"`
	Hosts  int    `json:"hosts"`
}

// NextHost is a host that was ranked below the chosen one, or that refused the VM.
type NextHost struct {
	Host    string   `json:"host"`
	Cost    *float64 `json:"cost,omitempty"`
	Behind  string   `json:"behind,omitempty"` // the figure that decided against it
	Refused string   `json:"refused,omitempty"`
}

// Term is a part of the cost of a placement on the nodes of a host.
type Term struct {
	Name string  `json:"name"`
	Cost float64 `json:"cost"`
	Why  string  `json:"why,omitempty"`
}

// Placement is where a VM is, and why.
type Placement struct {
	VM        string          `json:"vm"`
	Host      string          `json:"host,omitempty"`
	Placement guest.Placement `json:"placement,omitzero"`
	Pending   string          `json:"pending,omitempty"` // why it has no host
	Why       *Why            `json:"why,omitempty"`
}

// VMCreate asks for a VM.
type VMCreate struct {
	// Project of the VM; empty: the user's only project.
	Project  string            `json:"project,omitempty" maxLength:"64"`
	Spec     guest.Spec        `json:"spec"` // with a name, unique in the fleet
	Machine  fleet.Machine     `json:"machine,omitzero"`
	Affinity fleet.Affinity    `json:"affinity,omitzero"`
	Labels   map[string]string `json:"labels,omitempty" maxProperties:"64"`
	// Run is running unless said otherwise.
	Run fleet.RunState `json:"run,omitempty" enum:"running,stopped"`
}

// VMAdopt takes a VM that a host runs already into the fleet.
type VMAdopt struct {
	Host    string `json:"host" minLength:"1" maxLength:"240"`
	Name    string `json:"name" minLength:"1" maxLength:"240"`
	Project string `json:"project,omitempty" maxLength:"64"`
}

// VMResize changes the size of a VM that is stopped.
type VMResize struct {
	VCPUs  int   `json:"vcpus,omitempty" minimum:"0" maximum:"4096"`                     // 0: as it is
	Memory Bytes `json:"memory,omitempty" maximum:"70368744177664" multipleOf:"1048576"` // 0: as it is
}

// VMMigrate moves a VM to another host while it runs.
type VMMigrate struct {
	To  string `json:"to,omitempty" maxLength:"240"` // empty: the best host
	Why string `json:"why,omitempty" maxLength:"1000"`
	fleet.MigrationOptions
}

// HostDrain migrates all VMs of a host to other hosts.
type HostDrain struct {
	fleet.MigrationOptions
}

// Alarm is a number of alarms of one kind that last on a host.
type Alarm struct {
	Host  string `json:"host"`
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// Alarms are the alarms of all hosts.
type Alarms struct {
	Alarms []Alarm `json:"alarms"` // their numbers
	// Lasting are the alarms themselves: those of VMs of the user's projects and, for users of all projects, of
	// hosts and nodes.
	Lasting []LastingAlarm `json:"lasting"`
}

// LastingAlarm is a quantity that went beyond its threshold and has not come back.
type LastingAlarm struct {
	Host      string         `json:"host"`
	Severity  alarm.Severity `json:"severity"`
	Quantity  alarm.Quantity `json:"quantity"`
	Object    string         `json:"object"` // host, node N or guest NAME
	Worst     float64        `json:"worst"`
	Threshold float64        `json:"threshold"`
	Since     time.Time      `json:"since"`
	VMs       []string       `json:"vms,omitempty"` // that cause it
	Why       string         `json:"why"`
}

// EventKind is what an event is about.
type EventKind string

// Kinds of events.
const (
	EventHost EventKind = "host"
	EventVM   EventKind = "vm"
)

// Words returns the kinds of events.
func (EventKind) Words() []string { return []string{string(EventHost), string(EventVM)} }

// Event says that a host or a VM has changed. Its present state is in Host or VM, unless it was deleted.
type Event struct {
	Revision int64     `json:"revision"`
	Kind     EventKind `json:"kind"`
	Name     string    `json:"name"`
	Deleted  bool      `json:"deleted,omitempty"`
	Host     *Host     `json:"host,omitempty"`
	VM       *VM       `json:"vm,omitempty"`
}
