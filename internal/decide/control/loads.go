package control

import (
	"cmp"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/throttle"
	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

// loads holds measured figures.
type loads struct {
	history *history.History
	vcpus   []vcpuUse       // of the samples in the last means, the oldest first
	copies  throttle.Copies // of moves made on this host
	trial   topology.Bytes  // a second, measured at the start; counts until a move has shown the rate
	// moved says that a job has ended since the last sample, settled is the first
	// sample after the last job.
	moved   bool
	settled time.Time
}

// vcpuUse is how many CPUs of each node vCPUs of guests used in the window of a sample.
type vcpuUse struct {
	at     time.Time
	window time.Duration
	byNode map[topology.NodeID]float64
}

// means is the time over which a plan averages loads.
const means = 10 * time.Second

// window is the time over which a plan averages loads: means, or if a job has
// ended in that time, the time since the first sample after it. Loads from before
// describe another layout, and no guest of its nodes moves by them.
func (c *Controller) window() time.Duration {
	if since := c.turn.now.Sub(c.loads.settled); !c.loads.moved && since >= least && since < means {
		return since
	}
	return means
}

// least is the shortest time over which a plan averages loads.
const least = time.Second

// surge is the ratio of the latest load to its mean from which a plan uses the
// latest load: the guest has just begun to work. Smaller ratios are noise.
const surge = 1.5

func newLoads() loads { return loads{history: history.New(history.Options{})} }

// add adds the figures of a sample.
func (l *loads) add(s inventory.Sample, now time.Time) {
	l.history.Add(s)
	l.vcpus = slices.DeleteFunc(l.vcpus, func(u vcpuUse) bool { return now.Sub(u.at) > means })
	byNode := map[topology.NodeID]float64{}
	for i := range s.Guests {
		for node, cpus := range s.Guests[i].CPUByNode {
			byNode[node] += cpus
		}
	}
	l.vcpus = append(l.vcpus, vcpuUse{now, s.Window, byNode})
}

// vcpusOn returns how many CPUs of a node vCPUs have used on average since a time, at least
// in the last sample.
func (l *loads) vcpusOn(node topology.NodeID, since time.Time) float64 {
	sum, all := 0.0, 0.0
	for i, u := range slices.Backward(l.vcpus) {
		if u.at.Before(since) && i+1 < len(l.vcpus) {
			break
		}
		sum, all = sum+u.byNode[node]*u.window.Seconds(), all+u.window.Seconds()
	}
	if all == 0 {
		return 0
	}
	return sum / all
}

// remember learns the host's copy rate from a move that ended.
func (l *loads) remember(e journal.Entry) {
	if e.Ends() {
		l.copies = l.copies.With(throttle.Copy{Bytes: e.Moved, Took: e.Copied})
	}
}

// History returns the samples of the last hour.
func (c *Controller) History() *history.History { return c.loads.history }

// Inventory returns the host as a plan at this time uses it: as last observed,
// with the mean demand of guests and nodes and the copy rate. ok is false before
// the first observation. If the latest sample is much greater than the mean, the
// sample counts: otherwise a plan could move a guest that has just begun to work
// to a node without enough CPUs for it.
func (c *Controller) Inventory(now time.Time) (h inventory.Host, ok bool) {
	if c.host.knowledge == unknown {
		return inventory.Host{}, false
	}
	h = c.host.inventory
	h.Taken = now.UTC()
	h.Kernel.NUMABalancing = c.ownBalancing()
	h.Guests = append([]inventory.Guest(nil), h.Guests...)
	c.addGuestLoads(h.Guests)
	h.Load = c.loads.history.NodeLoads(c.window())
	for i := range h.Load {
		l := &h.Load[i]
		l.VCPUs = c.loads.vcpusOn(l.Node, now.Add(-c.window()))
		for _, n := range c.host.sample.Nodes {
			if n.Node == l.Node && n.CPU+n.Wait > surge*(l.CPU+l.Wait) {
				l.CPU, l.Wait, l.VCPUs = n.CPU, n.Wait, c.loads.vcpusOn(l.Node, now)
			}
		}
	}
	h.MoverBytesPerSecond = c.copyRate()
	return h, true
}

// copyRate is how fast this host has copied memory of guests, or else a trial; 0: not known.
func (c *Controller) copyRate() topology.Bytes {
	return cmp.Or(c.loads.copies.BytesPerSecond(), c.loads.trial)
}

func (c *Controller) addGuestLoads(guests []inventory.Guest) {
	demands := make(map[string]float64, len(c.host.sample.Guests))
	for i := range c.host.sample.Guests {
		g := &c.host.sample.Guests[i]
		demands[g.Name] = g.Load.Demand()
	}
	for i := range guests {
		g := &guests[i]
		load, ok := c.loads.history.Load(g.Name, c.window())
		if !ok {
			continue
		}
		if load.Demand() > 0 {
			load = grown(load, demands[g.Name]/load.Demand())
		}
		g.Seen.Load = &load
	}
}

// grown returns a load scaled by a factor, if that exceeds surge.
func grown(l inventory.GuestLoad, times float64) inventory.GuestLoad {
	if times > surge {
		l.CPU, l.Wait, l.MemoryMBps = l.CPU*times, l.Wait*times, l.MemoryMBps*times
	}
	return l
}
