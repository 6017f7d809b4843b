// Package inventory holds what was observed on a host at one time, by which
// source, and what could not be observed. An inventory is everything a decision
// needs: a saved inventory reproduces the decision on any machine.
package inventory

import (
	"cmp"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Version is the version of the document's form (docs/inventory.schema.json).
const Version = 1

// Host is one host as it was observed.
type Host struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	// ID distinguishes the host from others, independently of its name; empty: not
	// known.
	ID       string            `json:"id,omitempty"`
	Taken    time.Time         `json:"taken"`
	Topology topology.Topology `json:"topology"`
	Kernel   Kernel            `json:"kernel"`
	Guests   []Guest           `json:"guests"` // ascending by name
	// Pools are the hypervisor's CPU pools, of which each guest is in one; none on most hypervisors.
	Pools []Pool `json:"cpu_pools,omitempty"`
	// ControlDomain is the guest that manages a Xen host (dom0); nil: the host has none, or it could not be read.
	ControlDomain *ControlDomain `json:"control_domain,omitempty"`
	// MachineTypes are the types of machines that a fleet can create on the host; empty: see Makes.
	MachineTypes []string `json:"machine_types,omitempty"`
	// NoNewVMs: a server that does not know MachineTypes creates no VMs on the host, and migrates none to it.
	NoNewVMs bool `json:"no_new_vms,omitempty"`
	// NearMemoryOnly: the hypervisor allocates the memory of a guest only on nodes of CPUs on which its vCPUs may run
	// (Xen: domain_update_node_affinity, xen/common/domain.c).
	NearMemoryOnly bool `json:"near_memory_only,omitempty"`
	// Claims are reservations of guests that are being created, bound or moved, and of plain processes.
	Claims []Claim `json:"claims,omitempty"`
	// Load is the recent load of the nodes, ascending by node; nil: not measured.
	Load []NodeLoad `json:"load,omitempty"`
	// MoverBytesPerSecond is the measured rate of copying memory between nodes of
	// this host; 0: not measured.
	MoverBytesPerSecond topology.Bytes `json:"mover_bytes_per_second,omitempty"`

	Gaps []Gap `json:"gaps,omitempty"`
}

// Guest returns the guest of a name; ok is false where the inventory has none.
func (h *Host) Guest(name string) (g *Guest, ok bool) {
	for i := range h.Guests {
		if h.Guests[i].Name == name {
			return &h.Guests[i], true
		}
	}
	return nil, false
}

// Claim returns the reservation that is held for a guest while it is created,
// bound or moved, in addition to its own placement; ok is false if none is.
func (h *Host) Claim(name string) (c *Claim, ok bool) {
	for i := range h.Claims {
		if h.Claims[i].PID == 0 && h.Claims[i].Name == name {
			return &h.Claims[i], true
		}
	}
	return nil, false
}

// Kernel holds the kernel's settings for moving and merging memory by itself.
// Values are as the kernel writes them; empty means not readable (see Gaps).
type Kernel struct {
	Release              string `json:"release,omitempty"`
	NUMABalancing        string `json:"numa_balancing,omitempty"`         // /proc/sys/kernel/numa_balancing: 0, 1, 2
	TransparentHugePages string `json:"transparent_huge_pages,omitempty"` // always, madvise, never
	KSMRun               string `json:"ksm_run,omitempty"`                // /sys/kernel/mm/ksm/run
	KSMAcrossNodes       string `json:"ksm_merge_across_nodes,omitempty"`
	KSMPagesShared       uint64 `json:"ksm_pages_shared,omitempty"`
	ZoneReclaim          string `json:"zone_reclaim_mode,omitempty"`
	Demotion             string `json:"demotion_enabled,omitempty"` // /sys/kernel/mm/numa/demotion_enabled
	CgroupV2             bool   `json:"cgroup_v2"`
	// Cpusets says whether cgroup v2 has the cpuset controller, without which no
	// VM can be restricted to nodes; nil: not looked for.
	Cpusets      *bool `json:"cpusets,omitempty"`
	NumadRunning bool  `json:"numad_running,omitempty"`
	// NumadInstalled says whether the numad program is installed. libvirt runs it
	// for placement='auto', with or without its daemon; nil: not looked for.
	NumadInstalled *bool `json:"numad_installed,omitempty"`
}

// Claim is a reservation in flight or of a plain process.
type Claim struct {
	Name string `json:"name"`
	PID  int    `json:"pid,omitempty"` // of the plain process; 0: the claim is of a guest
	// Holder is the process that creates, binds or moves the guest, By the user as
	// the journal names it, Since the time of the beginning; each may be unknown.
	Holder    int             `json:"holder_pid,omitempty"`
	By        string          `json:"by,omitempty"`
	Since     time.Time       `json:"since,omitzero"`
	Placement guest.Placement `json:"placement"`
}

// HeldBy describes who holds the claim and since when: "balancer (process 812)
// since 2026-03-01T12:00:00Z".
func (c *Claim) HeldBy() string {
	who := cmp.Or(c.By, "another process")
	if c.Holder != 0 {
		who = fmt.Sprintf("%s (process %d)", cmp.Or(c.By, "a user"), c.Holder)
	}
	if !c.Since.IsZero() {
		who += " since " + c.Since.UTC().Format(time.RFC3339)
	}
	return who
}

// Guest is one VM as it was observed.
type Guest struct {
	Name       string           `json:"name"`
	UUID       string           `json:"uuid,omitempty"`
	Hypervisor guest.Hypervisor `json:"hypervisor"`
	Can        Capabilities     `json:"capabilities"`
	State      string           `json:"state"` // running, paused, shutoff
	// Pool is the CPU pool to which the hypervisor restricts the guest; empty: the host has none.
	Pool string `json:"cpu_pool,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Run identifies the run of a guest without a process on this host (Xen's number of the domain): a restarted
	// guest has another one. Empty: PID identifies it.
	Run string `json:"run,omitempty"`
	// Persistent says that the hypervisor stores a configuration for the next start.
	Persistent bool `json:"persistent,omitempty"`
	// Managed says that Numavisor created or bound it; then Spec and Placement are the intent.
	Managed bool `json:"managed"`
	// Adopted says of a guest with an intent that Numavisor did not create it.
	Adopted bool `json:"adopted,omitempty"`
	// PlacedFor is the other host that the recorded intent is for. The guest came
	// from there: it counts as one without an intent until it is bound here.
	PlacedFor *guest.HostIdentity `json:"placed_for,omitempty"`
	Spec      *guest.Spec         `json:"spec,omitempty"`
	Placement *guest.Placement    `json:"placement,omitempty"`
	// IntentError says why a recorded intent is not used (CheckIntents): the guest is not managed then.
	IntentError string `json:"intent_error,omitempty"`

	Config Config `json:"config"` // the hypervisor's configuration
	Seen   Seen   `json:"seen"`   // the kernel's view
}

// Identity distinguishes the host from others.
func (h *Host) Identity() guest.HostIdentity { return guest.HostIdentity{ID: h.ID, Name: h.Name} }

// SetIntent gives the guest the intent from its metadata. Drivers that do not
// know their host call it: see KeepIntentOf.
func (g *Guest) SetIntent(i guest.Intent) {
	g.Managed, g.Adopted, g.Spec, g.Placement = true, i.Adopted, &i.Spec, &i.Placement
	if i.Host.ID != "" {
		g.PlacedFor = &i.Host
	}
}

// KeepIntentOf drops the guest's intent if it is for another host than the
// given one: it names nodes and CPUs of that host. The guest retains only the
// identity of that host.
func (g *Guest) KeepIntentOf(host guest.HostIdentity) {
	switch {
	case g.PlacedFor == nil:
	case g.PlacedFor.ID == host.ID:
		g.PlacedFor = nil
	default:
		g.Managed, g.Spec, g.Placement = false, nil, nil
	}
}

// Created reports whether Numavisor created the guest, on this host or another one.
func (g *Guest) Created() bool { return (g.Managed || g.PlacedFor != nil) && !g.Adopted }

// Ours reports whether Numavisor created the guest and placed it on this host.
// It is false for a guest that Numavisor bound but did not create: balancing
// only advises moves of such a guest, unless the policy says otherwise.
func (g *Guest) Ours() bool { return g.Managed && !g.Adopted }

// VCPUNodes returns the nodes on which the guest's vCPUs may run, by the
// affinity of their threads.
func (g *Guest) VCPUNodes(t *topology.Topology) topology.NodeSet {
	var nodes topology.NodeSet
	for _, thread := range g.Seen.Threads {
		if thread.VCPU != nil {
			nodes = nodes.Union(t.NodesOf(thread.Affinity))
		}
	}
	return nodes
}

// ReadClosely reports whether threads and memory of the running guest were read closely. Of a guest
// without a process on this host the hypervisor reports memory by node, and no mappings.
func (g *Guest) ReadClosely() bool {
	if g.PID == 0 {
		return len(g.Seen.Threads) > 0 && len(g.Seen.MemoryByNode) > 0
	}
	return len(g.Seen.Threads) > 0 && len(g.Seen.Ranges) > 0
}

// HomeNodes returns the nodes that hold a notable part (a twentieth) of the guest's memory.
func (g *Guest) HomeNodes() (nodes topology.NodeSet) {
	var all topology.Bytes
	for _, bytes := range g.Seen.MemoryByNode {
		all = all.Plus(bytes)
	}
	for node, bytes := range g.Seen.MemoryByNode {
		if bytes > 0 && bytes >= all/20 {
			nodes = nodes.With(node)
		}
	}
	return nodes
}

// Config is the part of the hypervisor's configuration that affects locality.
type Config struct {
	VCPUs     int            `json:"vcpus"`
	Memory    topology.Bytes `json:"memory_bytes"`
	PageSize  topology.Bytes `json:"page_size,omitempty"`     // huge pages asked for, 0 none
	Source    string         `json:"memory_source,omitempty"` // anonymous, memfd, file, hugetlbfs
	Shared    bool           `json:"memory_shared,omitempty"`
	Locked    bool           `json:"memory_locked,omitempty"`
	Immediate bool           `json:"memory_immediate,omitempty"`

	NUMATune *NUMATune                        `json:"numatune,omitempty"` // nil: none
	Pins     map[guest.VCPUID]topology.CPUSet `json:"vcpu_pins,omitempty"`
	// SoftPins are the CPUs on which vCPUs run if they can, where the hypervisor knows such (Xen); a vCPU without
	// an entry has no preference.
	SoftPins     map[guest.VCPUID]topology.CPUSet `json:"vcpu_soft_pins,omitempty"`
	EmulatorPin  topology.CPUSet                  `json:"emulator_pin,omitzero"`
	IOThreadPins map[int]topology.CPUSet          `json:"io_thread_pins,omitempty"`
	IOThreads    int                              `json:"io_thread_count,omitempty"`
	// AutoPlacement: <vcpu placement='auto'> or numatune placement='auto'.
	AutoPlacement bool `json:"auto_placement,omitempty"`

	// NodeAffinity are the nodes from which Xen takes further memory of the guest; empty: all.
	NodeAffinity topology.NodeSet `json:"node_affinity,omitzero"`

	Cells   []ConfigCell `json:"cells,omitempty"`   // guest NUMA cells; empty: the guest sees none
	Devices []string     `json:"devices,omitempty"` // assigned host PCI addresses (vfio)
	// SharedStorage says that other hosts can reach all disks that the guest writes to; nil: not known.
	SharedStorage *bool `json:"shared_storage,omitempty"`
}

// ConfigCell is a guest NUMA cell as configured.
type ConfigCell struct {
	ID        guest.CellID         `json:"id"`
	VCPUs     guest.VCPUSet        `json:"vcpus"`
	Memory    topology.Bytes       `json:"memory_bytes"`
	Distances map[guest.CellID]int `json:"distances,omitempty"`
	// Node is the host's node from which the hypervisor should take the cell's memory (pnode of Xen); nil: none is
	// named. libvirt's nodes of cells are in NUMATune.
	Node *topology.NodeID `json:"node,omitempty"`
}

// NUMATune is libvirt's numatune element.
type NUMATune struct {
	Mode  string           `json:"mode,omitempty"` // of <memory>; empty: none given
	Nodes topology.NodeSet `json:"nodes,omitzero"`
	Auto  bool             `json:"auto,omitempty"`
	Cells []CellTune       `json:"cells,omitempty"` // <memnode>
}

// CellTune is a memnode element.
type CellTune struct {
	Cell  guest.CellID     `json:"cell"`
	Mode  string           `json:"mode"`
	Nodes topology.NodeSet `json:"nodes"`
}

// Seen is the state of one guest as the kernel reports it.
type Seen struct {
	// MemoryByNode is guest memory resident per node, from MemorySource.
	MemoryByNode topology.MemoryByNode `json:"memory_by_node,omitempty"`
	MemorySource string                `json:"memory_source,omitempty"` // "cgroup memory.numa_stat", "numa_maps", ...
	// Ranges are the guest's RAM mappings; only filled on request (numa_maps).
	Ranges []MemoryRange `json:"ranges,omitempty"`
	// Threads are the VM process's threads.
	Threads []Thread `json:"threads,omitempty"`
	// ThreadSource is the source of run and wait times.
	ThreadSource string `json:"thread_source,omitempty"`
	// Throttled is how long the guest's own quota of CPU time has throttled its
	// vCPUs since the guest started. The wait times of its threads include that
	// time.
	Throttled  time.Duration `json:"throttled_ns,omitempty"`
	CgroupPath string        `json:"cgroup,omitempty"` // below /sys/fs/cgroup
	// NodeLimits are the cgroups above the guest's own that restrict its nodes, the topmost first.
	NodeLimits []NodeLimit `json:"node_limits,omitempty"`
	// Load is the guest's recent load; nil: not measured.
	Load *GuestLoad `json:"load,omitempty"`
	// HandedOver is what a mirrored guest has of the CPUs that guests hand to each other, as the
	// daemon records it; nil: it hands none over, or there is no record.
	HandedOver *HandedOver `json:"handed_over,omitempty"`
	// Scaled is which vCPUs a guest uses whose number of vCPUs follows its demand, as the daemon records it; nil: it
	// is none, or there is no record.
	Scaled *Scaled `json:"scaled,omitempty"`
}

// MemoryRange is a mapping that holds guest RAM.
type MemoryRange struct {
	Address  uint64                `json:"address"`
	Size     topology.Bytes        `json:"size_bytes"`
	Cell     *guest.CellID         `json:"cell,omitempty"` // nil: not known
	Policy   string                `json:"policy"`         // as numa_maps writes it: "default", "bind:0", "prefer:1"
	PageSize topology.Bytes        `json:"page_size_bytes"`
	Backing  string                `json:"backing"` // anonymous, memfd, hugetlbfs, file
	File     string                `json:"file,omitempty"`
	ByNode   topology.MemoryByNode `json:"by_node"`
}

// ThreadRole is the function of a thread of a VM process.
type ThreadRole string

// Thread roles.
const (
	RoleVCPU     ThreadRole = "vcpu"
	RoleEmulator ThreadRole = "emulator"
	RoleIOThread ThreadRole = "iothread"
	RoleVhost    ThreadRole = "vhost"
	RoleOther    ThreadRole = "other"
)

// Thread is one thread of a VM process.
type Thread struct {
	TID      int             `json:"tid"`
	Name     string          `json:"name"`
	Role     ThreadRole      `json:"role"`
	VCPU     *guest.VCPUID   `json:"vcpu,omitempty"`
	LastCPU  topology.CPUID  `json:"last_cpu"`
	Affinity topology.CPUSet `json:"affinity"` // effective: Cpus_allowed_list
	// Preferred are the CPUs among these on which the scheduler runs the thread if it can (Xen's soft
	// affinity); empty: no preference.
	Preferred topology.CPUSet  `json:"preferred,omitzero"`
	Mems      topology.NodeSet `json:"mems"`    // effective: Mems_allowed_list
	RunTime   time.Duration    `json:"run_ns"`  // since start
	WaitTime  time.Duration    `json:"wait_ns"` // runnable but not running, since start (steal)
}
