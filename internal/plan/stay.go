package plan

import "time"

// Stay says of a guest why balancing leaves it where it is. Code decides by
// Kind and Until; Why is for people.
type Stay struct {
	Guest string    `json:"what"`
	Kind  StayKind  `json:"kind,omitempty"` // empty in documents from before stays had kinds
	Until time.Time `json:"until,omitzero"` // of StayCooldown: when it ends
	Why   string    `json:"why"`
}

// StayKind is the kind of reason for which a guest stays.
type StayKind string

// Kinds of reasons. The first group holds whatever moves there are.
const (
	StayModeOff    StayKind = "mode-off"    // the policy leaves the guest alone
	StayNotRunning StayKind = "not-running" // paused, or about to end
	StayUnbound    StayKind = "unbound"     // its spec asks not to be bound
	StayMirror     StayKind = "mirror"      // its cells mirror the host: it is on all nodes
	StayPageSize   StayKind = "page-size"   // more page sizes than the planner tells apart
	StayAmbiguous  StayKind = "ambiguous"   // another guest has its name
	StayBusy       StayKind = "busy"        // being created or moved
	StayCooldown   StayKind = "cooldown"    // it moved lately

	StayPatience     StayKind = "patience"      // has a reason to move, not for long enough yet
	StayRefused      StayKind = "refused"       // a move was found and refused: limits, price, budget
	StayMemoryPinned StayKind = "memory-pinned" // its memory cannot move, and repinning does not help enough
	StayNoGain       StayKind = "no-gain"       // no move helps enough
)
