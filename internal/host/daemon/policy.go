package daemon

import (
	"context"

	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// Obey takes a new policy from now on: at once, or where a move is on its way,
// when that is over.
func (d *Daemon) Obey(ctx context.Context, p policy.Policy) error {
	return d.order(ctx, func(s *state) error {
		if err := p.Validate(); err != nil {
			return err
		}
		s.next = &p
		s.obey()
		return nil
	})
}

// withdraw takes back what was found of guests where nothing is to be found any more.
func (s *state) withdraw() {
	if s.policy.Balance.Mode == policy.ModeOff {
		s.advice, s.round, s.past.Suffering = nil, plan.Plan{}, nil
	}
}

// obey puts a new policy into force where nothing is on its way under the old one.
func (s *state) obey() {
	if s.next == nil || s.moving != nil {
		return
	}
	s.policy, s.next = s.next.WithDefaults(), nil
	s.d.Host.Policy = s.policy
	s.changes = nil // wanted under the old one
	s.dropPlanned()
	s.withdraw()
	s.recoverLater()
	s.note(journal.Entry{Kind: journal.Setting, What: "a new policy is in force, mode " + string(s.policy.Balance.Mode), By: "operator"})
}
