package control

import (
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Event is an input of the controller: one of the types of this file.
type Event interface{ event() }

// Start is the first event. It has the persistent state of the last daemon.
type Start struct {
	Entries []journal.Entry // of the journal, oldest first
	Damaged []inventory.Gap // parts of the journal that cannot be read
	Alarms  alarm.State
	// NUMABalancing is the value of kernel.numa_balancing; empty: it could not be read.
	NUMABalancing string
	// CopyRate is how fast the host copies memory, in bytes a second, by a trial; 0: not known.
	CopyRate topology.Bytes
}

// Tick comes before each sample. Pauses and maintenance windows begin and end with it.
type Tick struct{}

// Sampled is a sample of the followed guests and of the nodes. Most decisions are made on it.
type Sampled struct{ Sample inventory.Sample }

// RosterChanged means that guests have started or ended.
type RosterChanged struct{}

// Observed answers Ready.Observe: the host, or why it could not be observed.
type Observed struct {
	Host inventory.Host
	Took time.Duration // how long it took
	Err  error
}

// CloselyRead answers Ready.ReadClosely: the guests with their mappings (inventory.Seen.Ranges). A guest whose
// mappings could not be read is left out.
type CloselyRead struct{ Guests []inventory.Guest }

// JobProgressed says how far the running job is.
type JobProgressed struct{ Moving status.Moving }

// JobEnded answers Ready.StartJob.
type JobEnded struct {
	Moved []Moved // moves that began; a recovery may have several
	// Shortfalls of a repair are the parts of the placement that are not in place.
	Shortfalls []string
	Stopped    bool  // it ended because Ready.StopJob or the end of the daemon stopped it
	Stale      bool  // it was refused before anything was changed: the host is no longer as the plan saw it
	Err        error // why it failed or was stopped
	// Seen is the host as it was observed after the last change of the job; nil: the
	// controller asks for an observation.
	Seen *inventory.Host
}

// Moved is the result of a move that began.
type Moved struct {
	Move      plan.Move
	End       journal.Kind // empty: it was stopped, or a step failed, and it will be resumed
	Bytes     topology.Bytes
	Pulled    topology.Bytes // that the kernel brought to the vCPUs
	Copied    time.Duration  // time spent copying memory, without pauses
	Cancelled bool           // an operator wanted it rolled back
	// Left are guests whose memory limit and process's own memory the move left as they were.
	Left []string
	// Held is a setting that the move could not restore; nil: none.
	Held *journal.SettingChange
	// Idle are guests in Left that hardly worked any more, so that the move left their memory.
	Idle []string
	// GaveWay: it left memory, because StopGivesWay stopped it. Its guests may move again at once.
	GaveWay bool
	// Pauses: kernel balancing stays on (Held) because none of its guests works any more.
	Pauses bool
}

// SettingChanged answers Ready.Remedy.
type SettingChanged struct {
	What     string // was changed, in one line
	Former   string // the value before; empty where the remedy writes none
	NotBegun bool   // it failed before anything was changed
	Err      error
}

// JournalRead answers Ready.ReadJournal.
type JournalRead struct {
	Entries []journal.Entry
	Err     error
}

// Appended answers an entry of Ready.Entries that has an order.
type Appended struct {
	Order OrderID
	Err   error // why the entry is not in the journal
}

// OrderID identifies an order of an operator, for its reply. The caller gives
// each order a different one, greater than 0.
type OrderID uint64

// Pause orders that moves are suspended, the running one included.
type Pause struct {
	Order OrderID
	For   time.Duration // 0: until Resume
	Why   string
}

// Resume orders that a pause ends.
type Resume struct{ Order OrderID }

// Accept orders an advised move, regardless of mode, pause and windows.
type Accept struct {
	Order  OrderID
	Advice string // its id
}

// Cancel orders that a running move is rolled back, or a queued one dropped.
type Cancel struct {
	Order OrderID
	Job   string // its id
}

// SetPolicy orders a new policy. It takes effect when no job runs.
type SetPolicy struct {
	Order  OrderID
	Policy policy.Policy
}

// Stop is the last order: the daemon ends. Jobs have been stopped; a setting
// that is being changed is awaited (SettingChanged), then Ready.Stopped is set.
type Stop struct{}

func (Start) event()          {}
func (Tick) event()           {}
func (Sampled) event()        {}
func (RosterChanged) event()  {}
func (Observed) event()       {}
func (CloselyRead) event()    {}
func (JobProgressed) event()  {}
func (JobEnded) event()       {}
func (SettingChanged) event() {}
func (JournalRead) event()    {}
func (Appended) event()       {}
func (Pause) event()          {}
func (Resume) event()         {}
func (Accept) event()         {}
func (Cancel) event()         {}
func (SetPolicy) event()      {}
func (Stop) event()           {}
