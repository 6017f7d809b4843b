package plan

import "time"

// Blocked says of a guest why balancing leaves it where it is. Code decides by
// Kind and Until; Why is for people.
type Blocked struct {
	Guest string    `json:"guest"`
	Kind  BlockKind `json:"kind,omitempty"` // empty in documents from versions without kinds
	Until time.Time `json:"until,omitzero"` // of BlockedCooldown: when it ends
	Why   string    `json:"why"`
}

// BlockKind is the kind of reason why a guest is not moved.
type BlockKind string

// Kinds of reasons. The first group holds whatever moves there are.
const (
	BlockedModeOff    BlockKind = "mode-off"    // the policy leaves the guest alone
	BlockedNotRunning BlockKind = "not-running" // paused, or about to end
	BlockedUnbound    BlockKind = "unbound"     // its spec asks not to be bound
	BlockedMirror     BlockKind = "mirror"      // its cells mirror the host: it is on all nodes
	BlockedPageSize   BlockKind = "page-size"   // more page sizes than the planner tells apart
	BlockedAmbiguous  BlockKind = "ambiguous"   // another guest has its name
	BlockedBusy       BlockKind = "busy"        // being created or moved
	BlockedCooldown   BlockKind = "cooldown"    // it moved lately

	BlockedNotYet       BlockKind = "not-yet"       // has a reason to move, not for long enough yet
	BlockedRefused      BlockKind = "refused"       // a move was found and refused: limits, price, budget
	BlockedNodeLimit    BlockKind = "node-limit"    // a cgroup above it keeps it from the nodes where it would go
	BlockedMemoryPinned BlockKind = "memory-pinned" // its memory cannot move, and repinning does not help enough
	BlockedNoGain       BlockKind = "no-gain"       // no move helps enough
)
