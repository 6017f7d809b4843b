package balance

import (
	"github.com/numavisor/numavisor/internal/decide/capacity"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// maxSets is the number of sets of a node's shared CPUs to which guests are confined that the model distinguishes. A
// guest confined to another one counts as if it might use all of them.
const maxSets = 8

// cpuSets are the sets of a node's shared CPUs to which guests are confined, with what these guests use.
type cpuSets struct {
	capacity.Sets
	rooms [maxSets]float64 // by set, as node.room
	setUsage
}

// setUsage is what guests use that are confined to a set, by set.
type setUsage struct{ cpu, runnable, bursts [maxSets]float64 }

// confinedPart is the share of a guest's vCPUs that is confined to the set of a share. vCPUs that may run on every
// node are not.
func (s *share) confinedPart() float64 {
	if s.set == 0 {
		return 0
	}
	return s.cpu - s.alone - s.roaming
}

// addConfined adds the confined part of a guest's share to the usage of its node (sign 1) or subtracts it (sign -1).
func (m *model) addConfined(g *subject, s *share, sign float64) {
	if s.set == 0 {
		return
	}
	part, in := sign*s.confinedPart(), &m.cpuSets[s.node]
	in.cpu[s.set-1] += part * g.demand
	in.runnable[s.set-1] += part * float64(g.spec.VCPUs)
	in.bursts[s.set-1] += part * g.demand * g.bursts
	m.usage[s.node].unmet = in.unmet()
}

// setOf returns the number, from 1, of a set of a node's shared CPUs; 0: it is empty, or one set too many.
func (m *model) setOf(i int, cpus topology.CPUSet) int8 {
	in := &m.cpuSets[i]
	if cpus.IsEmpty() || in.Len() == maxSets && in.Find(cpus) < 0 {
		return 0
	}
	at := in.Index(cpus)
	m.nodes[i].divided = true
	in.rooms[at] = float64(cpus.Len())
	if m.policy.Count == policy.CountCores {
		in.rooms[at] = float64(m.host.Topology.Cores(cpus))
	}
	return int8(at + 1)
}

// crowd is how full a set of CPUs is.
type crowd struct {
	use     float64 // demand for its CPUs over its CPUs
	demand  float64
	without float64 // vCPUs that have no CPU at most
	share   float64 // share of the demand that waits, there or in a set that contains this one
	own     float64 // the part of demand of guests confined to exactly this set
	bursts  float64 // CPUs of waiting of these that CPU use does not explain
}

// crowds returns how full each set is.
func (in *cpuSets) crowds() (all [maxSets]crowd) {
	var demands, runnable [maxSets]float64
	in.Demands(in.cpu[:], demands[:])
	in.Demands(in.runnable[:], runnable[:])
	for i := range in.Len() {
		c := crowd{use: demands[i] / in.Count(i), demand: demands[i], without: max(0, runnable[i]-in.rooms[i]),
			own: in.cpu[i], bursts: in.bursts[i]}
		if c.demand > 0 {
			c.share = min(overloaded(c.use), c.without/c.demand)
		}
		all[i] = c
	}
	for i := range in.Len() {
		for _, k := range in.Inner(i) {
			all[k].share = max(all[k].share, all[i].share)
		}
	}
	return all
}

// unmet returns how much of the demand of confined guests has no CPU.
func (in *cpuSets) unmet() (sum float64) {
	var demands [maxSets]float64
	in.Demands(in.cpu[:], demands[:])
	for i := range in.Len() {
		sum += in.Unmet(i, demands[:])
	}
	return sum
}

// wait returns how much more demand of confined guests waits than if they might use all shared CPUs, of which
// this share of the demand waits at this use.
func (in *cpuSets) wait(use, share float64) (sum float64) {
	for _, c := range in.crowds() {
		sum += c.own*max(0, c.share-share) + c.bursts*max(0, c.use-use)
	}
	return sum
}

// fullestSet returns the use of the fullest set of a node's CPUs in which more of the demand waits than at a use of
// MaxNodeCPU; 0: there is none.
func (m *model) fullestSet(i int) (use float64) {
	most := overloaded(m.policy.Balance.MaxNodeCPU + slack)
	for _, c := range m.cpuSets[i].crowds() {
		if c.share > most {
			use = max(use, c.use)
		}
	}
	return use
}
