// Package competitors decides how to answer other programs and operators that
// move pages on a host or change bindings of guests: the kernel's NUMA balancing,
// numad, KSM across nodes, and an operator who pins a managed guest by hand.
// Facts and policy go in; reports and actions come out. Every competitor is
// reported together with the answer. If an operator repeats a change that the
// daemon reverted, the daemon accepts it.
package competitors

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// Facts are the input that an answer depends on.
type Facts struct {
	Kernel inventory.Kernel
	// Seen is when Kernel was read.
	Seen time.Time
	// Tried is the last attempt to change a setting of the host, by kind.
	Tried map[plan.RemedyKind]Attempt
	// Former is kernel.numa_balancing before the daemon disabled it; empty: the
	// daemon has not changed it.
	Former string
	// Set is the value that the daemon gave it; empty: the one without balancing.
	Set string
	// Pulling: the daemon wants kernel balancing on, for memory that moves have left behind.
	Pulling bool
	// Moves are the pages that the kernel moved within Window, in bytes.
	Moves  inventory.KernelMoves
	Window time.Duration
	Guests []Guest
	Mode   policy.Mode // the host's
	Movers policy.Movers
	Now    time.Time
}

// Guest is a running guest and what competitors did to it.
type Guest struct {
	Name string
	PID  int
	Mode policy.Mode
	// NumadExcluded is the last attempt to exclude its process from numad.
	NumadExcluded Attempt
	// Drift lists the differences from its placement, and Since says since when it
	// has some; empty while the guest is being moved.
	Drift []string
	Since time.Time
	// LostCPUs says that CPUs to which it was bound went offline, or were dedicated to others. This is no
	// deliberate change, and a repair places the guest on other CPUs.
	LostCPUs bool
	// Repaired is the last attempt to bind it to its placement again.
	Repaired Attempt
}

// Attempt is the result of an action. The zero Attempt: there was none yet.
type Attempt struct {
	At     time.Time
	Failed string // why it failed; empty: it succeeded
	// NotBegun: it failed before it changed anything, so a retry is worthwhile.
	NotBegun bool
}

// Done reports whether the attempt succeeded.
func (t Attempt) Done() bool { return !t.At.IsZero() && t.Failed == "" }

const (
	// RepairAfter is how long a guest must have drifted before the daemon repairs
	// it, because an operator may change several things in turn.
	RepairAfter = 10 * time.Second
	// OneRepair is the time after a repair within which the daemon takes a further
	// change for deliberate and does not repair it.
	OneRepair = time.Hour
	// RetryAfter is the time between attempts of an action that failed or could not
	// begin.
	RetryAfter = 5 * time.Minute
)

// Answer returns who else moves pages on the host, and what to do about it.
func Answer(f Facts) (seen []status.Competitor, do []plan.Remedy) {
	for _, answer := range []func(Facts) (*status.Competitor, []plan.Remedy){kernelBalancing, numad, ksm} {
		competitor, actions := answer(f)
		if competitor != nil {
			seen = append(seen, *competitor)
		}
		if f.Mode == policy.ModeAuto {
			do = append(do, actions...)
		}
	}
	do = append(do, restoreBalancing(f)...)
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

// movable returns the names of the guests that the daemon may move.
func (f Facts) movable() []string {
	var names []string
	for _, g := range f.Guests {
		if g.Mode == policy.ModeAuto {
			names = append(names, g.Name)
		}
	}
	return names
}

// retry reports whether an attempt that could not begin is due again, and the
// text that says how often.
func (t Attempt) retry(now time.Time) (due bool, text string) {
	if !t.NotBegun {
		return false, ""
	}
	return now.Sub(t.At) >= RetryAfter, fmt.Sprintf("; the daemon retries every %v", RetryAfter)
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
