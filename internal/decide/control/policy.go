package control

import (
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
)

// rules is the policy in force. The controller owns it; jobs get it when they
// start.
type rules struct {
	policy policy.Policy  // complete, with defaults
	next   *policy.Policy // takes effect when no job runs; nil: none
}

// setPolicy takes a new policy.
func (c *Controller) setPolicy(e SetPolicy) {
	if err := e.Policy.Validate(); err != nil {
		c.refuse(e.Order, ErrMalformed, "%v", err)
		return
	}
	c.rules.next = &e.Policy
	c.applyPolicy()
	c.reply(e.Order, nil)
}

// Policy returns the policy in force, with defaults.
func (c *Controller) Policy() policy.Policy { return c.rules.policy }

// applyPolicy puts a new policy into force if no job runs under the old one.
func (c *Controller) applyPolicy() {
	if c.rules.next == nil || c.jobs.running != nil {
		return
	}
	c.rules.policy, c.rules.next = c.rules.next.WithDefaults(), nil
	c.competition.wanted = nil // wanted under the old one
	c.jobs.dropPlanned()
	if c.rules.policy.Balance.Mode == policy.ModeOff { // nothing is planned, so nothing is advised
		c.advice.current, c.when.plan = nil, plan.Plan{}
	}
	c.readJournal()
	what := "a new policy is in force, mode " + string(c.rules.policy.Balance.Mode)
	c.note(journal.Entry{Kind: journal.Setting, What: what, By: string(Operator)})
}

// modeOf returns the mode of a guest.
func (c *Controller) modeOf(g *inventory.Guest) policy.Mode {
	return c.rules.policy.Balance.ModeOf(g.Name, g.Ours())
}
