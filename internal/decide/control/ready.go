package control

import (
	"errors"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Ready is the result of an event. The caller carries out its parts in the order
// of the fields, and answers with the events that they name. Parts that may take
// long (Observe, ReadClosely, Remedy, StartJob) run in the background, at most one of each at a
// time.
type Ready struct {
	// StopJob stops the running job for a cause; the zero value does not. The job
	// then ends with JobEnded like any other.
	StopJob StopCause
	// Entries are appended to the journal, in this order. Those with an order
	// are answered with Appended, whether it succeeded or not.
	Entries []Append
	// ReadJournal: read the journal and answer with JournalRead.
	ReadJournal bool
	// SaveAlarms are the alarms to save; nil: there is nothing to save.
	SaveAlarms *Alarms
	// Follow are the guests to sample from now on; nil: as before.
	Follow *Follow
	// Observe: observe the host and answer with Observed.
	Observe bool
	// ReadClosely: read the mappings of these guests, and answer with CloselyRead; nil: there is
	// nothing to read.
	ReadClosely *ReadClosely
	// SampleIn: take the next sample after this time, before the regular one, because
	// a decision waits for it. 0: with the regular one.
	SampleIn time.Duration
	// Remedy is a setting to change; answered with SettingChanged.
	Remedy *plan.Remedy
	// StartJob is a job to start; answered with JobEnded.
	StartJob *Job
	// Planned: a plan was made in this step.
	Planned bool
	// Facts are for the log.
	Facts []Fact
	// Replies answer orders.
	Replies []Reply
	// Stopped: the controller takes no further events.
	Stopped bool
}

// Append is an entry for the journal. Order, if not 0, is answered after the
// entry has been appended.
type Append struct {
	Entry journal.Entry
	Order OrderID
}

// Alarms is the state of alarms to save.
type Alarms struct {
	State   alarm.State
	Changes []alarm.Alarm // raised, changed or cleared in this step
}

// Follow says which guests to sample. The topology is the same pointer as long
// as nodes and CPUs are the same.
type Follow struct {
	Guests   []inventory.Guest
	Topology *topology.Topology
}

// JobKind says what a job does.
type JobKind string

// Kinds of jobs.
const (
	MoveJob    JobKind = "move"    // execute Move
	RecoverJob JobKind = "recover" // finish or roll back interrupted moves
	RepairJob  JobKind = "repair"  // bind Guest to its recorded placement
	RestJob    JobKind = "rest"    // alike, to finish what a move of Guest left for a quiet time
)

// Initiator is who ordered a job.
type Initiator string

// Initiators, as the journal names them.
const (
	Balancer Initiator = "balancer"
	Operator Initiator = "operator"
)

// Job is one action on guests. Jobs run one after the other: the nodes'
// bandwidth is shared by all guests, and a plan's moves make room for each other
// in its order.
type Job struct {
	ID     string // empty for a recovery: its moves have their own
	Kind   JobKind
	Move   plan.Move // of a MoveJob
	Guest  string    // of a RepairJob or RestJob
	By     Initiator
	Why    string        // of a RepairJob
	Policy policy.Policy // under which it runs
	// Idle are guests that hardly use CPUs, whose memory kernel balancing hardly moves, and those that it serves, too.
	Idle []string
	// Held is kernel balancing that the daemon has enabled for the move already; nil: it has not. If the move
	// begins, it takes the setting over.
	Held *journal.SettingChange
	// Served are guests to whose vCPUs the kernel has just brought the memory that they use.
	Served []string
	// Drifts says that the kernel was bringing memory to vCPUs for moves some seconds ago.
	Drifts bool
	// Known is the host as last observed, with the memory of the latest sample; nil: it may have changed since. Guests
	// that have been read closely, seconds ago, have their mappings.
	Known *inventory.Host
	// CopyRate is how fast the host copies memory, in bytes a second; 0: not known.
	CopyRate topology.Bytes
}

// StopCause is why a running job is stopped.
type StopCause string

// Causes. Paused and WindowClosed leave the job to be resumed; Cancelled rolls
// it back, and a later Paused or WindowClosed stops that, too. GivesWay ends a move that copies: it
// leaves what it has not copied.
const (
	StopPaused       StopCause = "paused"
	StopWindowClosed StopCause = "window-closed"
	StopCancelled    StopCause = "cancelled"
	StopGivesWay     StopCause = "gives-way"
)

// Level is the importance of a fact.
type Level string

// Levels.
const (
	Debug Level = "debug"
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Fact is something worth logging.
type Fact struct {
	Level Level
	What  string
	About []any // keys and values, alternately
}

// Reply answers an order.
type Reply struct {
	Order OrderID
	Err   error // nil: it is carried out
}

// Reasons to refuse an order, for errors.Is.
var (
	// ErrMalformed: the order is invalid in any state.
	ErrMalformed = errors.New("malformed order")
	// ErrUnknown: the order names a move or advice that does not exist.
	ErrUnknown = errors.New("unknown id")
	// ErrConflict: the order does not fit the state.
	ErrConflict = errors.New("conflict")
	// ErrNotPersistent: the order is in force, but a restart will not know of it.
	ErrNotPersistent = errors.New("this will not survive a restart of the daemon, because the journal cannot be " +
		"written")
)

// refusal is an error with a reason that its text does not repeat.
type refusal struct {
	reason error
	text   string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Unwrap() error { return r.reason }
