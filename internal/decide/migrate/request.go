package migrate

import (
	"cmp"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// Request is everything that a plan depends on.
type Request struct {
	// Fleet has all hosts, with loads, and the claims of migrations in progress on both hosts. It is
	// the same afterwards.
	Fleet *schedule.Fleet
	Now   time.Time
	// VMs are facts that inventories do not have, by VM. A VM without them does not migrate.
	VMs map[string]VM
	// Local is the history of each host's own plans: its moves, and the Local of the last plan.
	Local map[string]balance.Past
	// History are the completed migrations of the last day and more.
	History []Migrated
	Running []Running // migrations in progress
	Limits  Limits
	// Lasting assumes that every VM has been degraded for long enough, for a what-if.
	Lasting bool
}

// VM is what must be known of a VM in addition to its host's inventory.
type VM struct {
	Affinity fleet.Affinity
	// Machine is the type of its machine (fleet.Machine.Type); empty: that of its hypervisor.
	Machine string
	// SharedStorage says that its disks are reachable from all hosts; nil: not known.
	SharedStorage *bool
	// NotBefore is the end of the pause after a migration that has failed; zero: none.
	NotBefore time.Time
}

// Migrated is a completed migration.
type Migrated struct {
	VM, From, To string
	At           time.Time
}

// Running is a migration in progress.
type Running struct{ VM, From, To string }

// Limits bound migrations. Zero fields have the documented default.
type Limits struct {
	PerHost int // at once from and to a host; default 1
	Fleet   int // at once; default 1 for 50 hosts, and at least 2
	// BytesPerSecond is the rate of copying between hosts; default 1 GiB/s, as of a 10 Gb/s link.
	BytesPerSecond topology.Bytes
	// Downtime is how long a VM stops at the end of its migration; default 300 ms, that of libvirt.
	Downtime time.Duration
	// Lasts is for how long a VM must have been degraded; default 1m: the host's own plans come first.
	Lasts time.Duration
}

// WithDefaults returns the limits for a number of hosts, with the defaults for zero fields.
func (l Limits) WithDefaults(hosts int) Limits {
	l.PerHost = cmp.Or(l.PerHost, 1)
	l.Fleet = cmp.Or(l.Fleet, max(2, hosts/50))
	l.BytesPerSecond = cmp.Or(l.BytesPerSecond, topology.GiB)
	l.Downtime = cmp.Or(l.Downtime, 300*time.Millisecond)
	l.Lasts = cmp.Or(l.Lasts, time.Minute)
	return l
}

// Migration is one VM that should go to another host.
type Migration struct {
	VM        string          `json:"vm"`
	From      string          `json:"from"`
	To        string          `json:"to"`
	Spec      guest.Spec      `json:"spec"`
	Placement guest.Placement `json:"placement"` // on the target
	// Waits says that the limits let it begin only when others are done.
	Waits bool `json:"waits,omitempty"`
	// Advised migrations are shown and not made: the VM's mode does not allow them.
	Advised bool         `json:"advised,omitempty"`
	Benefit plan.Benefit `json:"benefit,omitzero"` // of Rebalance
	Price   Price        `json:"price"`
	// Relieves is the degraded VM whose cost it lowers most.
	Relieves string       `json:"relieves,omitempty"`
	Why      string       `json:"why"`
	Target   schedule.Why `json:"target"` // why this host
}

// Price is what a migration costs once.
type Price struct {
	Bytes          topology.Bytes `json:"bytes"`   // memory to copy, in one pass
	Took           time.Duration  `json:"took_ns"` // at BytesPerSecond
	BytesPerSecond topology.Bytes `json:"bytes_per_second"`
	Downtime       time.Duration  `json:"downtime_ns"`
	CPUSeconds     float64        `json:"cpu_seconds"` // that both hosts and the VM lose
}

// Blocked is a VM that should leave its host, and why it does not.
type Blocked struct {
	VM    string    `json:"vm"`
	Host  string    `json:"host"`
	Kind  Obstacle  `json:"kind"`
	Until time.Time `json:"until,omitzero"` // of Cooldown
	Why   string    `json:"why"`
}

// Obstacle is the kind of reason why a VM does not migrate.
type Obstacle string

// Obstacles.
const (
	ModeOff    Obstacle = "mode-off"    // the policy leaves the VM alone
	NotRunning Obstacle = "not-running" // stopped, paused, or not created yet
	Unmanaged  Obstacle = "unmanaged"   // Numavisor has no spec and no placement of it
	Devices    Obstacle = "devices"     // a host device is assigned to it
	Mirrored   Obstacle = "mirrored"    // it mirrors its host's CPUs and is granted some of them
	Storage    Obstacle = "storage"     // its disks are not known to be reachable from other hosts
	Migrating  Obstacle = "migrating"   // it migrates already
	Cooldown   Obstacle = "cooldown"    // it migrated recently
	NoHost     Obstacle = "no-host"     // no other host takes it
	NoGain     Obstacle = "no-gain"     // no migration helps enough for its price
	AtLimit    Obstacle = "at-limit"    // as many migrations run as may
	LocalFirst Obstacle = "local-first" // the host's own plan has moves for it
	TooShort   Obstacle = "too-short"   // not degraded for long enough
)

// Plan is the result of Rebalance.
type Plan struct {
	// Migrations in the order in which they should begin. Every order is legal.
	Migrations []Migration `json:"migrations"`
	Blocked    []Blocked   `json:"blocked,omitempty"`
	// Local is the history of each host for the next request: which VMs are degraded, since when.
	Local map[string]balance.Past `json:"-"`
}
