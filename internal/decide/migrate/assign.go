package migrate

import (
	"cmp"
	"errors"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// wanted is a VM that needs a host other than its own.
type wanted struct {
	vm      string
	request schedule.Request
	at      *schedule.Decision // nil: none found
	why     string
	never   bool // proven: no host takes it even if no other VM comes
}

const (
	// retries is how often the VMs that did not fit come first in another try.
	retries = 8
	// mostSteps is the number of decisions that the search of all choices may take.
	mostSteps = 3000
	// mostNodes is the number of nodes of a host up to which all choices are searched.
	mostNodes = 4
)

// assign finds a host for each VM such that all fit together. It adds claims, which it removes
// again. proven says that no assignment exists if some have none.
func assign(f *schedule.Fleet, all []*wanted) (proven bool) {
	slices.SortStableFunc(all, func(a, b *wanted) int { return compareSize(&b.request.Spec, &a.request.Spec) })
	missing := greedy(f, all)
	if missing == 0 {
		return true
	}
	for _, w := range all {
		w.alone(f)
		proven = proven || w.never
	}
	best := decisions(all)
	order := slices.Clone(all)
	for range retries {
		slices.SortStableFunc(order, func(a, b *wanted) int { return cmp.Compare(placedAsInt(a), placedAsInt(b)) })
		if n := greedy(f, order); n < missing {
			missing, best = n, decisions(all)
		}
		if missing == 0 {
			return true
		}
	}
	if !proven {
		s := &search{fleet: f, all: all, steps: mostSteps, exact: true}
		if s.from(0) {
			return true
		}
		proven = s.exact && s.steps > 0
	}
	for i, w := range all {
		w.at = best[i]
	}
	return proven
}

// compareSize orders specs by what is hard to place: exclusive CPUs, vCPUs, memory.
func compareSize(a, b *guest.Spec) int {
	exclusive := func(s *guest.Spec) int {
		if s.CPU.Binding == guest.CPUExclusive {
			return s.VCPUs
		}
		return 0
	}
	return cmp.Or(cmp.Compare(exclusive(a), exclusive(b)), cmp.Compare(a.VCPUs, b.VCPUs),
		cmp.Compare(a.Memory, b.Memory))
}

func placedAsInt(w *wanted) int {
	if w.at == nil {
		return 0
	}
	return 1
}

func decisions(all []*wanted) []*schedule.Decision {
	out := make([]*schedule.Decision, len(all))
	for i, w := range all {
		out[i] = w.at
	}
	return out
}

// greedy decides on one VM after the other, and returns how many have no host.
func greedy(f *schedule.Fleet, all []*wanted) (missing int) {
	for _, w := range all {
		d, err := f.Decide(w.request)
		if w.at = d; err != nil {
			w.why = err.Error()
			missing++
			continue
		}
		_ = f.Add(d) // the host is in the fleet: it was chosen
	}
	for _, w := range all {
		if w.at != nil {
			_ = f.Remove(w.at.Host, w.vm)
		}
	}
	return missing
}

// alone finds out whether a VM fits if no other one comes.
func (w *wanted) alone(f *schedule.Fleet) {
	_, err := f.Decide(w.request)
	var none *schedule.NoHostError
	if errors.As(err, &none) && !none.Unproven {
		w.never, w.why = true, err.Error()
	}
}

// search tries all hosts and nodes for each VM.
type search struct {
	fleet *schedule.Fleet
	all   []*wanted
	steps int
	exact bool // no choice was left out
}

// from finds hosts for the VMs from index i on; false: there are none, or the steps are used up.
func (s *search) from(i int) bool {
	if i == len(s.all) {
		return true
	}
	w := s.all[i]
	if !equalParts(&w.request.Spec) {
		s.exact = false
	}
	for _, name := range s.fleet.Names() {
		h, _ := s.fleet.Host(name)
		if h.Cordoned || h.Unreachable || name == w.request.Without {
			continue
		}
		for _, nodes := range s.subsets(&h.Inventory.Topology, &w.request.Spec) {
			if s.steps--; s.steps <= 0 {
				return false
			}
			r := w.request
			r.Host = name
			if !r.Spec.Limits.Nodes.IsEmpty() {
				nodes = nodes.Intersect(r.Spec.Limits.Nodes)
			}
			if r.Spec.Limits.Nodes = nodes; nodes.IsEmpty() {
				continue
			}
			d, err := s.fleet.Decide(r)
			if err != nil {
				continue
			}
			d.Spec = w.request.Spec
			w.at = d
			_ = s.fleet.Add(d)
			found := s.from(i + 1)
			_ = s.fleet.Remove(name, w.vm)
			if found {
				return true
			}
		}
	}
	w.at = nil
	return false
}

// equalParts reports whether every way to put a VM on a set of nodes takes the same of each.
func equalParts(s *guest.Spec) bool {
	if s.Topology.Mode == guest.TopologyCells {
		n := max(1, s.Topology.Count)
		return len(s.Topology.Cells) == 0 && s.VCPUs%n == 0 && s.Memory%topology.Bytes(n) == 0
	}
	return s.Limits.MaxNodes == 1
}

// subsets returns the sets of a host's nodes, single nodes first. A host of many nodes has only
// one: all.
func (s *search) subsets(t *topology.Topology, spec *guest.Spec) []topology.NodeSet {
	var ids []topology.NodeID
	for i := range t.Nodes {
		if !t.Nodes[i].CPUs.IsEmpty() {
			ids = append(ids, t.Nodes[i].ID)
		}
	}
	if len(ids) > mostNodes {
		s.exact = false
		return []topology.NodeSet{topology.SetOf(ids...)}
	}
	least, most := 1, len(ids)
	if spec.Topology.Mode == guest.TopologyCells {
		least, most = spec.Topology.Count, spec.Topology.Count
	} else if spec.Limits.MaxNodes > 0 {
		most = spec.Limits.MaxNodes
	}
	var out []topology.NodeSet
	for mask := 1; mask < 1<<len(ids); mask++ {
		var set topology.NodeSet
		for i, id := range ids {
			if mask>>i&1 == 1 {
				set = set.With(id)
			}
		}
		if set.Len() >= least && set.Len() <= most {
			out = append(out, set)
		}
	}
	slices.SortStableFunc(out, func(a, b topology.NodeSet) int { return cmp.Compare(a.Len(), b.Len()) })
	return out
}
