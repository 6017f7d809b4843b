package place

import (
	"cmp"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// core is a physical core with CPUs that can become exclusive.
type core struct {
	l3   topology.L3ID
	free []topology.CPUID // CPUs that this guest may have, ascending
	all  topology.CPUSet  // siblings
	full bool             // no guest holds a sibling
}

// addFree records a CPU that could be dedicated to the guest. Callers must add CPUs
// in ascending order.
func (n *nodeState) addFree(c *topology.CPU) {
	if !n.usable.Contains(c.ID) || n.room.Pinned.Contains(c.ID) {
		return
	}
	first, _ := c.Siblings.First()
	for i := len(n.free) - 1; i >= 0; i-- {
		if n.free[i].all.Contains(first) {
			n.free[i].free = append(n.free[i].free, c.ID)
			return
		}
	}
	n.free = append(n.free, core{
		l3: c.L3, free: []topology.CPUID{c.ID}, all: c.Siblings,
		full: c.Siblings.SubsetOf(n.room.Shared) && !c.Siblings.Intersects(n.room.Pinned),
	})
}

// freeCPUs counts the CPUs that could become exclusive.
func (n *nodeState) freeCPUs() int {
	sum := 0
	for i := range n.free {
		sum += len(n.free[i].free)
	}
	return sum
}

// picked are exclusive CPUs chosen on one node.
type picked struct {
	vcpus   []topology.CPUID // in the order of the cell's vCPUs, siblings together
	helpers []topology.CPUID
	idle    topology.CPUSet // siblings reserved to stay idle
	caches  int             // last-level caches that vcpus span
}

// all returns all CPUs that become dedicated to the cell.
func (k *picked) all() topology.CPUSet {
	return topology.SetOf(k.vcpus...).With(k.helpers...).Union(k.idle)
}

// count is len(all), without making the set.
func (k *picked) count() int { return len(k.vcpus) + len(k.helpers) + k.idle.Len() }

// bunch is the free cores of one last-level cache.
type bunch struct {
	cores []core
	room  int // vCPUs it can take
	whole int // cores of which no guest has a CPU, where each vCPU gets a core
}

// pick chooses vcpus CPUs for a cell, in as few last-level caches as possible, and
// then the helper CPUs; ok is false where the node has too few. The last of the
// required caches is the one with the least room left over, of those with a core for each vCPU that shares
// none with another guest, if there are any.
func (n *nodeState) pick(vcpus, helpers int, smt guest.SMTPolicy) (k picked, ok bool) {
	if vcpus > 0 {
		spare := smt == guest.SMTAny && vcpus <= len(n.free) // a core for each vCPU
		for _, b := range choose(bunches(n.free, smt, spare), vcpus) {
			take(&k, b.cores, min(vcpus-len(k.vcpus), b.room), smt, spare)
			k.caches++
		}
		if len(k.vcpus) < vcpus {
			return k, false
		}
	}
	if helpers == 0 {
		return k, true
	}
	taken := k.all()
	for i := range n.free {
		for _, c := range n.free[i].free {
			if len(k.helpers) < helpers && !taken.Contains(c) {
				k.helpers = append(k.helpers, c)
			}
		}
	}
	return k, len(k.helpers) == helpers
}

// bunches groups the cores that the SMT policy accepts by cache, roomiest first.
func bunches(free []core, smt guest.SMTPolicy, spare bool) []bunch {
	var all []bunch
	var ids []topology.L3ID
	for _, c := range free {
		room := len(c.free)
		switch {
		case smt == guest.SMTIsolate && !c.full,
			smt == guest.SMTRequire && (!c.full || len(c.free) < c.all.Len()):
			continue
		case smt == guest.SMTIsolate || spare:
			room = 1
		}
		i := slices.Index(ids, c.l3)
		if i < 0 {
			i = len(ids)
			ids, all = append(ids, c.l3), append(all, bunch{})
		}
		all[i].cores = append(all[i].cores, c)
		all[i].room += room
		if spare && c.full {
			all[i].whole++
		}
	}
	slices.SortStableFunc(all, func(a, b bunch) int { return cmp.Compare(b.room, a.room) })
	return all
}

// choose returns the fewest bunches with room for vcpus: the roomiest ones, and as
// the last one the tightest that still has room for the remaining vCPUs, at best on whole cores.
func choose(all []bunch, vcpus int) []bunch {
	var chosen []bunch
	for i := range all {
		if all[i].room < vcpus {
			chosen = append(chosen, all[i])
			vcpus -= all[i].room
			continue
		}
		last := i
		for j := i + 1; j < len(all) && all[j].room >= vcpus; j++ {
			isolates, did := all[j].whole >= vcpus, all[last].whole >= vcpus
			if isolates && !did || isolates == did && all[j].room < all[last].room {
				last = j
			}
		}
		return append(chosen, all[last])
	}
	return chosen
}

// take picks vcpus CPUs from cores. With spare cores each vCPU gets its own core,
// untouched ones first; otherwise it fills cores, the last with the best fit.
func take(k *picked, cores []core, vcpus int, smt guest.SMTPolicy, spare bool) {
	cores = slices.Clone(cores)
	slices.SortStableFunc(cores, func(a, b core) int {
		if a.full != b.full && spare {
			if a.full {
				return -1
			}
			return 1
		}
		return cmp.Compare(len(b.free), len(a.free))
	})
	single := spare || smt == guest.SMTIsolate
	for len(cores) > 0 && vcpus > 0 {
		at, count := 0, 1
		if !single {
			for i := 1; i < len(cores) && len(cores[i].free) >= vcpus; i++ {
				if len(cores[i].free) < len(cores[at].free) {
					at = i
				}
			}
			count = min(vcpus, len(cores[at].free))
		}
		c := cores[at]
		cores = slices.Delete(cores, at, at+1)
		k.vcpus = append(k.vcpus, c.free[:count]...)
		vcpus -= count
		if smt == guest.SMTIsolate || smt == guest.SMTRequire {
			k.idle = k.idle.Union(c.all.Minus(topology.SetOf(c.free[:count]...)))
		}
	}
}
