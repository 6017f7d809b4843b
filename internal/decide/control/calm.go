package control

import (
	"time"

	"github.com/numavisor/numavisor/internal/status"
)

// calmShare is the time between two samples of a calm host, in multiples of the time that a sample and its decisions
// take: the daemon works for a twentieth of the time.
const calmShare = 20

// CalmFor returns the time from one sample to the next on a calm host; 0: the host is not calm, and the regular time
// counts. took is the time that the last sample and its decisions took. More samples would cost a large or slow host
// more than the daemon could gain for it. The daemon sees guests that begin to work by looks between the samples
// (Surge), or by the next sample, before half of degraded_for has passed.
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
