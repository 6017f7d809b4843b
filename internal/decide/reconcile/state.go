package reconcile

import (
	"maps"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// State is what the daemon remembers from one decision to the next.
type State struct {
	Known    map[string]Known    `json:"known,omitempty"`
	Attempts map[string]Attempts `json:"-"` // a restart tries again at once
}

// Known is a VM of the fleet that this daemon created, adopted or found as the fleet wants it.
type Known struct {
	UUID string `json:"uuid,omitempty"` // empty: not observed yet
	// Begun says that the VM is being created; whether it exists is not known.
	Begun bool `json:"begun,omitempty"`
	// Created, Generation and Placement are of the desired state that was carried out last.
	Created    time.Time       `json:"created,omitzero"`
	Generation int64           `json:"generation"`
	Placement  guest.Placement `json:"placement,omitzero"`
	// Transient says that the hypervisor stores no configuration, and Boot is the host's boot in which the VM was last
	// seen to run; empty: not known, or the VM has ended in it.
	Transient bool   `json:"transient,omitempty"`
	Boot      string `json:"boot,omitempty"`
}

// Attempts are actions on a VM of one generation that failed, or after which the VM ended by itself.
type Attempts struct {
	Generation int64
	Count      int
	Last       time.Time
	Failed     string // why the last one failed; empty: it succeeded
}

// StableAfter is how long a VM must run until earlier attempts to start it are forgotten.
const StableAfter = 5 * time.Minute

// firstWait and longestWait limit the time between two attempts, which doubles.
const (
	firstWait   = 5 * time.Second
	longestWait = 5 * time.Minute
)

// Clone returns a copy whose changes do not change s.
func (s State) Clone() State {
	return State{Known: cloneOf(s.Known), Attempts: cloneOf(s.Attempts)}
}

func cloneOf[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return maps.Clone(m)
}

// begin stores that a VM is being created, so that it is known even if the daemon is killed meanwhile.
func (s *State) begin(a Action) {
	if a.Kind == Create || a.Kind == Replace {
		s.Known[a.VM.Name] = Known{Begun: true, Created: a.VM.Created, Generation: a.VM.Generation}
	}
}

// Ended returns the state after an action; failed is nil if it succeeded.
func (s State) Ended(a Action, at time.Time, failed error) State {
	s = s.Clone()
	name := a.VM.Name
	tries := s.Attempts[name]
	if tries.Generation != a.VM.Generation {
		tries = Attempts{Generation: a.VM.Generation}
	}
	tries.Count, tries.Last, tries.Failed = tries.Count+1, at, ""
	switch {
	case failed != nil:
		tries.Failed = failed.Error()
		s.Attempts[name] = tries
		return s
	case a.Kind == Start || a.Kind == Create || a.Kind == Replace:
		s.Attempts[name] = tries // it may end at once
	default:
		delete(s.Attempts, name)
	}
	if a.Kind == Delete {
		delete(s.Known, name)
		return s
	}
	k := s.Known[name]
	k.Begun, k.Created, k.Generation = false, a.VM.Created, a.VM.Generation
	if a.Kind == Create || a.Kind == Replace {
		k.UUID = ""
	}
	if a.Kind != Stop {
		k.Placement = a.VM.Placement
	}
	s.Known[name] = k
	return s
}

// next returns when the next attempt may begin; the zero time: at once.
func (t Attempts) next(generation int64, now time.Time) time.Time {
	if t.Count == 0 || t.Generation != generation {
		return time.Time{}
	}
	wait := longestWait
	if t.Count < 10 {
		wait = min(longestWait, firstWait<<(t.Count-1))
	}
	// A clock that was set back must not delay the attempt.
	if since := now.Sub(t.Last); since < 0 || since >= wait {
		return time.Time{}
	}
	return t.Last.Add(wait)
}

// prune forgets VMs that the fleet does not name and the host does not have. A busy VM may be about to exist.
func (s *State) prune(wanted, busy map[string]bool, h *inventory.Host) {
	if len(h.HiddenBy()) > 0 {
		return
	}
	for name := range s.Known {
		if _, exists := h.Guest(name); !exists && !wanted[name] && !busy[name] {
			delete(s.Known, name)
		}
	}
	for name := range s.Attempts {
		if !wanted[name] {
			delete(s.Attempts, name)
		}
	}
}
