package schedule

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// reason is why a host is not a candidate.
type reason string

const (
	cordoned    reason = "cordoned"
	unreachable reason = "unreachable"
	otherType   reason = "it cannot make machines of this type"
	ofGroup     reason = "excluded by the rules of the VM's group"
	fewCPUs     reason = "too few free vCPUs"
	fewAlone    reason = "too few CPUs for exclusive vCPUs"
	little      reason = "too little free memory"
	fewPages    reason = "too little free memory in pages of the size"
	noDivided   reason = "enough in sum, but not on one node for each cell"
)

var reasons = []reason{cordoned, unreachable, otherType, ofGroup, fewCPUs, fewAlone, little, fewPages, noDivided}

// Excluded is a number of hosts that were not candidates for one reason.
type Excluded struct {
	Reason reason `json:"reason"`
	Hosts  int    `json:"hosts"`
}

// rule is what a VM's group means for each host.
type rule struct {
	fleet.Affinity
	others []member // of the group
	racks  map[string]int
	hosts  map[int]bool
	only   int // the index of the only host allowed; -1: all are
	not    []int
	// machine is the type of the VM's machine.
	machine string
}

// allows reports whether the request allows a host.
func (r *rule) allows(i int) bool {
	return (r.only < 0 || i == r.only) && !slices.Contains(r.not, i)
}

// excluded returns the hosts that the request does not allow, each once.
func (r *rule) excluded() []int {
	slices.Sort(r.not)
	return slices.Compact(r.not)
}

// without returns the members of a group that count: not the VM itself, which is one where it runs.
func without(members []member, ignored func(member) bool) []member {
	if !slices.ContainsFunc(members, ignored) {
		return members
	}
	return slices.DeleteFunc(slices.Clone(members), ignored)
}

// rule prepares the rules of a VM's group. In a group without members, all hosts are allowed,
// or the only one that the request names.
func (f *Fleet) rule(q *Request) (*rule, error) {
	a := q.Affinity
	r := &rule{Affinity: a, others: f.groups[a.Group], racks: map[string]int{}, hosts: map[int]bool{}, only: -1,
		machine: machineOf(q.Machine)}
	if q.Host != "" {
		i, known := f.byName[q.Host]
		if !known {
			return nil, fmt.Errorf("host %s is not in the fleet", q.Host)
		}
		r.only = i
	}
	for _, name := range q.Not {
		if i, known := f.byName[name]; known {
			r.not = append(r.not, i)
		}
	}
	if a.Group == "" {
		r.others = nil
	}
	gone, known := f.byName[q.Without]
	if known {
		r.not = append(r.not, gone)
	}
	r.others = without(r.others, func(m member) bool { return m.vm == q.Spec.Name || known && m.host == gone })
	for _, m := range r.others {
		r.racks[f.rack(m.host)]++
		r.hosts[m.host] = true
	}
	return r, nil
}

// rack returns the rack of a host. A host without a rack is one of its own.
func (f *Fleet) rack(i int) string { return f.hosts[i].rack() }

func (h *host) rack() string {
	if h.Rack == "" {
		return "\x00" + h.Name
	}
	return h.Rack
}

// hasOthers reports whether the VM's group has members.
func (r *rule) hasOthers() bool { return len(r.others) > 0 }

// excludes returns why a host is not a candidate; "" if it is.
func (r *rule) excludes(i int, h *host) reason {
	if closed := h.closed(); closed != "" {
		return closed
	}
	if !slices.Contains(h.makes, r.machine) {
		return otherType
	}
	if r.hasOthers() {
		inRack, onHost := r.racks[h.rack()] > 0, r.hosts[i]
		if r.Racks == fleet.Same && !inRack || r.Racks == fleet.Differ && inRack ||
			(r.Hosts == fleet.Same || r.Nodes == fleet.Same) && !onHost || r.Hosts == fleet.Differ && onHost {
			return ofGroup
		}
	}
	return ""
}

// sameRack returns the share of the group's VMs that are in a host's rack, as far as
// the group is to be spread.
func (r *rule) sameRack(h *host) float64 {
	if len(r.others) == 0 || r.Racks == fleet.Same || r.Hosts == fleet.Same || r.Nodes == fleet.Same {
		return 0
	}
	return float64(r.racks[h.rack()]) / float64(len(r.others))
}

// limitNodes restricts a spec to the nodes of host i that the group's rule allows.
func (r *rule) limitNodes(s *guest.Spec, i int, t *topology.Topology) error {
	if r.Nodes == fleet.AnyWhere {
		return nil
	}
	var used topology.NodeSet
	for _, m := range r.others {
		if m.host == i {
			used = used.Union(m.nodes)
		}
	}
	allowed := used
	if r.Nodes == fleet.Differ {
		allowed = withCPUs(t).Minus(used)
	} else if used.IsEmpty() {
		return nil // the first VM of the group
	}
	if !s.Limits.Nodes.IsEmpty() {
		allowed = allowed.Intersect(s.Limits.Nodes)
	}
	if allowed.IsEmpty() {
		return fmt.Errorf("the rule 'nodes: %s' of group %s leaves no node", r.Nodes, r.Group)
	}
	s.Limits.Nodes = allowed
	return nil
}

// withCPUs returns the nodes with CPUs. A limit that names another node would allow its use.
func withCPUs(t *topology.Topology) topology.NodeSet {
	var ids []topology.NodeID
	for i := range t.Nodes {
		if !t.Nodes[i].CPUs.IsEmpty() {
			ids = append(ids, t.Nodes[i].ID)
		}
	}
	return topology.SetOf(ids...)
}

// lacks returns what the nodes of a host lack in sum for a VM; "" if they have enough.
func (f *Fleet) lacks(h *host, s shape) reason {
	vcpus, alone, cpus := 0.0, 0, 0
	for _, rooms := range [][]room{h.rooms, h.others} {
		for i := range rooms {
			r := &rooms[i]
			vcpus, alone, cpus = vcpus+max(0, r.vcpus), alone+r.alone, cpus+r.cpus
		}
	}
	switch memory := h.memory(s.page); {
	case s.exclusive && alone < s.vcpus:
		return fewAlone
	case !s.exclusive && vcpus < float64(s.vcpus), cpus < s.vcpus:
		return fewCPUs
	case memory < s.memory && s.page == 0:
		return little
	case memory < s.memory:
		return fewPages
	case s.cells > 0 && s.cells > len(h.cores): // one of each node
		return noDivided
	}
	return ""
}

// memory returns the free memory of all nodes in pages of a size.
func (h *host) memory(page topology.Bytes) (sum topology.Bytes) {
	for _, rooms := range [][]room{h.rooms, h.others} {
		for i := range rooms {
			sum += rooms[i].memory(page)
		}
	}
	return sum
}
