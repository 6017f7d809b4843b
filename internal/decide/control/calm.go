package control

import (
	"time"

	"github.com/numavisor/numavisor/internal/status"
)

// calmShare is the time between the beginnings of two samples of a calm host, as a multiple of what one takes with the
// decisions that follow it: the daemon works for a twentieth of the time.
const calmShare = 20

// CalmFor returns how long after the last sample the next one is due, if to sample and to decide took so long then; 0: the
// regular one is. A large or slow host that is calm would lose more by the daemon than the daemon could gain. Guests
// that begin to work are seen by looks between the samples (Surge), or before half of degraded_for has passed.
func (c *Controller) CalmFor(took time.Duration) time.Duration {
	if !c.calm() {
		return 0
	}
	wait := min(status.LongestWait, calmShare*took)
	if !c.looks() {
		wait = min(wait, c.degradedFor()/2)
	}
	return wait
}

// calm reports whether no decision needs the regular samples: no job runs or waits, no guest is degraded, waits a
// little or is over a threshold, all loads are known, and the kernel brings no memory.
func (c *Controller) calm() bool {
	p := &c.when.plan
	return c.State() == Idle && c.host.knowledge == current && !c.host.wanted && !c.host.unsampled() &&
		!c.host.sample.Unmeasured && len(c.jobs.queue) == 0 && c.competition.changing == nil &&
		!c.competition.holds() && c.soon() == 0 &&
		len(p.Degraded)+len(p.Waiting)+len(c.host.fresh)+len(c.overThreshold()) == 0
}
