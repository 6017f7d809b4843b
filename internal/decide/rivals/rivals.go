// Package rivals decides what to do about others who move pages on a host, or
// change how guests are bound: the kernel's NUMA balancing, numad, KSM across
// nodes, and whoever pins a guest of ours by hand. Facts and policy in; what
// is reported, and what is to be done, out. Nobody is fought silently: each
// rival is reported with our answer, and no change is made twice against one
// who insists.
package rivals

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Facts are what an answer depends on.
type Facts struct {
	Kernel inventory.Kernel
	// Moves is what the kernel moved within Window.
	Moves  inventory.KernelMoves
	Window time.Duration
	Guests []Guest
	Mode   policy.Mode // the host's
	Movers policy.Movers
	Now    time.Time
}

// Guest is a running guest as rivals see it.
type Guest struct {
	Name string
	PID  int
	Mode policy.Mode
	// Excluded says that numad was told to leave it alone.
	Excluded bool
	// Drift is how it differs from what we bound it to, and Since when; none while it moves.
	Drift []string
	Since time.Time
	// Repaired is when it was last bound again; zero: never.
	Repaired time.Time
}

// Patience is how long a guest must have drifted before it is bound again:
// who changes several things needs a moment. Insistence is within which time
// after a repair a new drift counts as somebody's will.
const (
	Patience   = 10 * time.Second
	Insistence = time.Hour
)

// Kind says what an action does.
type Kind string

// Kinds of actions.
const (
	StopBalancing Kind = "stop-kernel-balancing" // Value into kernel.numa_balancing
	KSMWithin     Kind = "ksm-within-nodes"      // unmerge, then merge within nodes only
	Exclude       Kind = "exclude-from-numad"    // numad -x PID
	Repair        Kind = "repair"                // bind the guest to its recorded placement
)

// Action is something to be done about a rival.
type Action struct {
	Kind  Kind
	Guest string
	PID   int
	Value string
	Why   string
}

// Answer tells who else moves pages here, and what to do about it.
func Answer(f Facts) (seen []status.Rival, do []Action) {
	for _, look := range []func(Facts) (*status.Rival, []Action){kernelBalancing, numad, ksm} {
		rival, actions := look(f)
		if rival != nil {
			seen = append(seen, *rival)
		}
		if f.Mode == policy.ModeAuto {
			do = append(do, actions...)
		}
	}
	for _, g := range f.Guests {
		if rival, action := changed(f, g); rival != nil {
			seen = append(seen, *rival)
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

func kernelBalancing(f Facts) (*status.Rival, []Action) {
	mode, err := strconv.Atoi(f.Kernel.NUMABalancing)
	if err != nil || mode&1 == 0 {
		return nil, nil
	}
	r := &status.Rival{Name: "kernel NUMA balancing", What: fmt.Sprintf("on (kernel.numa_balancing %d)", mode)}
	if f.Window > 0 && f.Moves.Balancing > 0 {
		r.What += fmt.Sprintf("; moves %v a second", topology.Bytes(float64(f.Moves.Balancing)/f.Window.Seconds()))
	}
	if f.Movers.KernelBalancing != policy.AnswerOff || len(f.ours()) == 0 || f.Mode != policy.ModeAuto {
		r.Answer = "left on: memory with an explicit policy it does not touch, other pages it brings to the vCPUs that use them"
		return r, nil
	}
	r.Answer = "switched off while the daemon runs (policy movers.kernel_balancing)"
	return r, []Action{{Kind: StopBalancing, Value: strconv.Itoa(mode &^ 1), Why: "one owner of page moves: " + r.What}}
}

func numad(f Facts) (*status.Rival, []Action) {
	if !f.Kernel.NumadRunning {
		return nil, nil
	}
	r := &status.Rival{Name: "numad", What: "runs, and moves processes between nodes"}
	if f.Movers.Numad != policy.AnswerExclude || f.Mode != policy.ModeAuto || len(f.ours()) == 0 {
		r.Answer = "left to it"
		return r, nil
	}
	r.Answer = "told to leave alone " + strings.Join(f.ours(), ", ")
	var do []Action
	for _, g := range f.Guests {
		if g.Mode == policy.ModeAuto && !g.Excluded {
			do = append(do, Action{Kind: Exclude, Guest: g.Name, PID: g.PID, Why: "numad runs, and balancing may move this guest"})
		}
	}
	return r, do
}

func ksm(f Facts) (*status.Rival, []Action) {
	k := f.Kernel
	if k.KSMRun != "1" || k.KSMAcrossNodes != "1" {
		return nil, nil
	}
	r := &status.Rival{Name: "KSM across nodes", What: fmt.Sprintf("merges pages of different nodes (merge_across_nodes 1, %d pages shared): they are local to one of their users at most", k.KSMPagesShared)}
	if f.Movers.KSM != policy.AnswerWithin || f.Mode != policy.ModeAuto {
		r.Answer = "left so: to change it, all pages must be unmerged, which takes memory (policy movers.ksm)"
		return r, nil
	}
	r.Answer = "unmerged, and merging within nodes only (policy movers.ksm)"
	return r, []Action{{Kind: KSMWithin, Why: r.What}}
}

// changed is about a guest of ours that lies otherwise than we bound it.
func changed(f Facts, g Guest) (*status.Rival, *Action) {
	if len(g.Drift) == 0 {
		return nil, nil
	}
	r := &status.Rival{Name: "changes to guest " + g.Name, What: strings.Join(g.Drift, "; ")}
	switch {
	case g.Mode != policy.ModeAuto:
		r.Answer = fmt.Sprintf("reported only: its mode is %s; 'numavisor bind %s' binds it again", g.Mode, g.Name)
	case f.Movers.Changes != policy.AnswerRepair:
		r.Answer = fmt.Sprintf("left so (policy movers.changes); 'numavisor bind %s' binds it again", g.Name)
	case !g.Repaired.IsZero() && f.Now.Sub(g.Repaired) < Insistence:
		r.Answer = fmt.Sprintf("left so: it was bound again at %s already, and changed again since; 'numavisor bind %s' settles it", g.Repaired.UTC().Format(time.RFC3339), g.Name)
	default:
		r.Answer = "bound again"
		if f.Now.Sub(g.Since) >= Patience {
			return r, &Action{Kind: Repair, Guest: g.Name, PID: g.PID, Why: r.What}
		}
	}
	return r, nil
}
