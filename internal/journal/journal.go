// Package journal holds the record of what was done on a host, when and why:
// 'numavisor history' shows it, and a restart finishes or rolls back what it
// names.
package journal

import (
	"maps"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// Kind says what an entry records.
type Kind string

// Kinds of entries. A move has one MoveBegan and, once it is over, exactly one
// of MoveDone, MovePartial, MoveFailed, MoveUndone, with the same ID; one
// without its end was interrupted.
const (
	MoveBegan   Kind = "move-began"
	MoveStep    Kind = "move-step"    // a step of it is complete: a restart need not repeat it
	MoveUndoing Kind = "move-undoing" // the daemon is rolling the move back; after a restart it resumes that
	MoveDone    Kind = "move-done"    // and verified
	MovePartial Kind = "move-partial" // the guest runs, part of it could not be done
	MoveFailed  Kind = "move-failed"  // given up; What says how the guest is left
	MoveUndone  Kind = "move-undone"  // the guest is back where it was
	Advised     Kind = "advised"      // a move was found worth making, and not made: mode advise
	Accepted    Kind = "accepted"     // an operator accepted an advised move
	Repaired    Kind = "repaired"     // drift was bound again, or part of it
	// RepairFailed is the first of tries to bind a guest again that fail alike.
	RepairFailed Kind = "repair-failed"
	Drifted      Kind = "drifted"    // another program or user changed a managed guest
	Competitor   Kind = "competitor" // another program moves pages here, or has stopped doing so
	Setting      Kind = "setting"    // a new policy is in force, or numad excludes a guest
	Paused       Kind = "paused"
	Resumed      Kind = "resumed"
	Raised       Kind = "alarm-raised"
	Cleared      Kind = "alarm-cleared"
	Started      Kind = "daemon-started"
	Stopped      Kind = "daemon-stopped"
)

// Entry is one line of the record.
type Entry struct {
	At     time.Time `json:"at"`
	Kind   Kind      `json:"kind"`
	ID     string    `json:"id,omitempty"` // of the move or the effect
	Guests []string  `json:"guests,omitempty"`
	What   string    `json:"what"`          // in one line
	Why    string    `json:"why,omitempty"` // the reason, or the error
	By     string    `json:"by,omitempty"`  // "balancer", "operator", "restart", or who was seen doing it
	// Reasons are those for the placement that Why sums up, on the entry that begins the effect.
	Reasons *Reasons `json:"reasons,omitempty"`
	// Request is the request that the effect carries out, on the entry that begins it; nil: it has no key.
	Request *Request `json:"request,omitempty"`
	// Move is the whole move, undo included, on MoveBegan and Advised.
	Move *plan.Move `json:"move,omitempty"`
	// Moved and Took are what a move that ended came to, Copied for how long of
	// that it copied memory: pauses are not counted. 0: not known.
	Moved topology.Bytes `json:"moved_bytes,omitempty"`
	// Pulled is the memory that kernel balancing brought to the vCPUs meanwhile.
	Pulled topology.Bytes `json:"pulled_bytes,omitempty"`
	Took   time.Duration  `json:"took_ns,omitempty"`
	Copied time.Duration  `json:"copied_ns,omitempty"`
	// Trace is what the move did in each second of Took, on the entry of its end and
	// of a stop.
	Trace []Moment `json:"trace,omitempty"`
	// Cancelled: the operator requested that the move be rolled back, and it has
	// been since.
	Cancelled bool `json:"cancelled,omitempty"`
	// Shortfalls are the incomplete parts, one line each.
	Shortfalls []string `json:"shortfalls,omitempty"`
	// Effect is the kind of change that the entry is about, if the entry's kind is
	// one of Effect's.
	Effect Effect `json:"effect,omitempty"`
	// Migration is this host's part of a live migration, on the entry that begins it.
	Migration *plan.Migration `json:"migration,omitempty"`
	// Process is the one that makes the effect, on the entry that begins it.
	Process *Process `json:"process,omitempty"`
	// Setting is the kernel setting that is changed.
	Setting *SettingChange `json:"setting,omitempty"`
	// Pools is the change of the CPU pools.
	Pools *plan.CPUPoolChange `json:"pools,omitempty"`
	// StoredBindings identify, for each guest, the binding in its stored
	// configuration at the end of a bind or move (SHA-256, hexadecimal).
	StoredBindings map[string]string `json:"stored_bindings,omitempty"`
	// Undoes is the ID of the effect or move that this one takes back.
	Undoes string `json:"undoes,omitempty"`
	// Until is when a pause ends by itself; zero: it ends when the operator
	// resumes.
	Until time.Time `json:"until,omitzero"`
}

// Reasons are the reasons for a placement.
type Reasons struct {
	Text  string  `json:"text"` // in lines, for people
	Cost  float64 `json:"cost"`
	Terms []Term  `json:"terms,omitempty"`
}

// Term is a part of the cost of a placement.
type Term struct {
	Name string  `json:"name"`
	Cost float64 `json:"cost"`
	Why  string  `json:"why,omitempty"`
}

// Request identifies a request that a client may repeat: the hash of its user, operation and key, and that of its body.
type Request struct {
	Key  string `json:"key"`
	Body string `json:"body"`
}

// Ends reports whether the entry ends the move that it names.
func (e Entry) Ends() bool {
	switch e.Kind {
	case MoveDone, MovePartial, MoveFailed, MoveUndone:
		return true
	default:
		return false
	}
}

// Fails reports whether the entry ends a move that failed. A move that was
// rolled back at the operator's request did not fail.
func (e Entry) Fails() bool {
	return e.Kind == MoveFailed || e.Kind == MoveUndone && !e.Cancelled
}

// InterruptedMoves returns the interrupted moves, which began and did not end, oldest
// first.
func InterruptedMoves(entries []Entry) []Entry {
	var open []Entry
	for _, e := range entries {
		switch {
		case e.Kind == MoveBegan:
			open = append(open, e)
		case e.Ends():
			open = slices.DeleteFunc(open, func(o Entry) bool { return o.ID == e.ID })
		}
	}
	return open
}

// Lasting returns the entries that hold until another one ends them, in their
// order: of interrupted moves the beginning and that they are being
// undone, the settings that are to be given back, a pause. What a restart goes
// by is among them, however old it is. So are the beginnings of other effects
// that have no end.
func Lasting(entries []Entry) []Entry {
	holds := map[string]int{} // the entry that holds, of each move, setting, and pause
	for i, e := range entries {
		e.holdEffect(i, holds)
		switch key := string(e.Kind) + " " + e.ID; e.Kind {
		case MoveBegan, MoveUndoing:
			if _, known := holds[key]; !known {
				holds[key] = i
			}
		case MoveDone, MovePartial, MoveFailed, MoveUndone:
			delete(holds, string(MoveBegan)+" "+e.ID)
			delete(holds, string(MoveUndoing)+" "+e.ID)
		case Paused:
			holds[string(Paused)] = i
		case Resumed:
			delete(holds, string(Paused))
		default: // says nothing that holds until another entry ends it
		}
	}
	var lasting []Entry
	for _, i := range slices.Compact(slices.Sorted(maps.Values(holds))) {
		lasting = append(lasting, entries[i])
	}
	return lasting
}

// holdEffect records that entry i begins an effect, or ends one, and which
// settings the daemon must restore from then on.
func (e Entry) holdEffect(i int, holds map[string]int) {
	switch {
	case e.Begins():
		holds["effect "+e.ID] = i
	case e.Closes():
		delete(holds, "effect "+e.ID)
	}
	if e.Setting == nil {
		return
	}
	const unchanged = "?"
	switch key := "setting " + e.Setting.Path; e.held(e.Setting.Path, SettingChange{Former: unchanged}).Former {
	case unchanged:
	case "":
		delete(holds, key)
	default:
		holds[key] = i
	}
}
