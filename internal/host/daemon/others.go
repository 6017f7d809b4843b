package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/decide/rivals"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
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

// differences is how a guest of ours lies otherwise than it was bound; nothing while it is on the move.
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

func (s *state) onTheMove(name string) bool {
	if s.moving == nil {
		return false
	}
	for _, g := range s.moving.job.move.Guests {
		if g.Guest == name {
			return true
		}
	}
	return s.moving.job.recover || s.moving.job.repair == name
}

// answerRivals does about others who move pages what the policy says.
func (s *state) answerRivals(ctx context.Context) {
	f := rivals.Facts{Kernel: s.host.Kernel, Moves: s.sample.Moves, Window: s.sample.Window, Mode: s.policy.Balance.Mode, Movers: s.policy.Movers, Now: time.Now()}
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		if g.State != "running" {
			continue
		}
		r := rivals.Guest{Name: g.Name, PID: g.PID, Mode: s.modeOf(g), Excluded: s.exclude[g.PID], Repaired: s.repairs[g.Name]}
		if since, ok := s.drifted[g.Name]; ok {
			r.Drift, r.Since = s.differences(g), since
		}
		f.Guests = append(f.Guests, r)
	}
	if !f.Kernel.NumadRunning {
		clear(s.exclude) // the next numad knows of nothing
	}
	seen, actions := rivals.Answer(f)
	s.noteRivals(seen)
	for _, a := range actions {
		s.actOn(ctx, a)
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

// actOn carries out one answer. A setting is changed once: who changes it back is not fought.
func (s *state) actOn(ctx context.Context, a rivals.Action) {
	switch a.Kind {
	case rivals.Repair:
		if !s.busy() && s.held() == "" {
			s.queue = append(s.queue, job{id: "repair-" + a.Guest, repair: a.Guest, by: "balancer", why: a.Why})
		}
	case rivals.Exclude:
		s.exclude[a.PID] = true
		ctx, cancel := context.WithTimeout(ctx, tellTime)
		defer cancel()
		err := s.d.Settings.ExcludeFromNumad(ctx, a.PID)
		s.noteSetting(fmt.Sprintf("numad told to leave alone guest %s (numad -x %d)", a.Guest, a.PID), a.Why, err)
	case rivals.StopBalancing:
		if _, done := s.former[string(a.Kind)]; done {
			return
		}
		before, err := s.d.Settings.SetNUMABalancing(a.Value)
		s.former[string(a.Kind)] = before
		s.noteSetting(fmt.Sprintf("kernel.numa_balancing: was %s, is %s", before, a.Value), a.Why, err)
		s.lookSoon()
	case rivals.KSMWithin:
		if _, done := s.former[string(a.Kind)]; done {
			return
		}
		s.former[string(a.Kind)] = "1"
		s.noteSetting("KSM merges within nodes only: was across nodes", a.Why, s.d.Settings.SetKSMAcrossNodes(false))
		s.lookSoon()
	}
}

func (s *state) noteSetting(what, why string, err error) {
	if err != nil {
		what = "tried, and failed: " + what + ": " + err.Error()
	}
	s.note(journal.Entry{Kind: journal.Setting, What: what, Why: why, By: "daemon"})
}

// restore gives kernel balancing back as it was. KSM stays within nodes: to
// merge across them again would cost the same unmerging once more.
func (s *state) restore() {
	before, changed := s.former[string(rivals.StopBalancing)]
	if !changed || before == "" {
		return
	}
	_, err := s.d.Settings.SetNUMABalancing(before)
	s.noteSetting("kernel.numa_balancing: back to "+before, "the daemon stops", err)
}

func (s *state) modeOf(g *inventory.Guest) policy.Mode {
	return s.policy.Balance.ModeOf(g.Name, g.Ours())
}
