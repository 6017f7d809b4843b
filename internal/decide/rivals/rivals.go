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
	// Seen is when Kernel was read.
	Seen time.Time
	// Tried is what came of changing settings of the host; a kind that is not in it was not tried.
	Tried map[Kind]Tried
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

// Guest is a running guest as rivals see it.
type Guest struct {
	Name string
	PID  int
	Mode policy.Mode
	// Told is what came of telling numad to leave it alone.
	Told Tried
	// Drift is how it differs from what we bound it to, and Since when; none while it moves.
	Drift []string
	Since time.Time
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

// Patience is how long a guest must have drifted before it is bound again:
// who changes several things needs a moment. Insistence is within which time
// after a repair a new drift counts as somebody's will. Again is how long after
// numad could not be told, balancing not be given back, or a guest not be bound
// again, or a change not even be begun, it is tried anew.
const (
	Patience   = 10 * time.Second
	Insistence = time.Hour
	Again      = 5 * time.Minute
)

// Kind says what an action does.
type Kind string

// Kinds of actions.
const (
	StopBalancing Kind = "stop-kernel-balancing" // Value into kernel.numa_balancing
	KSMWithin     Kind = "ksm-within-nodes"      // unmerge, then merge within nodes only
	GiveBack      Kind = "give-balancing-back"   // Value into kernel.numa_balancing, as it was
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
	do = append(do, giveBack(f)...)
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

// again says of what could not be begun that it is due once more, and when.
func (t Tried) again(now time.Time) (due bool, says string) {
	if !t.NotBegun {
		return false, ""
	}
	return now.Sub(t.At) >= Again, fmt.Sprintf("; it is tried again every %v", Again)
}

// Off is a value of kernel.numa_balancing without the balancing of nodes;
// memory tiering stays as it is.
func Off(value string) string {
	mode, err := strconv.Atoi(value)
	if err != nil {
		return value
	}
	return strconv.Itoa(mode &^ 1)
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
	t := f.Tried[StopBalancing]
	stop := []Action{{Kind: StopBalancing, Value: Off(f.Kernel.NUMABalancing), Why: "one owner of page moves: " + r.What}}
	switch {
	case t.At.IsZero():
		r.Answer = "being switched off while the daemon runs (policy movers.kernel_balancing)"
		return r, stop
	case !t.Done():
		due, again := t.again(f.Now)
		r.Answer = "left on: it could not be switched off: " + t.Failed + again
		if due {
			return r, stop
		}
	case f.Seen.After(t.At):
		r.Answer = fmt.Sprintf("left on: it was switched off at %s already, and on again since", clock(t.At))
	default:
		r.Answer = "switched off while the daemon runs (policy movers.kernel_balancing)"
	}
	return r, nil
}

// giveBack has kernel balancing switched on again where the policy no longer
// wants it off, whatever the mode is now.
func giveBack(f Facts) []Action {
	if f.Former == "" || f.Movers.KernelBalancing == policy.AnswerOff && f.Mode == policy.ModeAuto {
		return nil
	}
	if t := f.Tried[GiveBack]; t.Failed != "" && f.Now.Sub(t.At) < Again {
		return nil
	}
	return []Action{{Kind: GiveBack, Value: f.Former, Why: "the policy no longer wants it off"}}
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func numad(f Facts) (*status.Rival, []Action) {
	if !f.Kernel.NumadRunning {
		return nil, nil
	}
	r := &status.Rival{Name: "numad", What: "runs, and moves processes between nodes"}
	if f.Movers.Numad != policy.AnswerExclude || f.Mode != policy.ModeAuto || len(f.ours()) == 0 {
		r.Answer = "left to it"
		return r, nil
	}
	var told, telling, deaf, answers []string
	var why string
	var do []Action
	for _, g := range f.Guests {
		if g.Mode != policy.ModeAuto {
			continue
		}
		switch {
		case g.Told.Done():
			told = append(told, g.Name)
			continue
		case g.Told.At.IsZero():
			telling = append(telling, g.Name)
		default:
			deaf, why = append(deaf, g.Name), g.Told.Failed
		}
		if g.Told.At.IsZero() || f.Now.Sub(g.Told.At) >= Again {
			do = append(do, Action{Kind: Exclude, Guest: g.Name, PID: g.PID, Why: "numad runs, and balancing may move this guest"})
		}
	}
	for _, part := range []struct {
		words  string
		guests []string
	}{{"told to leave alone ", told}, {"being told to leave alone ", telling}, {"could not be told to leave alone ", deaf}} {
		if len(part.guests) > 0 {
			answers = append(answers, part.words+strings.Join(part.guests, ", "))
		}
	}
	r.Answer = strings.Join(answers, "; ")
	if why != "" {
		r.Answer += fmt.Sprintf(" (%s); it is tried again every %v", why, Again)
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
	t := f.Tried[KSMWithin]
	unmerge := []Action{{Kind: KSMWithin, Why: r.What}}
	switch {
	case t.At.IsZero():
		r.Answer = "being unmerged, to merge within nodes only (policy movers.ksm)"
		return r, unmerge
	case !t.Done():
		due, again := t.again(f.Now)
		r.Answer = "left so: it could not be unmerged, to merge within nodes only: " + t.Failed + again
		if due {
			return r, unmerge
		}
	case f.Seen.After(t.At):
		r.Answer = fmt.Sprintf("left so: it was set to merge within nodes only at %s already, and to merge across them since", clock(t.At))
	default:
		r.Answer = "unmerged, and merging within nodes only (policy movers.ksm)"
	}
	return r, nil
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
	case g.Repaired.Done() && f.Now.Sub(g.Repaired.At) < Insistence:
		r.Answer = fmt.Sprintf("left so: it was bound again at %s already, and changed again since; 'numavisor bind %s' settles it", clock(g.Repaired.At), g.Name)
	case g.Repaired.Failed != "" && f.Now.Sub(g.Repaired.At) < Again:
		r.Answer = fmt.Sprintf("left so for now: %s; it is tried again every %v", g.Repaired.Failed, Again)
	default:
		r.Answer = "bound again"
		if f.Now.Sub(g.Since) >= Patience {
			return r, &Action{Kind: Repair, Guest: g.Name, PID: g.PID, Why: r.What}
		}
	}
	return r, nil
}
