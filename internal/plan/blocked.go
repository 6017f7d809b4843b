package plan

import "time"

// Blocked gives the reason why balancing does not move a guest. Code decides by
// Kind and Until; Why is for people.
type Blocked struct {
	Guest string    `json:"guest"`
	Kind  BlockKind `json:"kind,omitempty"` // empty in documents from versions without kinds
	Until time.Time `json:"until,omitzero"` // when BlockedCooldown or BlockedNotRepaid ends
	Why   string    `json:"why"`
}

// BlockKind is the kind of reason why a guest is not moved.
type BlockKind string

// Kinds of reasons. Those of the first group apply whatever moves exist.
const (
	BlockedModeOff    BlockKind = "mode-off"    // the policy leaves the guest alone
	BlockedNotRunning BlockKind = "not-running" // paused, or about to end
	BlockedUnbound    BlockKind = "unbound"     // its spec asks not to be bound
	BlockedMirror     BlockKind = "mirror"      // its cells mirror the host: it is on all nodes
	BlockedPageSize   BlockKind = "page-size"   // more page sizes than the planner distinguishes
	BlockedAmbiguous  BlockKind = "ambiguous"   // another guest has the same name
	BlockedBusy       BlockKind = "busy"        // being created or moved
	BlockedCooldown   BlockKind = "cooldown"    // it moved recently

	BlockedNotYet       BlockKind = "not-yet"       // has a reason to move, but not for long enough yet
	BlockedRefused      BlockKind = "refused"       // a move was found and refused: limits, price, budget
	BlockedNotRepaid    BlockKind = "not-repaid"    // degraded for too short a time to expect that a copy is repaid
	BlockedNodeLimit    BlockKind = "node-limit"    // a cgroup above it excludes it from the target nodes
	BlockedMemoryPinned BlockKind = "memory-pinned" // its memory cannot move, and repinning does not help enough
	BlockedNoGain       BlockKind = "no-gain"       // no move helps enough
)
