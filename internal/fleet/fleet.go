// Package fleet holds the words for many hosts: the records that the fleet's servers
// store, and what a host's daemon reports.
//
// A VM's record says what its users want (Spec, Run) and what the fleet decided (Host,
// Placement): the desired state. The daemon of its host makes it so and reports the
// result as a VMStatus, a record of its own, so that users and daemons never write the
// same record. A VM that is in the fleet but whose status is missing or old is unknown,
// not absent.
package fleet

import (
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Host is a host as its operators see it. A host enters the fleet when its daemon
// joins, and leaves it when an operator removes it.
type Host struct {
	Name string `json:"name"`
	// ID is the machine's identity (inventory.Host.ID): a second machine of the same
	// name is refused.
	ID     string            `json:"id"`
	Rack   string            `json:"rack,omitempty"` // hosts that fail together; empty: the host alone
	Labels map[string]string `json:"labels,omitempty"`
	// Preference is added to the cost of a placement on the host; negative: filled first.
	Preference float64 `json:"preference,omitempty"`
	Cordoned   bool    `json:"cordoned,omitempty"` // gets no new VMs
	Draining   bool    `json:"draining,omitempty"` // its VMs migrate to other hosts; implies Cordoned
	// DrainOptions are how they migrate.
	DrainOptions MigrationOptions `json:"drain_options,omitzero"`
	Joined       time.Time        `json:"joined"`
	// Dead is an operator's word that the host does not run and will not run its VMs
	// again: only then may they be started elsewhere. A dead host that comes back must
	// stop them before it is used again.
	Dead *Declared `json:"dead,omitempty"`
}

// Declared is who declared something, when, and why.
type Declared struct {
	By  string    `json:"by"`
	At  time.Time `json:"at"`
	Why string    `json:"why,omitempty"`
}

// Report is what a host's daemon reports when it changes: seldom. Loads are not in it.
type Report struct {
	Taken time.Time `json:"taken"`
	// Program and Protocol are the daemon's versions.
	Program  string `json:"program"`
	Protocol int    `json:"protocol"`
	// Inventory is the host without loads: topology, guests, reservations, gaps.
	Inventory inventory.Host `json:"inventory"`
}

// Loads is the recent load of a host. A message contains all or, if Since is set, only what
// changed since the message of that number.
type Loads struct {
	Number uint64    `json:"number"` // ascending from 1 in one connection
	Since  uint64    `json:"since,omitempty"`
	Taken  time.Time `json:"taken"`
	Nodes  []Node    `json:"nodes,omitempty"` // ascending
	VMs    []VMLoad  `json:"vms,omitempty"`   // ascending by name
	Gone   []string  `json:"gone,omitempty"`  // VMs that have no load any more
	// MoverBytesPerSecond is the measured rate of copying memory between nodes; 0: not measured.
	MoverBytesPerSecond topology.Bytes `json:"mover_bytes_per_second,omitempty"`
	// Alarms are those that last: their number by kind.
	Alarms map[string]int `json:"alarms,omitempty"`
	// Lasting are these alarms themselves; nil: as in the message before, or not known.
	Lasting []alarm.Alarm `json:"lasting_alarms,omitzero"`
}

// Node is the load and the free memory of a host's node.
type Node struct {
	inventory.NodeLoad
	Free topology.Bytes `json:"free_bytes"`
}

// VMLoad is the load of a VM.
type VMLoad struct {
	Name string `json:"name"`
	inventory.GuestLoad
	LocalShare *float64 `json:"local_share,omitempty"` // of its memory; nil: not known
}

// VM is the desired state of a VM. Names are unique in the fleet.
type VM struct {
	Name     string            `json:"name"`
	Project  string            `json:"project"`
	Created  time.Time         `json:"created"`
	By       string            `json:"by"` // the user who asked for it
	Spec     guest.Spec        `json:"spec"`
	Machine  Machine           `json:"machine,omitzero"`
	Affinity Affinity          `json:"affinity,omitzero"`
	Labels   map[string]string `json:"labels,omitempty"` // for filters only
	Run      RunState          `json:"run"`
	// Delete says that the VM is to be removed from its host, and then from the fleet.
	Delete bool `json:"delete,omitempty"`
	// Generation counts changes of the desired state; a VMStatus names the one that
	// it is about.
	Generation int64 `json:"generation"`
	// Host and Placement are the claim: they are reserved for the VM until another
	// record replaces this one. An empty Host: no host was found yet (Pending says why).
	Host      string          `json:"host,omitempty"`
	Placement guest.Placement `json:"placement,omitzero"`
	Pending   string          `json:"pending,omitempty"`
	// Stays says why the drain of its host has not moved it; empty: no attempt has failed.
	Stays string `json:"stays,omitempty"`
	// Migration is a live migration in progress. Both hosts are reserved meanwhile.
	Migration *Migration `json:"migration,omitempty"`
	// Adopted says that the VM ran on the host before the fleet knew it.
	Adopted bool `json:"adopted,omitempty"`
}

// Machine is what a VM is in addition to its CPUs and memory. Paths are those of the host.
type Machine struct {
	Type    string `json:"type,omitempty" enum:"kvm,qemu,xen"`   // kvm (default), qemu or xen
	Arch    string `json:"arch,omitempty" enum:"x86_64,aarch64"` // x86_64 (default) or aarch64
	CPU     string `json:"cpu,omitempty" enum:"host-passthrough,host-model,maximum"`
	UEFI    bool   `json:"uefi,omitempty"`
	Kernel  string `json:"kernel,omitempty" pattern:"^/[^\\x00-\\x1f\\x7f]*$"`
	Initrd  string `json:"initrd,omitempty" pattern:"^/[^\\x00-\\x1f\\x7f]*$" dependentRequired:"kernel"`
	Cmdline string `json:"cmdline,omitempty" pattern:"^[^\\x00-\\x1f\\x7f]*$" dependentRequired:"kernel"`
	Disks   []Disk `json:"disks,omitempty" maxItems:"26"`
	// Network is a libvirt network, with type xen a bridge; empty: none.
	Network string `json:"network,omitempty" pattern:"^[^\\x00-\\x1f\\x7f]*$"`
	// SerialLog is the file for the output of the serial port; empty: none.
	SerialLog string `json:"serial_log,omitempty" pattern:"^/[^\\x00-\\x1f\\x7f]*$"`
	// CloudInit is user data for the first boot; empty: no seed.
	CloudInit string `json:"cloud_init,omitempty"`
}

// Disk is a disk of a VM: a path, a volume of a libvirt pool, or a copy-on-write clone of a
// base image, which the host makes before the first start.
type Disk struct {
	Path   string `json:"path,omitempty" pattern:"^/[^\\x00-\\x1f\\x7f]*$"`
	Pool   string `json:"pool,omitempty" pattern:"^[^\\x00-\\x1f\\x7f]*$"`
	Volume string `json:"volume,omitempty" pattern:"^[^\\x00-\\x1f\\x7f]*$"`
	// Base is the path of the image that Path is a clone of.
	Base     string         `json:"base,omitempty" pattern:"^/[^\\x00-\\x1f\\x7f]*$"`
	Size     topology.Bytes `json:"size,omitempty"` // of a clone; 0: that of its base
	Format   string         `json:"format,omitempty"`
	ReadOnly bool           `json:"read_only,omitempty"`
}

// RunState is whether a VM should run.
type RunState string

// Run states.
const (
	Running RunState = "running"
	Stopped RunState = "stopped"
)

// Words returns the run states.
func (RunState) Words() []string { return []string{string(Running), string(Stopped)} }

// Migration is a live migration from VM.Host to another host. Both hosts act on it, and
// each reports its own part (VMStatus.Migration, one status for each host):
//
//	target   prepared    the room is claimed: the server copies Arrival into Ready; or refused
//	source   copying     begins once Ready is set; then gone, stays or undecided
//	target   arrived     the VM runs here, verified: the server sets VM.Host and VM.Placement, and
//	                     ends the migration, also a cancelled one
//	target   given-back  Cancel is set and nothing of the VM is here: the room is free
//
// The server sets Cancel if a user asks for it, and if the target has refused or the
// source's part is over (stays, undecided, gone): then the target says whether it has the VM. It
// ends a cancelled migration (Migration becomes nil) only when the target has said given-back and the
// source's part is over: so one host alone runs the VM. A source that is undecided has
// the VM paused, and cannot tell whether the target runs it. It resumes the VM once
// the record has no migration and still names this host, and removes its paused copy
// once the record names another host. Gone with given-back: the VM has ended.
type Migration struct {
	To        string          `json:"to"`
	Placement guest.Placement `json:"placement"` // reserved there
	Began     time.Time       `json:"began"`     // identifies the migration
	Why       string          `json:"why"`
	// Options are how the source copies memory and disks.
	Options MigrationOptions `json:"options,omitzero"`
	// Ready is how the target is reached. The source does not begin without it.
	Ready *Arrival `json:"ready,omitempty"`
	// Cancel says why both hosts should give the migration up; empty: they should not.
	Cancel string `json:"cancel,omitempty"`
}

// Arrival is how the hypervisor of a source reaches the target of a migration.
type Arrival struct {
	// Host is the target: the placement that travels with the VM is for it.
	Host guest.HostIdentity `json:"host"`
	// URI is the connection from the source's hypervisor to the target's: a URI of libvirt, or xl+ssh://HOST.
	URI string `json:"uri"`
	// Data is the URI for the memory's copy; empty: libvirt chooses it.
	Data string `json:"data,omitempty"`
}

// MigrationPhase is how far one of the two hosts is with a migration.
type MigrationPhase string

// Phases of a migration; see Migration.
const (
	MigrationPrepared  MigrationPhase = "prepared"
	MigrationCopying   MigrationPhase = "copying"
	MigrationGone      MigrationPhase = "gone"
	MigrationArrived   MigrationPhase = "arrived"
	MigrationStays     MigrationPhase = "stays"
	MigrationUndecided MigrationPhase = "undecided"
	MigrationGivenBack MigrationPhase = "given-back"
	MigrationRefused   MigrationPhase = "refused" // the target has no room: nothing is claimed; Message says why
)

// MigrationStatus is what one of the two hosts reports of a migration.
type MigrationStatus struct {
	Began   time.Time      `json:"began"` // Migration.Began of the migration that it is about
	Phase   MigrationPhase `json:"phase"`
	Arrival *Arrival       `json:"arrival,omitempty"` // with prepared
	Message string         `json:"message,omitempty"`
	// Remaining is the memory that is still to be copied; with copying.
	Remaining topology.Bytes `json:"remaining_bytes,omitempty"`
}

// Phase is how far a host is with a VM's desired state.
type Phase string

// Phases.
const (
	PhaseWorking Phase = "working" // the daemon is acting on it
	PhaseRunning Phase = "running" // runs, bound and verified
	PhaseStopped Phase = "stopped"
	PhaseGone    Phase = "gone"   // deleted from the host
	PhaseFailed  Phase = "failed" // the daemon retries; Message says why
)

// VMStatus is what a host's daemon reports of a VM of the fleet.
type VMStatus struct {
	Name       string `json:"name"`
	Host       string `json:"host"`       // that reports
	Generation int64  `json:"generation"` // of the desired state that it is about
	Phase      Phase  `json:"phase"`
	// Sequence orders the statuses of a host, also of different runs of its daemon: servers ignore an
	// earlier one that arrives late. 0: of a daemon that does not number them.
	Sequence int64     `json:"sequence,omitempty"`
	Since    time.Time `json:"since"`
	Message  string    `json:"message,omitempty"`
	// Placement is where the VM is according to the host's kernel; zero: not measured.
	Placement guest.Placement `json:"placement,omitzero"`
	// Downtime and Copied are those of the last live migration.
	Downtime time.Duration  `json:"downtime_ns,omitempty"`
	Copied   topology.Bytes `json:"copied_bytes,omitempty"`
	// Migration is this host's part of the VM's migration; nil: none is in progress.
	// The statuses of both hosts are stored: a status belongs to VM and host.
	Migration *MigrationStatus `json:"migration,omitempty"`
}

// Desired is all that a host should have: every VM whose record names the host, or
// that migrates to it. A host never removes a VM that is missing in it.
type Desired struct {
	Revision int64 `json:"revision"` // of the store; a later Desired replaces an earlier one
	VMs      []VM  `json:"vms"`      // ascending by name
	// Servers are the addresses, HOST:PORT, of the fleet's servers that run, ascending. A daemon
	// connects to another one of them when its server stops.
	Servers []string `json:"servers,omitempty"`
}
