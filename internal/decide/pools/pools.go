// Package pools decides how the CPU pools of a host change: from a request to the layout that it asks for,
// and from one layout to another in steps that the hypervisor accepts one after the other.
package pools

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrRefused means that the layout is impossible, or that no order of steps leads to it. The error says why.
var ErrRefused = errors.New("the CPU pools cannot be changed so")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// Of returns the layout of a host.
func Of(h *inventory.Host) plan.CPUPools {
	l := plan.CPUPools{Guests: map[string]string{}}
	for _, p := range h.Pools {
		l.Pools = append(l.Pools, plan.CPUPool{Name: p.Name, Scheduler: p.Scheduler, CPUs: p.CPUs})
	}
	for i := range h.Guests {
		if h.Guests[i].Pool != "" {
			l.Guests[h.Guests[i].Name] = h.Guests[i].Pool
		}
	}
	return l
}

// Split makes a pool for each node that has CPUs, with the scheduler of the only pool, as xl cpupool-numa-split
// does. The only pool becomes that of the first node, and guests stay in it.
func Split(l plan.CPUPools, t *topology.Topology) (plan.CPUPools, error) {
	if len(l.Pools) != 1 {
		return l, refuse("the host has %d pools; only the CPUs of a single one can be split by node", len(l.Pools))
	}
	whole, to := l.Pools[0], l.Clone()
	to.Pools = nil
	for i := range t.Nodes {
		cpus := t.Nodes[i].CPUs.Intersect(whole.CPUs)
		if !cpus.IsEmpty() {
			to.Pools = append(to.Pools, plan.CPUPool{Name: fmt.Sprintf("Pool-node%d", t.Nodes[i].ID),
				Scheduler: whole.Scheduler, CPUs: cpus})
		}
	}
	for name := range to.Guests {
		to.Guests[name] = to.Pools[0].Name
	}
	return to, nil
}

// Create adds a pool with CPUs that other pools give up. An empty scheduler is that of the first pool.
func Create(l plan.CPUPools, name, scheduler string, cpus topology.CPUSet) (plan.CPUPools, error) {
	if l.Find(name) >= 0 {
		return l, refuse("pool %q exists already", name)
	}
	if cpus.IsEmpty() {
		return l, refuse("pool %q would have no CPUs", name)
	}
	to := without(l, cpus)
	if scheduler == "" {
		scheduler = to.Pools[0].Scheduler
	}
	to.Pools = append(to.Pools, plan.CPUPool{Name: name, Scheduler: scheduler, CPUs: cpus})
	return to, nil
}

// without takes CPUs from all pools.
func without(l plan.CPUPools, cpus topology.CPUSet) plan.CPUPools {
	to := l.Clone()
	for i := range to.Pools {
		to.Pools[i].CPUs = to.Pools[i].CPUs.Minus(cpus)
	}
	return to
}

// known returns the position of a pool that must exist.
func known(l *plan.CPUPools, name string) (int, error) {
	if i := l.Find(name); i >= 0 {
		return i, nil
	}
	names := make([]string, len(l.Pools))
	for i := range l.Pools {
		names[i] = l.Pools[i].Name
	}
	return 0, refuse("there is no pool %q; the host has %s", name, strings.Join(names, ", "))
}

// Delete removes a pool without guests; the first pool takes its CPUs.
func Delete(l plan.CPUPools, name string) (plan.CPUPools, error) {
	i, err := known(&l, name)
	if err != nil {
		return l, err
	}
	if i == 0 {
		return l, refuse("pool %q is the first one, in which dom0 runs", name)
	}
	to := l.Clone()
	to.Pools[0].CPUs = to.Pools[0].CPUs.Union(to.Pools[i].CPUs)
	to.Pools = slices.Delete(to.Pools, i, i+1)
	return to, nil
}

// Assign gives CPUs to a pool that other pools give up.
func Assign(l plan.CPUPools, name string, cpus topology.CPUSet) (plan.CPUPools, error) {
	i, err := known(&l, name)
	if err != nil {
		return l, err
	}
	to := without(l, cpus)
	to.Pools[i].CPUs = l.Pools[i].CPUs.Union(cpus)
	return to, nil
}

// Move puts a guest into a pool.
func Move(l plan.CPUPools, guest, pool string) (plan.CPUPools, error) {
	if _, err := known(&l, pool); err != nil {
		return l, err
	}
	if l.Guests[guest] == "" {
		return l, refuse("there is no running VM %q", guest)
	}
	to := l.Clone()
	to.Guests[guest] = pool
	return to, nil
}

// validName is what xl takes for a name in every command: one of digits is a pool's number.
var validName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)

// schedulers are those that Xen can give to a pool.
var schedulers = []string{"credit", "credit2", "null", "rtds", "arinc653"}

// Check refuses a layout that the host cannot have.
func Check(l *plan.CPUPools, t *topology.Topology) error {
	if len(l.Pools) == 0 {
		return refuse("this host has no CPU pools; only Xen has them")
	}
	var taken topology.CPUSet
	names := map[string]bool{}
	for _, p := range l.Pools {
		switch {
		case names[p.Name]:
			return refuse("two pools have the name %q", p.Name)
		case p.CPUs.IsEmpty():
			return refuse("pool %q would have no CPUs", p.Name)
		case !p.CPUs.SubsetOf(t.CPUSet()):
			return refuse("the host has no CPUs %s", p.CPUs.Minus(t.CPUSet()))
		case p.CPUs.Intersects(taken):
			return refuse("CPUs %s would be in two pools", p.CPUs.Intersect(taken))
		case !slices.Contains(schedulers, p.Scheduler):
			return refuse("scheduler %q is unknown; Xen has %s", p.Scheduler, strings.Join(schedulers, ", "))
		}
		names[p.Name], taken = true, taken.Union(p.CPUs)
	}
	for guest, pool := range l.Guests {
		if !names[pool] {
			return refuse("VM %s is in pool %q; move it to another pool first", guest, pool)
		}
	}
	return nil
}

// Steps returns the steps from one layout to another, in an order in which each pool has a CPU at any time and
// no pool is deleted with guests in it. Guests that only one layout has are ignored. A first pool
// with a name that the other layout does not have is renamed.
func Steps(from, to plan.CPUPools) ([]plan.PoolStep, error) {
	if len(from.Pools) == 0 || len(to.Pools) == 0 {
		return nil, refuse("this host has no CPU pools; only Xen has them")
	}
	now := from.Clone()
	var steps []plan.PoolStep
	if old, name := now.Pools[0].Name, to.Pools[0].Name; old != name {
		if to.Find(old) >= 0 || now.Find(name) >= 0 {
			return nil, refuse("pool %q cannot take the place of %q as the first one", name, old)
		}
		steps = append(steps, plan.PoolStep{Kind: plan.RenamePool, Pool: old, To: name})
		now.Pools[0].Name = name
		for guest, pool := range now.Guests {
			if pool == old {
				now.Guests[guest] = name
			}
		}
	}
	steps = append(steps, moves(&now, &to)...)
	for _, p := range slices.Clone(now.Pools) {
		i := to.Find(p.Name)
		if i >= 0 && to.Pools[i].Scheduler != p.Scheduler {
			return nil, refuse("the scheduler of pool %q is %s and cannot change; delete the pool and create it again",
				p.Name, p.Scheduler)
		}
		if i < 0 {
			for _, guest := range slices.Sorted(maps.Keys(now.Guests)) {
				if now.Guests[guest] == p.Name {
					return nil, refuse("VM %s is in pool %q; move it to another pool first", guest, p.Name)
				}
			}
			steps = append(steps, plan.PoolStep{Kind: plan.DeletePool, Pool: p.Name})
			now.Pools = slices.Delete(now.Pools, now.Find(p.Name), now.Find(p.Name)+1)
		}
	}
	more, err := shifts(&now, &to)
	if err != nil {
		return nil, err
	}
	return append(append(steps, more...), moves(&now, &to)...), nil
}

// moves puts guests into their pools where these exist now.
func moves(now, to *plan.CPUPools) (steps []plan.PoolStep) {
	for _, guest := range slices.Sorted(maps.Keys(now.Guests)) {
		if pool := to.Guests[guest]; pool != "" && pool != now.Guests[guest] && now.Find(pool) >= 0 {
			steps = append(steps, plan.PoolStep{Kind: plan.MoveToPool, Pool: pool, Guest: guest})
			now.Guests[guest] = pool
		}
	}
	return steps
}

// shifts brings the CPUs into their pools, and makes new ones.
func shifts(now, to *plan.CPUPools) (steps []plan.PoolStep, err error) {
	for i := range now.Pools {
		p := &now.Pools[i]
		gone := p.CPUs.Minus(to.Pools[to.Find(p.Name)].CPUs)
		if gone.IsEmpty() {
			continue
		}
		if p.CPUs = p.CPUs.Minus(gone); p.CPUs.IsEmpty() {
			return nil, refuse("pool %q would be without CPUs in between; assign it another CPU first", p.Name)
		}
		steps = append(steps, plan.PoolStep{Kind: plan.FreeCPUs, Pool: p.Name, CPUs: gone})
	}
	for _, p := range to.Pools {
		i := now.Find(p.Name)
		if i < 0 {
			steps = append(steps, plan.PoolStep{Kind: plan.CreatePool, Pool: p.Name, Scheduler: p.Scheduler,
				CPUs: p.CPUs})
			now.Pools = append(now.Pools, p)
		} else if more := p.CPUs.Minus(now.Pools[i].CPUs); !more.IsEmpty() {
			steps = append(steps, plan.PoolStep{Kind: plan.AddCPUs, Pool: p.Name, CPUs: more})
			now.Pools[i].CPUs = p.CPUs
		}
	}
	return steps, nil
}

// CheckNames refuses names of new pools that xl or its tables cannot hold.
func CheckNames(from, to *plan.CPUPools) error {
	for _, p := range to.Pools {
		if from.Find(p.Name) < 0 && !validName.MatchString(p.Name) {
			return refuse("a pool cannot have the name %q: allowed are letters, digits, '_', '.' and '-' after a "+
				"letter, 63 at most", p.Name)
		}
	}
	return nil
}
