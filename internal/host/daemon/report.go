package daemon

import (
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// report is the daemon's view of this moment.
func (s *state) report() status.Status {
	r := status.Status{
		Host: s.host.Name, Started: s.started, Topology: s.host.Topology, Sample: s.sample,
		Mode: s.policy.Balance.Mode, Held: s.held(), Pause: s.pause,
		Planned: s.planned, Suffering: s.round.Suffering, Stays: s.round.Stays,
		Advice: append([]status.Advice(nil), s.advice...), Rivals: s.rivals, Totals: s.totals,
		MoverBytesPerSecond: s.copies.BytesPerSecond(),
	}
	r.Topology.Nodes = slices.Clone(r.Topology.Nodes) // the loop writes to its own
	for i := range s.host.Guests {
		r.Guests = append(r.Guests, s.guest(&s.host.Guests[i]))
	}
	r.Alarms = s.alarms.State.Active()
	if s.moving != nil {
		r.Moving = append(r.Moving, s.moving.shown)
	}
	for _, j := range s.queue {
		if !j.recover && j.repair == "" {
			r.Moving = append(r.Moving, status.Moving{ID: j.id, Move: j.move, Step: "waits", Total: total(j.move)})
		}
	}
	if s.d.Self != nil {
		r.Self = s.d.Self()
	}
	r.Self.Sample, r.Self.Plan = s.sample.Cost, s.planCPU
	return r
}

func (s *state) guest(g *inventory.Guest) status.Guest {
	r := status.Guest{Name: g.Name, State: g.State, Managed: g.Managed, Adopted: g.Adopted, Mode: s.modeOf(g), VCPUs: g.Config.VCPUs, Memory: g.Config.Memory, Drift: s.differences(g)}
	if g.Placement != nil {
		r.Nodes = g.Placement.Nodes
	}
	if len(g.Seen.Threads) > 0 {
		r.LocalShare = drift.LocalShare(*g, &s.host.Topology)
	}
	for _, stay := range s.round.Stays {
		if stay.What == g.Name && strings.HasPrefix(stay.Why, "rests") {
			r.Rests = stay.Why
		}
	}
	return r
}

func joined(lines []string) string { return strings.Join(lines, "; ") }
