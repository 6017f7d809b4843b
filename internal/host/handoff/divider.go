package handoff

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/numavisor/numavisor/internal/decide/scale"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// divider binds vCPUs to the nodes of what they access, as decide/scale divides them. It needs no agent in the guest.
// The kernel has the truth: what an observation shows of a thread counts as its binding, and a division that a program
// before this one has made continues.
type divider struct {
	threads Threads
	inform  func(format string, args ...any) // a division has changed
	guests  map[string]*divided
}

type divided struct {
	pid       int
	placement *words.Placement
	tids      map[words.VCPUID]int
	state     scale.Dividing
	bound     map[words.VCPUID]topology.CPUSet
	released  map[words.VCPUID]bool // to be bound to all CPUs of their placement
}

// follow takes the observation of a guest.
func (d *divider) follow(g *inventory.Guest, t *topology.Topology) {
	if g.Placement.Divisible().IsEmpty() {
		delete(d.guests, g.Name)
		return
	}
	own := d.guests[g.Name]
	if own == nil || own.pid != g.PID || !reflect.DeepEqual(own.placement.VCPUs, g.Placement.VCPUs) {
		own = &divided{pid: g.PID, released: map[words.VCPUID]bool{},
			state: scale.Dividing{Now: scale.DivisionOf(g.Placement, t, g.Seen.Threads)}}
		d.guests[g.Name] = own
	}
	own.placement = g.Placement
	own.tids, own.bound = map[words.VCPUID]int{}, map[words.VCPUID]topology.CPUSet{}
	for _, thread := range g.Seen.Threads {
		if v := thread.VCPU; v != nil {
			own.tids[*v], own.bound[*v] = thread.TID, thread.Affinity
		}
	}
}

// leave forgets a guest that has stopped.
func (d *divider) leave(name string) { delete(d.guests, name) }

// sampled decides after a sample, and carries the divisions out. Nodes have room for a number of a guest's vCPUs.
func (d *divider) sampled(
	s *inventory.Sample, t *topology.Topology, room func(name string) map[topology.NodeID]int, now time.Time,
) error {
	accesses := map[string][]inventory.VCPUAccess{}
	for i := range s.Guests {
		accesses[s.Guests[i].Name] = s.Guests[i].VCPUAccesses
	}
	var errs []error
	for name, g := range d.guests {
		before := g.state.Now
		g.state = g.state.Next(g.placement, t, accesses[name], room(name), now)
		if !maps.Equal(before, g.state.Now) {
			d.say(name, g.state.Now)
		}
		g.release(before)
		if err := d.bind(g, t); err != nil {
			errs = append(errs, fmt.Errorf("VM %s: binding vCPUs to the nodes of what they access: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (d *divider) say(name string, division scale.Division) {
	if len(division) == 0 {
		d.inform("VM %s: its vCPUs run on all nodes of their cell", name)
		return
	}
	s := inventory.Scaled{Divided: division.ByNode()}
	d.inform("VM %s: by what they access, vCPUs %s", name, s.DividedText())
}

// release marks the vCPUs of an earlier division that are bound no more.
func (g *divided) release(before scale.Division) {
	for v := range before {
		if _, bound := g.state.Now[v]; !bound {
			g.released[v] = true
		}
	}
	for v := range g.state.Now {
		delete(g.released, v)
	}
}

// bind carries the division out. It changes no vCPU that it has not bound itself: an operator may have. A vCPU for
// which the kernel refuses is tried again after the next sample.
func (d *divider) bind(g *divided, t *topology.Topology) error {
	var errs []error
	for v, wanted := range g.state.Now.CPUs(g.placement, t) {
		_, bound := g.state.Now[v]
		tid, known := g.tids[v]
		if !known || !bound && !g.released[v] {
			continue
		}
		if !g.bound[v].Equal(wanted) {
			if err := d.threads.ConfineVCPU(g.pid, tid, v, wanted); err != nil {
				errs = append(errs, fmt.Errorf("vCPU %d to CPUs %s: %w", v, wanted, err))
				continue
			}
		}
		g.bound[v] = wanted
		delete(g.released, v)
	}
	return errors.Join(errs...)
}

// end lets bound vCPUs run on all CPUs of their placements: without measured accesses nothing is known of their nodes.
func (d *divider) end(t *topology.Topology) error {
	var errs []error
	for name, g := range d.guests {
		before := g.state.Now
		g.state = scale.Dividing{}
		g.release(before)
		if err := d.bind(g, t); err != nil {
			errs = append(errs, fmt.Errorf("VM %s: letting its vCPUs run on all their CPUs: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// nodes returns the division of a guest.
func (d *divider) nodes(name string) []inventory.VCPUsOfNode {
	if g := d.guests[name]; g != nil {
		return g.state.Now.ByNode()
	}
	return nil
}
