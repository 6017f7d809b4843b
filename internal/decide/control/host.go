package control

import (
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// knowledge is how current the last observation of the host is.
type knowledge int

const (
	unknown  knowledge = iota // no observation has succeeded
	current                   // no job ended since the observation began
	outdated                  // a job ended since
)

// reading is the state of the observation in progress.
type reading int

const (
	idle      reading = iota // none is in progress
	running                  // one is in progress, and no job ended since it began
	overtaken                // a job ended while it ran, so it may show a partial move
)

// host is the controller's knowledge of the host.
type host struct {
	inventory inventory.Host // as last observed, updated with figures of the latest sample
	sample    inventory.Sample
	fresh     map[string]bool // guests that the latest sample has for the first time, without a load
	knowledge knowledge
	reading   reading
	last      time.Time          // when an observation last ended; zero: never, or the first failed
	took      time.Duration      // how long the last observation took
	wanted    bool               // observe at the next sample instead of after the regular interval
	failure   string             // why the last observation failed; empty: it succeeded
	followed  *topology.Topology // by the watcher
	damaged   []inventory.Gap    // of the journal, as it was at the start
}

// absorb stores a sample and updates the inventory with its figures.
func (h *host) absorb(s inventory.Sample) {
	h.fresh = fresh(h.sample.Guests, s.Guests)
	h.sample = s
	seen := make(map[string]*inventory.GuestSample, len(s.Guests))
	for i := range s.Guests {
		seen[s.Guests[i].Name] = &s.Guests[i]
	}
	for i := range h.inventory.Guests {
		g := &h.inventory.Guests[i]
		now := seen[g.Name]
		if now == nil || now.PID != g.PID {
			continue
		}
		if len(now.MemoryByNode) > 0 {
			g.Seen.MemoryByNode, g.Seen.MemorySource = now.MemoryByNode, now.MemorySource
		}
		// It has been resumed. libvirt also pauses each guest for a moment while it starts.
		h.wanted = h.wanted || g.State == "paused" && now.Load.CPU > 0
	}
	for _, n := range s.Nodes {
		for i := range h.inventory.Topology.Nodes {
			if node := &h.inventory.Topology.Nodes[i]; node.ID == n.Node {
				node.Free = n.Free
				if len(n.HugePages) == len(node.HugePages) {
					node.HugePages = n.HugePages
				}
			}
		}
	}
}

// unsampled reports whether a running guest is not in the latest sample. Its load is measured between two samples.
func (h *host) unsampled() bool {
	sampled := make(map[string]int, len(h.sample.Guests))
	for i := range h.sample.Guests {
		sampled[h.sample.Guests[i].Name] = h.sample.Guests[i].PID
	}
	return slices.ContainsFunc(h.inventory.Guests, func(g inventory.Guest) bool {
		pid, ok := sampled[g.Name]
		return g.State == "running" && (!ok || pid != g.PID)
	})
}

// fresh returns the guests that are in a sample for the first time. A load is measured between two samples, so theirs
// is not known yet. One that cannot be measured at all is fresh only once.
func fresh(before, now []inventory.GuestSample) map[string]bool {
	pids, names := map[string]int{}, map[string]bool{}
	for i := range before {
		pids[before[i].Name] = before[i].PID
	}
	for i := range now {
		if pid, was := pids[now[i].Name]; now[i].Load.Window == 0 && (!was || pid != now[i].PID) {
			names[now[i].Name] = true
		}
	}
	return names
}

// known returns the host as last observed, with the memory of the latest sample, if that is its present state as far
// as the controller can see; else nil.
func (c *Controller) known() *inventory.Host {
	h := &c.host
	if h.knowledge != current || h.wanted || h.reading != idle || h.failure != "" {
		return nil
	}
	seen := h.inventory
	seen.Topology.Nodes, seen.Guests = slices.Clone(seen.Topology.Nodes), slices.Clone(seen.Guests)
	return &seen
}

// overtake marks the last observation, and one in progress, as older than the end
// of a job.
func (h *host) overtake() {
	h.knowledge, h.wanted = outdated, true
	if h.reading == running {
		h.reading = overtaken
	}
}

// Regular observations take at most a 200th of the time, unless they would be more than four intervals apart: where
// observing is slow, it takes CPU time from the guests.
const (
	observeShare  = 1.0 / 200
	observeLonger = 4
)

// observeEvery is the interval between regular observations.
func (c *Controller) observeEvery() time.Duration {
	every := c.options.Observe
	return min(max(every, time.Duration(float64(c.host.took)/observeShare)), observeLonger*every)
}

// observe requests an observation if the interval between two has passed or something has changed. It requests none
// in a turn that starts a job: a move uses what is known, and the host is observed once a job has ended. While a job
// runs, the regular observation waits for its end, for one more interval at most.
func (c *Controller) observe() {
	h, every := &c.host, c.observeEvery()
	if c.jobs.running != nil {
		every *= 2
	}
	if c.turn.ready.StartJob != nil || h.reading != idle ||
		!h.wanted && !h.last.IsZero() && c.turn.now.Sub(h.last) < every {
		return
	}
	h.reading, h.wanted = running, false
	c.turn.ready.Observe = true
}

// observed handles the result of an observation.
func (c *Controller) observed(e Observed) {
	h := &c.host
	read := h.reading
	h.reading = idle
	if read == overtaken && h.knowledge == current {
		return // the job that ended meanwhile has shown a later state
	}
	if e.Err != nil {
		if h.failure != e.Err.Error() { // the daemon may retry every second for days
			c.log(Warn, "the host could not be observed; the daemon uses the last observation", "error", e.Err)
		}
		if h.failure = e.Err.Error(); h.knowledge != unknown {
			h.last = c.turn.now
		}
		return
	}
	h.took = e.Took
	c.learn(e.Host, read == running)
	if c.turn.ready.SampleIn = c.soon(); h.unsampled() {
		c.turn.ready.SampleIn = atOnce
	}
}

// learn replaces what is known of the host. An observation during which a job ended is not
// whole: it may show a partial move.
func (c *Controller) learn(seen inventory.Host, whole bool) {
	h := &c.host
	h.last, h.failure, h.inventory = c.turn.now, "", seen
	if whole {
		h.knowledge = current
	}
	if whole && c.jobs.running == nil && !c.competition.holds() {
		c.competition.found = h.inventory.Kernel.NUMABalancing
	}
	c.follow()
	if h.knowledge == current {
		c.noteDrift()
	}
	c.competition.forgetGone(h.inventory.Guests)
	c.rest.forgetGone(h.inventory.Guests)
}

// learnFrom uses what a job observed after its last change: that is the present state of the
// host, and to observe it again takes longer than to plan.
func (c *Controller) learnFrom(e JobEnded) {
	if e.Seen == nil || e.Err != nil || e.Stopped {
		return
	}
	c.host.wanted = false
	c.learn(*e.Seen, true)
}

// follow selects the present guests for sampling. The watcher keeps its rates as
// long as nodes and CPUs are the same.
func (c *Controller) follow() {
	t := c.host.inventory.Topology
	if f := c.host.followed; f == nil || !f.CPUSet().Equal(t.CPUSet()) || !f.NodeSet().Equal(t.NodeSet()) {
		c.host.followed = &t
	}
	c.turn.ready.Follow = &Follow{c.host.inventory.Guests, c.host.followed}
}

// onTheMove reports whether a guest is being moved, by this daemon or by another
// process (whose claim was observed), or its move was interrupted.
func (c *Controller) onTheMove(name string) bool {
	if c.jobs.concerns(name) || c.recovery.cut[name] {
		return true
	}
	_, claimed := c.host.inventory.Claim(name)
	return claimed
}
