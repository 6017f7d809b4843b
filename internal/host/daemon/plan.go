package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/decide/throttle"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// plan decides what should move. While something moves, nothing else is
// decided: what is seen then is half of one state and half of another. Nor is
// it before the host was looked at again.
func (s *state) plan() {
	if s.busy() || s.stale || s.blind != "" || s.policy.Balance.Mode == policy.ModeOff {
		return
	}
	s.planned, s.lacking = s.moment(), balance.Lacking(s.sample.Guests, s.policy.Balance)
	h := s.withLoads()
	begin := time.Now()
	round, err := balance.Plan(balance.Request{Host: &h, Policy: s.policy, Past: s.past, Now: s.planned})
	s.planCPU = time.Since(begin)
	if err != nil {
		s.d.Log.Error("no plan could be made", "error", err)
		return
	}
	s.totals.Plans++
	s.d.Log.Debug("planned", "took", s.planCPU, "sample", s.sample.Cost, "suffering", len(round.Suffering), "moves", len(round.Moves))
	s.round = round
	s.past.Suffering = round.Suffering
	held := s.held() != ""
	var advice, moves []plan.Move
	for _, m := range round.Moves {
		switch {
		case slices.ContainsFunc(names(m), func(name string) bool { return s.cut[name] }): // it is brought to its end first
		case m.Advised || held:
			advice = append(advice, m)
		default:
			moves = append(moves, m)
		}
	}
	if len(moves) > 0 && s.awaitsOthers() {
		moves = nil
	}
	for _, m := range plan.Join(moves, s.small(&h)) {
		s.queue = append(s.queue, job{id: s.newID(), move: m, by: "balancer"})
	}
	s.advise(advice)
}

// moment is the time now, to a tenth of the time between samples since they
// began. A turn of the loop is some milliseconds earlier or later than a whole
// number of them, and what is due then must not wait for one more.
func (s *state) moment() time.Time {
	return s.turns.Add(time.Since(s.turns).Round(s.d.Every / 10))
}

// patienceEnded reports whether a guest has suffered long enough since the last plan.
func (s *state) patienceEnded() bool {
	now, patience := s.moment(), time.Duration(s.policy.Balance.Patience)
	return slices.ContainsFunc(s.past.Suffering, func(g plan.Suffering) bool {
		end := g.Since.Add(patience)
		return end.After(s.planned) && !end.After(now)
	})
}

// awaitsOthers reports whether the moves of this plan should wait for a guest
// whose patience ends with the next sample, when there will be a plan with both.
// Where one moves at once the other waits until that is done, and finds the host
// as the first has left it. Nobody waits twice between two regular plans.
func (s *state) awaitsOthers() bool {
	if s.planned.Sub(s.waited) < s.d.Plan {
		return false
	}
	patience := time.Duration(s.policy.Balance.Patience)
	soon := slices.ContainsFunc(s.past.Suffering, func(g plan.Suffering) bool {
		left := g.Since.Add(patience).Sub(s.planned)
		return left > 0 && left <= s.d.Every
	})
	if soon {
		s.waited = s.planned
	}
	return soon
}

// newlyLacking reports whether the latest sample shows a guest short of
// something that the last plan did not know: waiting for the next one would add
// to its patience. There is one such plan between two others at most.
func (s *state) newlyLacking() bool {
	if s.moment().Sub(s.early) < s.d.Plan {
		return false
	}
	for name := range balance.Lacking(s.sample.Guests, s.policy.Balance) {
		if !s.lacking[name] {
			s.early = s.moment()
			return true
		}
	}
	return false
}

// small is how much moves may copy together that are made as one: what takes a few seconds.
func (s *state) small(h *inventory.Host) topology.Bytes {
	const seconds = 4
	rate, _ := s.policy.Balance.CopyRate(h.MoverBytesPerSecond)
	return seconds * rate
}

// held says why nothing moves by itself though the mode allows it.
func (s *state) held() string {
	if p := s.pause; p != nil {
		return "paused" + because(p.Why)
	}
	if !s.policy.Balance.Open(time.Now()) {
		windows := make([]string, len(s.policy.Balance.Windows))
		for i, w := range s.policy.Balance.Windows {
			windows[i] = w.String()
		}
		return "outside the maintenance windows " + strings.Join(windows, ", ")
	}
	return ""
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// advisedFor is how long advice is in the journal for when it comes again: with
// loads that waver it may come and go with every plan.
const advisedFor = time.Hour

// advise keeps moves for an operator to accept. One that is found again keeps
// its id and age; one that no longer pays is gone.
func (s *state) advise(moves []plan.Move) {
	known := map[string]status.Advice{}
	for _, a := range s.advice {
		known[a.ID] = a
	}
	s.advice = nil
	for _, m := range moves {
		a := status.Advice{ID: adviceID(m), Since: time.Now(), Move: m}
		before, ok := known[a.ID]
		if ok {
			a.Since = before.Since
		}
		if !ok && time.Since(s.advised[a.ID]) >= advisedFor {
			s.advised[a.ID] = a.Since
			s.note(journal.Entry{Kind: journal.Advised, ID: a.ID, Guests: names(m), What: m.String(), Why: m.Why, By: "balancer", Move: &m})
		}
		s.advice = append(s.advice, a)
	}
}

// adviceID is the same for the same guests going to the same nodes.
func adviceID(m plan.Move) string {
	h := sha256.New()
	for _, g := range m.Guests {
		fmt.Fprintf(h, "%s>%s;", g.Guest, g.Placement.Nodes)
	}
	return "a" + hex.EncodeToString(h.Sum(nil)[:4])
}

func names(m plan.Move) []string {
	all := make([]string, len(m.Guests))
	for i, g := range m.Guests {
		all[i] = g.Guest
	}
	return all
}

// newID names a move as no other was named: by when the daemon began, and a number.
func (s *state) newID() string {
	s.named++
	return fmt.Sprintf("m%s-%d", s.started.UTC().Format("20060102T150405"), s.named)
}

// remember takes from the journal what the next plan must know.
func (s *state) remember(e journal.Entry) {
	if e.Ends() {
		s.copies = s.copies.With(throttle.Copy{Bytes: e.Moved, Took: e.Copied})
	}
	if e.Fails() {
		for _, name := range e.Guests {
			s.failed[name] = append(s.failed[name], e.At)
		}
	}
	switch e.Kind {
	case journal.Advised:
		s.advised[e.ID] = e.At
	case journal.Repaired:
		for _, name := range e.Guests {
			s.repairs[name] = competitors.Tried{At: e.At}
		}
	case journal.RepairFailed:
		for _, name := range e.Guests {
			s.repairs[name] = competitors.Tried{At: e.At, Failed: e.What}
		}
	case journal.Paused:
		s.pause = &status.Pause{Since: e.At, Until: e.Until, Why: e.Why}
	case journal.Resumed:
		s.pause = nil
	}
}

// fade forgets what no rule asks about any more.
func (s *state) fade(now time.Time) {
	keep := s.past.Moves[:0]
	for _, m := range s.past.Moves {
		if now.Sub(m.At) < time.Duration(s.policy.Balance.NoReturn) {
			keep = append(keep, m)
		}
	}
	s.past.Moves = keep
	maps.DeleteFunc(s.advised, func(_ string, at time.Time) bool { return now.Sub(at) >= advisedFor })
	for name, times := range s.failed {
		recent := times[:0]
		for _, t := range times {
			if now.Sub(t) < time.Hour {
				recent = append(recent, t)
			}
		}
		if s.failed[name] = recent; len(recent) == 0 {
			delete(s.failed, name)
		}
	}
}
