package handoff

import (
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// tally counts what the records show one after the other, for those who watch the
// hand-overs. Nothing depends on it. It is safe for concurrent use; its zero value is empty.
type tally struct {
	lock   sync.Mutex
	at     time.Time // of the latest record
	grants map[topology.CPUID]handoff.Grant
	// asked has the CPUs that a guest was asked to release and still has, and since when.
	asked  map[topology.CPUID]time.Time
	counts map[string]*count
}

// count is what the tally has of one guest.
type count struct {
	state   State
	present bool // it runs and hands CPUs over
	cpus    topology.CPUSet
	guest   handoff.Guest
	demand  *float64
	refused int
	times   inventory.HandoverTimes
	// open is how long CPUs were open to the guest, summed over CPUs, since began.
	open  time.Duration
	began time.Time
}

func (t *tally) of(guest string) *count {
	if t.counts == nil {
		t.counts = map[string]*count{}
	}
	c := t.counts[guest]
	if c == nil {
		c = &count{began: t.at}
		t.counts[guest] = c
	}
	return c
}

// advance adds the time since the latest record to what was open then.
func (t *tally) advance(now time.Time) {
	if since := now.Sub(t.at); since > 0 {
		for _, c := range t.counts {
			c.open += time.Duration(c.cpus.Len()) * since
		}
	}
	t.at = now
}

// record takes a record that has been stored.
func (t *tally) record(r Record, now time.Time) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.advance(now)
	after := make(map[topology.CPUID]handoff.Grant, len(r.Grants))
	for _, g := range r.Grants {
		after[g.CPU] = g
	}
	for cpu, before := range t.grants {
		now, still := after[cpu]
		_, runs := r.Epochs[before.Guest]
		asked, known := t.asked[cpu]
		switch still = still && now.Guest == before.Guest; {
		case !still && known && runs: // also late, after it was not asked any more
			t.of(before.Guest).times.Add(t.at.Sub(asked))
		case still && now.Stuck && !before.Stuck:
			t.of(before.Guest).refused++
		}
	}
	t.remember(after)
	for name, c := range t.counts {
		c.cpus, c.state = handoff.CPUsOf(r.Grants, name), r.Guests[name]
	}
	for _, g := range r.Grants {
		if t.counts[g.Guest] == nil {
			c := t.of(g.Guest)
			c.cpus, c.state = handoff.CPUsOf(r.Grants, g.Guest), r.Guests[g.Guest]
		}
	}
}

// remember takes the grants of a record, and which of them their guests are asked to release.
func (t *tally) remember(grants map[topology.CPUID]handoff.Grant) {
	asked := map[topology.CPUID]time.Time{}
	for cpu, g := range grants {
		since, known := t.asked[cpu]
		if before := t.grants[cpu]; before.Guest != g.Guest || !g.Leaving && !g.Stuck {
			known = false
		}
		switch {
		case known:
			asked[cpu] = since
		case g.Leaving:
			asked[cpu] = g.Since
		}
	}
	t.grants, t.asked = grants, asked
}

// guests takes what is known of the guests. Those that are gone are forgotten.
func (t *tally) guests(h *Hands) {
	t.lock.Lock()
	defer t.lock.Unlock()
	for name := range t.counts {
		if h.members[name] == nil {
			delete(t.counts, name)
		}
	}
	for name, m := range h.members {
		c := t.of(name)
		c.present, c.guest, c.demand = !m.starting, m.Guest, nil
		if m.demand.Guest != "" {
			sum := m.demand.Running + m.demand.Waiting
			c.demand = &sum
		}
	}
}

// Holdings returns what each guest has, and how many CPUs were open to it on average since
// the call before.
func (r *Runner) Holdings() map[string]handoff.Holding { return r.tally.holdings(time.Now()) }

func (t *tally) holdings(now time.Time) map[string]handoff.Holding {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.advance(now)
	holds := make(map[string]handoff.Holding, len(t.counts))
	for name, c := range t.counts {
		open := float64(c.cpus.Len())
		if since := now.Sub(c.began); since > 0 {
			open = float64(c.open) / float64(since)
		}
		c.open, c.began = 0, now
		if !c.present {
			continue
		}
		s := c.state
		holds[name] = handoff.Holding{Open: open, HandedOver: inventory.HandedOver{
			CPUs: c.cpus, Min: c.guest.Min, Weight: c.guest.Weight, Demand: c.demand, Means: string(s.Means),
			Silent: s.Silent, Taken: s.Taken, Misbehaved: s.Misbehaved, MisbehavedAt: s.MisbehavedAt,
			Refused: c.refused, Times: c.times.Clone(),
		}}
	}
	return holds
}
