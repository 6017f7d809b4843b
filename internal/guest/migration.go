package guest

import (
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// Departure is the live migration of a running guest to the hypervisor of another host.
type Departure struct {
	Name string
	// Intent is for the target: its host and the placement there. The guest arrives with it.
	Intent Intent
	// Definition is the definition bound to the intent, in the form of the hypervisor; empty: the hypervisor has it.
	Definition []byte
	// URI is by which this host's hypervisor reaches the target's; Data is for the
	// copy of the memory, empty: the hypervisor chooses.
	URI, Data string
	// AutoConverge slows the vCPUs down if the memory changes faster than it is copied.
	// PostCopy lets the guest run on the target before all of its memory is there: if
	// the connection breaks then, the guest is lost.
	AutoConverge, PostCopy bool
	// CopyStorage copies disks that the target does not share.
	CopyStorage bool
	// MaxDowntime is for how long the guest may stand still; 0: the hypervisor's default.
	MaxDowntime time.Duration
	// Progress is called now and then; may be nil.
	Progress func(Transfer)
}

// Transfer is what a migration has copied.
type Transfer struct {
	Copied    topology.Bytes `json:"copied_bytes"`
	Remaining topology.Bytes `json:"remaining_bytes,omitempty"`
	Elapsed   time.Duration  `json:"elapsed_ns"`
	// Downtime is for how long the guest ran on neither host; 0: not known.
	Downtime time.Duration `json:"downtime_ns,omitempty"`
}

// Presence is what a hypervisor has of a guest that migrates.
type Presence int

// Presences. The hypervisor of one host cannot tell what is true on the other.
const (
	Absent Presence = iota // not even a stored configuration
	Stored                 // a stored configuration; it does not run
	Runs                   // or was paused by somebody
	// Departing runs here while its memory is copied to another host.
	Departing
	// Suspended is stopped for a migration: on the target it is arriving, or runs (post-copy) while a
	// part of its memory is on the source; on the source all of its memory is copied, and the hypervisor
	// does not know whether it runs on the target.
	Suspended
	// Changing starts or ends at this moment: only a later answer says what it becomes.
	Changing
)

// String returns the presence in words.
func (p Presence) String() string {
	switch p {
	case Absent:
		return "absent"
	case Stored:
		return "shut off"
	case Runs:
		return "running"
	case Departing:
		return "being copied to another host"
	case Suspended:
		return "paused for a migration"
	case Changing:
		return "starting or ending"
	}
	return "unknown"
}
