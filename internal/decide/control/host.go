package control

import (
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// knowledge says how good what is known of the host is.
type knowledge int

const (
	unknown  knowledge = iota // no observation has succeeded
	current                   // no job ended since the observation began
	outdated                  // a job ended since
)

// reading says what the observation in progress is worth.
type reading int

const (
	idle      reading = iota // none is in progress
	running                  // it began after the last job ended
	overtaken                // a job ended while it ran: it may show half of a move
)

// host is what is known of the host.
type host struct {
	inventory inventory.Host // as last observed, with the latest figures of samples in it
	sample    inventory.Sample
	knowledge knowledge
	reading   reading
	last      time.Time          // when an observation last ended; zero: never, or the first failed
	wanted    bool               // observe at the next sample, not when it is time
	failure   string             // why the last observation failed; empty: it did not
	followed  *topology.Topology // by the watcher
	damaged   []inventory.Gap    // of the journal, as it was at the start
}

// absorb takes over a sample, and puts its figures into the inventory.
func (h *host) absorb(s inventory.Sample) {
	h.sample = s
	seen := make(map[string]*inventory.GuestSample, len(s.Guests))
	for i := range s.Guests {
		seen[s.Guests[i].Name] = &s.Guests[i]
	}
	for i := range h.inventory.Guests {
		g := &h.inventory.Guests[i]
		if now := seen[g.Name]; now != nil && now.PID == g.PID && len(now.MemoryByNode) > 0 {
			g.Seen.MemoryByNode, g.Seen.MemorySource = now.MemoryByNode, now.MemorySource
		}
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

// overtake marks what is known, and what is being read, as older than a job's end.
func (h *host) overtake() {
	h.knowledge, h.wanted = outdated, true
	if h.reading == running {
		h.reading = overtaken
	}
}

// observe has the host observed when it is time, or when something has changed.
func (c *Controller) observe() {
	h := &c.host
	if h.reading != idle || !h.wanted && !h.last.IsZero() && c.turn.now.Sub(h.last) < c.options.Observe {
		return
	}
	h.reading, h.wanted = running, false
	c.turn.ready.Observe = true
}

// observed takes over an observation.
func (c *Controller) observed(e Observed) {
	h := &c.host
	read := h.reading
	h.reading = idle
	if e.Err != nil {
		if h.failure != e.Err.Error() { // it is tried every second, perhaps for days
			c.log(Warn, "the host could not be looked at; what is known of it is kept", "error", e.Err)
		}
		if h.failure = e.Err.Error(); h.knowledge != unknown {
			h.last = c.turn.now
		}
		return
	}
	h.last, h.failure, h.inventory = c.turn.now, "", e.Host
	if read == running {
		h.knowledge = current
	}
	c.follow()
	if h.knowledge == current { // a move that ended since may have been seen half-way
		c.noteDrift()
	}
	c.competition.forgetGone(h.inventory.Guests)
}

// follow has the guests sampled that there are now. As long as nodes and CPUs
// are the same, the watcher keeps its rates.
func (c *Controller) follow() {
	t := c.host.inventory.Topology
	if f := c.host.followed; f == nil || !f.CPUSet().Equal(t.CPUSet()) || !f.NodeSet().Equal(t.NodeSet()) {
		c.host.followed = &t
	}
	c.turn.ready.Follow = &Follow{c.host.inventory.Guests, c.host.followed}
}

// onTheMove reports whether a guest is being moved, by this daemon or by another
// process (whose claim was seen), or is half-way in a move that was cut short.
func (c *Controller) onTheMove(name string) bool {
	if c.jobs.concerns(name) || c.recovery.cut[name] {
		return true
	}
	_, claimed := c.host.inventory.Claim(name)
	return claimed
}
