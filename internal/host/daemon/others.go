package daemon

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// noteDrift keeps since when guests of ours lie otherwise than they were bound.
func (s *state) noteDrift() {
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		if len(s.differences(g)) == 0 {
			delete(s.drifted, g.Name)
			continue
		}
		if _, known := s.drifted[g.Name]; !known {
			s.drifted[g.Name] = time.Now()
			s.note(journal.Entry{Kind: journal.Drifted, Guests: []string{g.Name}, What: joined(s.differences(g)), Why: "somebody else changed it, or its memory went elsewhere"})
		}
	}
}

// differences is how a guest of ours lies otherwise than it was bound; nothing
// while it is on the move, or half-way of one that was cut short.
func (s *state) differences(g *inventory.Guest) []string {
	if g.Placement == nil || len(g.Seen.Threads) == 0 || g.State != "running" || s.onTheMove(g.Name) {
		return nil
	}
	var all []string
	for _, d := range drift.Of(*g, &s.host.Topology) {
		all = append(all, d.String())
	}
	return all
}

// onTheMove reports whether a guest is being moved, by us or by another process
// (whose claim was seen), or is half-way of a move that was cut short.
func (s *state) onTheMove(name string) bool {
	if m := s.moving; m != nil && (m.job.repair == name || slices.Contains(names(m.job.move), name)) {
		return true
	}
	return s.cut[name] || slices.ContainsFunc(s.host.Claims, func(c inventory.Claim) bool { return c.PID == 0 && c.Name == name })
}

// answerRivals does about others who move pages what the policy says.
func (s *state) answerRivals() {
	f := competitors.Facts{Kernel: s.host.Kernel, Seen: s.host.Taken, Moves: s.sample.Moves, Window: s.sample.Window,
		Mode: s.policy.Balance.Mode, Movers: s.policy.Movers, Tried: s.tried, Former: s.balancing, Now: time.Now()}
	if !f.Kernel.NumadRunning {
		clear(s.told) // the next numad knows of nothing
	}
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		if g.State != "running" {
			continue
		}
		r := competitors.Guest{Name: g.Name, PID: g.PID, Mode: s.modeOf(g), Told: s.told[g.PID], Repaired: s.repairs[g.Name]}
		if since, ok := s.drifted[g.Name]; ok {
			r.Drift, r.Since = s.differences(g), since
		}
		f.Guests = append(f.Guests, r)
	}
	seen, actions := competitors.Answer(f)
	s.noteRivals(seen)
	s.changes = nil
	for _, a := range actions {
		switch {
		case s.changing != nil && s.changing.Kind == a.Kind && s.changing.PID == a.PID: // it is on its way
		case a.Kind != plan.BindGuest:
			s.changes = append(s.changes, a)
		case !s.busy() && !s.stale && s.held() == "":
			s.queue = append(s.queue, job{id: "repair-" + a.Guest, repair: a.Guest, by: "balancer", why: a.Why})
		}
	}
}

// noteRivals writes down who came and who went.
func (s *state) noteRivals(seen []status.Rival) {
	find := func(all []status.Rival, name string) bool {
		for _, r := range all {
			if r.Name == name {
				return true
			}
		}
		return false
	}
	for _, r := range seen {
		if !find(s.rivals, r.Name) {
			s.note(journal.Entry{Kind: journal.Rival, What: r.Name + ": " + r.What, Why: "answer: " + r.Answer, By: r.Name})
		}
	}
	for _, r := range s.rivals {
		if !find(seen, r.Name) {
			s.note(journal.Entry{Kind: journal.Rival, What: r.Name + " has stopped", By: r.Name})
		}
	}
	s.rivals = seen
}

func (s *state) modeOf(g *inventory.Guest) policy.Mode {
	return s.policy.Balance.ModeOf(g.Name, g.Ours())
}
