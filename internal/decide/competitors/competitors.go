// Package competitors decides how to answer others that move pages on a host
// or change how guests are bound: the kernel's NUMA balancing, numad, KSM
// across nodes, and an operator who pins a managed guest by hand. Facts and
// policy go in; reports and actions come out. Every competitor is reported
// together with the answer, and no change is repeated against an operator who
// makes it a second time.
package competitors

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// Facts are what an answer depends on.
type Facts struct {
	Kernel inventory.Kernel
	// Seen is when Kernel was read.
	Seen time.Time
	// Tried is what came of changing settings of the host; a kind that is not in it was not tried.
	Tried map[plan.RemedyKind]Tried
	// Former is what kernel.numa_balancing was before we switched it off; empty: we did not.
	Former string
	// Moves is what the kernel moved within Window.
	Moves  inventory.KernelMoves
	Window time.Duration
	Guests []Guest
	Mode   policy.Mode // the host's
	Movers policy.Movers
	Now    time.Time
}

// Guest is a running guest as competitors see it.
type Guest struct {
	Name string
	PID  int
	Mode policy.Mode
	// Told is what came of telling numad to leave it alone.
	Told Tried
	// Drift is how it differs from what we bound it to, and Since when; none while it moves.
	Drift []string
	Since time.Time
	// LostCPUs says that CPUs which it was bound to went offline: no one changed
	// it on purpose, and binding it again places it on other CPUs.
	LostCPUs bool
	// Repaired is what came of binding it again last.
	Repaired Tried
}

// Tried is what came of an action. The zero Tried: nobody tried yet.
type Tried struct {
	At     time.Time
	Failed string // why it failed; empty: it was done
	// NotBegun: it failed before anything was changed, and may do better another time.
	NotBegun bool
}

// Done reports whether it was done.
func (t Tried) Done() bool { return !t.At.IsZero() && t.Failed == "" }

// DegradedFor is how long a guest must have drifted before it is bound again:
// who changes several things needs a moment. Insistence is within which time
// after a repair a new drift counts as somebody's will. Again is how long after
// numad could not be told, balancing not be given back, or a guest not be bound
// again, or a change not even be begun, it is tried anew.
const (
	DegradedFor = 10 * time.Second
	Insistence  = time.Hour
	Again       = 5 * time.Minute
)

// Answer tells who else moves pages here, and what to do about it.
func Answer(f Facts) (seen []status.Competitor, do []plan.Remedy) {
	for _, look := range []func(Facts) (*status.Competitor, []plan.Remedy){kernelBalancing, numad, ksm} {
		competitor, actions := look(f)
		if competitor != nil {
			seen = append(seen, *competitor)
		}
		if f.Mode == policy.ModeAuto {
			do = append(do, actions...)
		}
	}
	do = append(do, giveBack(f)...)
	for _, g := range f.Guests {
		if competitor, action := changed(f, g); competitor != nil {
			seen = append(seen, *competitor)
			if action != nil {
				do = append(do, *action)
			}
		}
	}
	return seen, do
}

// ours lists the guests that may be moved, by name.
func (f Facts) ours() []string {
	var names []string
	for _, g := range f.Guests {
		if g.Mode == policy.ModeAuto {
			names = append(names, g.Name)
		}
	}
	return names
}

// again says of what could not be begun that it is due once more, and when.
func (t Tried) again(now time.Time) (due bool, says string) {
	if !t.NotBegun {
		return false, ""
	}
	return now.Sub(t.At) >= Again, fmt.Sprintf("; it is tried again every %v", Again)
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
