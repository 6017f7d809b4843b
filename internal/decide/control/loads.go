package control

import (
	"time"

	"github.com/numavisor/numavisor/internal/decide/throttle"
	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
)

// loads is what was measured.
type loads struct {
	history *history.History
	copies  throttle.Copies // of moves made on this host
}

// means is the time over which loads are averaged before a plan is made of them.
const means = 10 * time.Second

// begun is how many times its mean a load is that has just begun: less is noise.
const begun = 1.5

func newLoads() loads { return loads{history: history.New(history.Options{})} }

// remember learns from a move that ended how fast memory is copied here.
func (l *loads) remember(e journal.Entry) {
	if e.Ends() {
		l.copies = l.copies.With(throttle.Copy{Bytes: e.Moved, Took: e.Copied})
	}
}

// History returns the samples of the last hour.
func (c *Controller) History() *history.History { return c.loads.history }

// Inventory returns the host as a plan at this time uses it: as last observed,
// with the recent demand of guests and nodes and the rate of copying. ok is
// false before the first observation. Where the latest sample shows much more
// than the mean, the sample counts: a guest that has just begun to work must not
// be taken for a small one and sent to a node that is too full for it.
func (c *Controller) Inventory(now time.Time) (h inventory.Host, ok bool) {
	if c.host.knowledge == unknown {
		return inventory.Host{}, false
	}
	h = c.host.inventory
	h.Taken = now.UTC()
	h.Guests = append([]inventory.Guest(nil), h.Guests...)
	c.addGuestLoads(h.Guests)
	h.Load = c.loads.history.NodeLoads(means)
	for i := range h.Load {
		for _, n := range c.host.sample.Nodes {
			if l := &h.Load[i]; n.Node == l.Node && n.CPU+n.Wait > begun*(l.CPU+l.Wait) {
				l.CPU, l.Wait = n.CPU, n.Wait
			}
		}
	}
	h.MoverBytesPerSecond = c.loads.copies.BytesPerSecond()
	return h, true
}

func (c *Controller) addGuestLoads(guests []inventory.Guest) {
	demands := make(map[string]float64, len(c.host.sample.Guests))
	for i := range c.host.sample.Guests {
		g := &c.host.sample.Guests[i]
		demands[g.Name] = g.Load.Demand()
	}
	for i := range guests {
		g := &guests[i]
		load, ok := c.loads.history.Load(g.Name, means)
		if !ok {
			continue
		}
		if load.Demand() > 0 {
			load = grown(load, demands[g.Name]/load.Demand())
		}
		g.Seen.Load = &load
	}
}

// grown returns a load that asks for more, in the same proportions.
func grown(l inventory.GuestLoad, times float64) inventory.GuestLoad {
	if times > begun {
		l.CPU, l.Wait, l.MemoryMBps = l.CPU*times, l.Wait*times, l.MemoryMBps*times
	}
	return l
}
