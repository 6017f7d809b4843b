package handoff

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/decide/scale"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Sizer runs Sizes for the daemon of one host.
type Sizer struct {
	Rules   handoff.Rules
	Threads Threads
	// Shared are the CPUs that ordinary guests share, by the operator's policy.
	Shared func(*topology.Topology) topology.CPUSet
	Log    func(format string, args ...any)
	// Inform logs what is no fault: that vCPUs are bound to other nodes.
	Inform func(format string, args ...any)
	// File records which vCPUs guests use, for other programs; no decision relies on it. It belongs into a folder that
	// a boot of the host empties. Empty: nothing is recorded.
	File string

	lock   sync.Mutex
	states map[string]inventory.Scaled // after the last decision

	once    sync.Once
	updates chan update
	samples chan inventory.Sample
}

func (z *Sizer) channels() (chan update, chan inventory.Sample) {
	z.once.Do(func() { z.updates, z.samples = make(chan update, 1), make(chan inventory.Sample, 1) })
	return z.updates, z.samples
}

// Follow takes the guests of an observation; the latest counts.
func (z *Sizer) Follow(guests []inventory.Guest, t *topology.Topology) {
	updates, _ := z.channels()
	select {
	case <-updates:
	default:
	}
	updates <- update{t, guests}
}

// Sampled takes a sample; the latest counts.
func (z *Sizer) Sampled(s inventory.Sample) {
	_, samples := z.channels()
	select {
	case <-samples:
	default:
	}
	samples <- s
}

// Run decides on numbers of vCPUs until ctx ends; then all guests continue to use what they use.
func (z *Sizer) Run(ctx context.Context) error {
	l := &sizing{Sizer: z, guests: map[string]*connection{}, messages: make(chan message)}
	l.sizes = Sizes{Rules: z.Rules, Send: l.send}
	l.divider = divider{threads: z.Threads, inform: z.Inform, guests: map[string]*divided{}}
	defer l.workers.Wait()
	defer func() {
		if err := l.divider.end(l.topology); err != nil {
			l.complain(err)
		}
	}()
	defer func() {
		for _, c := range l.guests {
			c.stop()
		}
	}()
	updates, samples := z.channels()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-updates:
			l.follow(ctx, u)
		case l.sample = <-samples:
			if err := l.divider.sampled(&l.sample, l.topology, l.roomOf, time.Now()); err != nil {
				l.complain(err)
			}
		case m := <-l.messages:
			if err := l.sizes.Report(m.guest, m.line, time.Now()); err != nil {
				l.complain(err)
			}
		case <-timer.C:
		}
		if len(l.guests) == 0 {
			if err := l.publish(nil); err != nil {
				l.complain(err)
			}
			continue // until an observation shows one
		}
		next, err := l.sizes.Step(l.room(), time.Now())
		if err = errors.Join(err, l.publish(l.statesNow())); err != nil {
			l.complain(err)
		}
		timer.Reset(time.Until(next))
	}
}

// States returns what is known of each guest whose number of vCPUs follows its demand.
func (z *Sizer) States() map[string]inventory.Scaled {
	z.lock.Lock()
	defer z.lock.Unlock()
	return z.states
}

// sizing is what the goroutine of Run owns.
type sizing struct {
	*Sizer
	sizes    Sizes
	divider  divider
	guests   map[string]*connection
	messages chan message
	workers  sync.WaitGroup
	topology *topology.Topology
	sample   inventory.Sample
	apart    map[string]bool // guests whose load leaves the shared CPUs to those that are scaled
	taken    topology.CPUSet // CPUs of one guest each
	said     string
	recorded map[string]ScaledGuest
}

// ScaledGuest is what the record has of a guest: its process and which vCPUs it uses. Demands are not recorded.
type ScaledGuest struct {
	PID int `json:"pid"`
	inventory.Scaled
}

func (l *sizing) statesNow() map[string]inventory.Scaled {
	states := l.sizes.States(time.Now())
	for name, s := range states {
		s.Divided = l.divider.nodes(name)
		states[name] = s
	}
	return states
}

// publish makes states known to this program, and to others if they have changed.
func (l *sizing) publish(states map[string]inventory.Scaled) error {
	l.lock.Lock()
	l.states = states
	l.lock.Unlock()
	record := make(map[string]ScaledGuest, len(states))
	for name, s := range states {
		s.Demand = nil
		record[name] = ScaledGuest{l.guests[name].pid, s}
	}
	if l.File == "" || reflect.DeepEqual(record, l.recorded) {
		return nil
	}
	if err := writeRecord(l.File, record); err != nil {
		return fmt.Errorf("recording which vCPUs VMs use: %w", err)
	}
	l.recorded = record
	return nil
}

// ReadScaled reads the record of guests whose number of vCPUs follows their demand, by name. Without the file there are
// none.
func ReadScaled(file string) (map[string]ScaledGuest, error) {
	record := map[string]ScaledGuest{}
	if err := readRecord(file, &record); err != nil {
		return nil, fmt.Errorf("the record of which vCPUs VMs use: %w; the daemon writes %s again when it is restarted",
			err, file)
	}
	return record, nil
}

// complain logs an error once, until another one occurs.
func (l *sizing) complain(err error) {
	if text := err.Error(); text != l.said {
		l.said = text
		l.Log("%s", text)
	}
}

// room returns the CPUs that nodes have for these guests.
func (l *sizing) room() map[topology.NodeID]int {
	return scale.Room(l.topology, l.Shared(l.topology).Minus(l.taken), &l.sample, l.apart)
}

// roomOf returns the CPUs that nodes have for one of these guests: without the work of all others.
func (l *sizing) roomOf(name string) map[topology.NodeID]int {
	apart := maps.Clone(l.apart)
	for other := range l.guests {
		apart[other] = other == name
	}
	return scale.Room(l.topology, l.Shared(l.topology).Minus(l.taken), &l.sample, apart)
}

func (l *sizing) send(name string, text []byte) {
	if c := l.guests[name]; c != nil {
		c.send(text)
	}
}

// follow takes an observation: guests come and go.
func (l *sizing) follow(ctx context.Context, u update) {
	l.topology, l.apart, l.taken = u.topology, map[string]bool{}, topology.CPUSet{}
	seen := map[string]bool{}
	for i := range u.guests {
		g := &u.guests[i]
		if g.Placement == nil || g.PID == 0 {
			continue
		}
		mode := g.Placement.CPUMode
		l.taken = l.taken.Union(g.Placement.Exclusive())
		l.apart[g.Name] = g.Placement.Scale != nil || mode == guest.CPUExclusive || mode == guest.CPUHandoff
		if g.Placement.Scale == nil {
			continue
		}
		seen[g.Name] = true
		if c := l.guests[g.Name]; c != nil && c.pid != g.PID {
			l.leave(g.Name) // it has been started again
		}
		if l.guests[g.Name] == nil {
			ctx, stop := context.WithCancel(ctx)
			c := &connection{name: g.Name, pid: g.PID, stop: stop, threads: l.Threads, log: l.Log, messages: l.messages}
			l.guests[g.Name] = c
			l.workers.Go(func() { c.run(ctx) })
		}
		l.sizes.Guest(g.Name, g.Placement, g.Seen.MemoryByNode)
		l.divider.follow(g, l.topology)
	}
	for name := range l.guests {
		if !seen[name] {
			l.leave(name)
		}
	}
}

func (l *sizing) leave(name string) {
	l.guests[name].stop()
	delete(l.guests, name)
	l.sizes.Gone(name)
	l.divider.leave(name)
}
