package handoff

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/decide/scale"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Sizes makes the number of vCPUs that ordinary guests use follow their demands. It takes no CPU from any guest: a
// guest whose agent does not obey, or has none, uses all of its vCPUs, as it would without. So there is no
// record, and no second phase. It has no clock and no goroutine: its caller passes on guests, messages and time, from
// one goroutine.
type Sizes struct {
	Rules handoff.Rules
	// Send sends a message to a guest's agent. It may be lost.
	Send func(guest string, message []byte)

	members map[string]*sized
	memory  handoff.Memory
}

// sized is a guest with the state of its agent.
type sized struct {
	placement *words.Placement
	memory    topology.MemoryByNode
	report    guest.Report
	heard     time.Time // zero: no agent has reported
	sent      time.Time
	demand    handoff.Demand
	epoch     uint64      // of the last grant
	granted   guest.VCPUs // by it; empty: none since the guest's boot
}

// Guest adds a guest, or changes what is known of it.
func (z *Sizes) Guest(name string, p *words.Placement, memory topology.MemoryByNode) {
	if z.members == nil {
		z.members = map[string]*sized{}
	}
	m := z.members[name]
	if m == nil {
		m = &sized{}
		z.members[name] = m
	}
	m.placement, m.memory = p, memory
}

// Gone removes a guest that has stopped.
func (z *Sizes) Gone(name string) { delete(z.members, name) }

// Report takes a message of a guest's agent. The error says what is wrong with it; nothing has changed then.
func (z *Sizes) Report(name string, line []byte, now time.Time) error {
	m := z.members[name]
	if m == nil {
		return fmt.Errorf("a report of VM %s, whose number of vCPUs follows no demand", name)
	}
	r, err := guest.DecodeReport(line)
	if err != nil {
		return fmt.Errorf("a report of VM %s: %w", name, err)
	}
	if overtaken(&r, &m.report) {
		return nil // a later one has arrived
	}
	if r.Boot != m.report.Boot {
		m.granted = guest.VCPUs{} // another kernel: it uses all vCPUs
	}
	m.report, m.heard = r, now
	m.demand = handoff.Demand{
		Guest: name, At: now, Running: float64(r.Running) / 1000, Waiting: float64(r.Waiting) / 1000,
	}
	if r.Epoch > m.epoch && r.Epoch < guest.MaxEpoch-1 {
		m.epoch, m.granted = r.Epoch, guest.VCPUs{} // this program has started again
	}
	return nil
}

// Step decides on the guests whose agents answer, and sends them their grants. Nodes have room for a number of
// their vCPUs. It returns when to call it next even if nothing happens before.
func (z *Sizes) Step(room map[topology.NodeID]int, now time.Time) (next time.Time, err error) {
	in := scale.Input{Now: now, CPUs: room, Rules: z.Rules, Memory: z.memory}
	for _, name := range z.names() {
		m := z.members[name]
		if m.heard.IsZero() || now.Sub(m.heard) > silence || m.report.Means == guest.None {
			continue
		}
		used := m.granted
		if used == (guest.VCPUs{}) {
			used = m.report.Used
		}
		if g, ok := scale.GuestOf(name, m.placement, setOf(used), m.memory); ok {
			in.Guests, in.Demands = append(in.Guests, g), append(in.Demands, m.demand)
		}
	}
	targets, memory, err := scale.Decide(in)
	if err != nil {
		return now.Add(time.Second), fmt.Errorf("deciding on numbers of vCPUs: %w", err)
	}
	z.memory = memory
	next = now.Add(time.Second)
	var errs []error
	for _, t := range targets {
		m := z.members[t.Guest]
		errs = append(errs, m.send(t, z.Send, now))
		if m.pending() || !memory.Guests[t.Guest].LowSince.IsZero() {
			next = now.Add(resend)
		}
	}
	return next, errors.Join(errs...)
}

// send sends a grant that is new, or that the last report does not show.
func (m *sized) send(t scale.Target, send func(string, []byte), now time.Time) error {
	var use guest.VCPUs
	for v := range t.Use.All() {
		use.Add(int(v))
	}
	if use != m.granted {
		if m.granted == (guest.VCPUs{}) && use == m.report.Used {
			return nil // the guest does so by itself
		}
		m.granted, m.epoch, m.sent = use, m.epoch+1, time.Time{}
	}
	if !m.pending() || now.Sub(m.sent) < resend {
		return nil
	}
	line, err := guest.Encode(&guest.Grant{V: guest.Version, Epoch: m.epoch, VCPUs: use})
	if err != nil {
		return fmt.Errorf("a grant for VM %s: %w", t.Guest, err)
	}
	send(t.Guest, line)
	m.sent = now
	return nil
}

// pending reports whether the guest has not shown yet that it uses what it is granted.
func (m *sized) pending() bool {
	return m.granted != (guest.VCPUs{}) && (m.report.Epoch != m.epoch || m.report.Used != m.granted)
}

// States returns what is known of each guest.
func (z *Sizes) States(now time.Time) map[string]inventory.Scaled {
	states := make(map[string]inventory.Scaled, len(z.members))
	for name, m := range z.members {
		s := inventory.Scaled{Min: m.placement.Scale.Min, Weight: m.placement.Scale.Weight}
		if !m.heard.IsZero() {
			demand := m.demand.Running + m.demand.Waiting
			s.Used, s.Demand = setOf(m.report.Used), &demand
			s.Means, s.Silent = string(m.report.Means), now.Sub(m.heard) > silence
		}
		states[name] = s
	}
	return states
}

func (z *Sizes) names() []string {
	names := make([]string, 0, len(z.members))
	for name := range z.members {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// setOf converts a set of vCPUs.
func setOf(s guest.VCPUs) words.VCPUSet {
	ids := make([]words.VCPUID, 0, s.Len())
	for _, id := range s.IDs() {
		ids = append(ids, words.VCPUID(id))
	}
	return topology.SetOf(ids...)
}
