package watch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// PMU counts vCPU threads' loads from memory with the processor's performance
// counters, by the kernel's generic events node-loads and node-load-misses.
// Processors whose kernel has no such events (AMD since Zen) need the vendor's
// own events, which Numavisor does not have. The events do not count stores and
// prefetches: so PMU reports the distribution of accesses, and no bandwidth.
type PMU struct {
	root  linux.Root
	open  func(tid int, e linux.NodeEvent) (PerfCounter, error)
	local func() (bool, error)

	probed   bool // local is valid
	areLocal bool // node-loads excludes node-load-misses
	topology *topology.Topology
	nodeOf   []topology.NodeID
	guests   map[string]*pmuGuest
}

// PerfCounter is one counter of the processor for one thread.
type PerfCounter interface {
	Read() (linux.PerfCount, error)
	Close()
}

type pmuGuest struct {
	guest   inventory.Guest
	threads []pmuThread
}

type pmuThread struct {
	tid           int
	loads, misses PerfCounter
	before        [2]linux.PerfCount
}

// NewPMU makes the meter. Follow shows whether the processor has the events.
func NewPMU(root linux.Root) *PMU {
	return &PMU{root: root, guests: map[string]*pmuGuest{}, local: root.NodeLoadsAreLocal,
		open: func(tid int, e linux.NodeEvent) (PerfCounter, error) {
			c, err := linux.OpenNodeEvent(tid, e)
			if err != nil {
				return nil, err // and not a nil pointer in an interface
			}
			return c, nil
		}}
}

// Source is inventory.AccessPMU.
func (p *PMU) Source() inventory.AccessSource { return inventory.AccessPMU }

// Follow opens counters for new threads and closes those of threads that have
// ended.
func (p *PMU) Follow(guests []inventory.Guest, t *topology.Topology) error {
	if !p.probed {
		areLocal, err := p.local()
		if err != nil {
			return err
		}
		p.areLocal, p.probed = areLocal, true
	}
	if t != p.topology {
		p.topology, p.nodeOf = t, nodesOfCPUs(t)
	}
	for name, g := range p.guests {
		if !slices.ContainsFunc(guests, func(o inventory.Guest) bool { return o.Name == name }) {
			g.keep(nil)
			delete(p.guests, name)
		}
	}
	var refused []string
	var why error
	for _, g := range guests {
		own := p.guests[g.Name]
		if own == nil {
			own = &pmuGuest{}
			p.guests[g.Name] = own
		}
		own.guest = g
		if err := p.follow(own); err != nil {
			own.keep(nil)
			delete(p.guests, g.Name)
			refused = append(refused, g.Name)
			if why == nil {
				why = err
			}
		}
	}
	if why != nil {
		return &UnmeteredError{refused, why}
	}
	return nil
}

// follow makes sure that each thread of a guest is counted.
func (p *PMU) follow(g *pmuGuest) error {
	if len(g.guest.Seen.Threads) == 0 {
		return errors.New("its vCPU threads are unknown")
	}
	g.keep(g.guest.Seen.Threads)
	for _, t := range g.guest.Seen.Threads {
		if slices.ContainsFunc(g.threads, func(own pmuThread) bool { return own.tid == t.TID }) {
			continue
		}
		own, err := p.begin(t.TID)
		if errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return err
		}
		g.threads = append(g.threads, own)
	}
	return nil
}

// begin opens the counters of a thread and takes their present values as zero.
func (p *PMU) begin(tid int) (t pmuThread, err error) {
	t.tid = tid
	if t.loads, err = p.open(tid, linux.NodeLoads); err != nil {
		return t, err
	}
	if t.misses, err = p.open(tid, linux.NodeLoadMisses); err != nil {
		t.loads.Close()
		return t, err
	}
	if _, _, _, err = t.since(); err != nil {
		t.close()
	}
	return t, err
}

// keep closes the counters of all threads but the given ones.
func (g *pmuGuest) keep(threads []inventory.Thread) {
	g.threads = slices.DeleteFunc(g.threads, func(own pmuThread) bool {
		if slices.ContainsFunc(threads, func(t inventory.Thread) bool { return t.TID == own.tid }) {
			return false
		}
		own.close()
		return true
	})
}

func (t *pmuThread) close() {
	t.loads.Close()
	t.misses.Close()
}

// since returns the loads and misses since the previous call, scaled for the
// time in which the counters had no place. False: one of them had no place at
// all; the other's count then waits for the next call.
func (t *pmuThread) since() (loads, misses float64, placed bool, err error) {
	l, err := t.loads.Read()
	if err != nil {
		return 0, 0, false, err
	}
	m, err := t.misses.Read()
	if err != nil {
		return 0, 0, false, err
	}
	for i, c := range []linux.PerfCount{l, m} {
		if c.Enabled > t.before[i].Enabled && c.Running <= t.before[i].Running {
			return 0, 0, false, nil
		}
	}
	loads, misses = l.Since(t.before[0]), m.Since(t.before[1])
	t.before = [2]linux.PerfCount{l, m}
	return loads, misses, true, nil
}

// Read returns the distribution of each guest's loads: from the node where each
// thread last ran to that node, or to others.
func (p *PMU) Read(time.Duration) (map[string]Access, error) {
	accesses := make(map[string]Access, len(p.guests))
	var errs []error
	for name, g := range p.guests {
		a, measured, err := p.read(g)
		if err != nil {
			errs = append(errs, fmt.Errorf("VM %s: %w", name, err))
		} else if measured {
			accesses[name] = a
		}
	}
	return accesses, errors.Join(errs...)
}

// read is Read of one guest; false: no thread that ran was counted.
func (p *PMU) read(g *pmuGuest) (a Access, measured bool, err error) {
	unplaced := false
	amounts := map[inventory.AccessShare]float64{}
	var vcpus []inventory.VCPUAccess
	divisible := g.guest.Placement.Divisible()
	for i := range g.threads {
		t := &g.threads[i]
		loads, misses, placed, err := t.since()
		if err != nil {
			return Access{}, false, err
		}
		unplaced = unplaced || !placed
		vcpu, node := p.lastOn(g, t.tid)
		if node == topology.NoNode {
			continue
		}
		local := loads
		if !p.areLocal {
			local = max(0, loads-misses)
		}
		amounts[inventory.AccessShare{From: node, To: node}] += local
		amounts[inventory.AccessShare{From: node, To: topology.NoNode}] += misses
		if placed && vcpu != nil && divisible.Contains(*vcpu) {
			vcpus = append(vcpus, inventory.VCPUAccess{VCPU: *vcpu, On: node,
				ByNode: map[topology.NodeID]float64{node: local, topology.NoNode: misses}})
		}
	}
	a = AccessOf(amounts, 0)
	a.VCPUs = vcpus
	return a, len(a.Shares) > 0 || !unplaced, nil
}

// lastOn returns the vCPU of a thread, nil if it is not known, and the node of the CPU where the thread last ran.
func (p *PMU) lastOn(g *pmuGuest, tid int) (*guest.VCPUID, topology.NodeID) {
	for i := range g.guest.Seen.Threads {
		if t := &g.guest.Seen.Threads[i]; t.TID == tid && int(t.LastCPU) < len(p.nodeOf) {
			return t.VCPU, p.nodeOf[t.LastCPU]
		}
	}
	return nil, topology.NoNode
}

// Close closes all counters.
func (p *PMU) Close() error {
	for _, g := range p.guests {
		g.keep(nil)
	}
	clear(p.guests)
	return nil
}
