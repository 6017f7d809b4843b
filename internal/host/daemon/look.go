package daemon

import (
	"context"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
)

// watch takes a sample, and puts its figures into the inventory.
func (s *state) watch() {
	s.sample = s.d.Watcher.Sample()
	s.totals.Samples++
	s.history.Add(s.sample)
	seen := make(map[string]*inventory.GuestSample, len(s.sample.Guests))
	for i := range s.sample.Guests {
		seen[s.sample.Guests[i].Name] = &s.sample.Guests[i]
	}
	for i := range s.host.Guests {
		g := &s.host.Guests[i]
		if now := seen[g.Name]; now != nil && now.PID == g.PID && len(now.MemoryByNode) > 0 {
			g.Seen.MemoryByNode, g.Seen.MemorySource = now.MemoryByNode, now.MemorySource
		}
	}
	for _, n := range s.sample.Nodes {
		for i := range s.host.Topology.Nodes {
			if node := &s.host.Topology.Nodes[i]; node.ID == n.Node {
				node.Free = n.Free
				if len(n.HugePages) == len(node.HugePages) {
					node.HugePages = n.HugePages
				}
			}
		}
	}
}

// startLook reads the host anew where that is due: beside the loop, for libvirt may take its time.
func (s *state) startLook(ctx context.Context) {
	if s.d.Roster != nil {
		if roster := s.d.Roster(); roster != s.roster {
			s.roster = roster
			s.lookSoon()
		}
	}
	if s.looking || !s.due && !s.looked.IsZero() && time.Since(s.looked) < s.d.Look {
		return
	}
	s.looking, s.due, s.anew = true, false, true
	s.d.beside(ctx, func() func(*state) {
		ctx, cancel := context.WithTimeout(ctx, lookTime)
		defer cancel()
		begin := time.Now()
		h, err := s.d.Host.Observe(ctx)
		s.d.Log.Debug("looked at the host", "took", time.Since(begin), "guests", len(h.Guests))
		return func(s *state) { s.see(h, err) }
	})
}

// see takes over what was read of the host.
func (s *state) see(h inventory.Host, err error) {
	s.looking = false
	first := s.looked.IsZero()
	s.looked = time.Now()
	if err != nil {
		if s.blind != err.Error() { // it is tried every second, and may be so for days
			s.d.Log.Warn("the host could not be looked at; what is known of it is kept", "error", err)
		}
		s.blind = err.Error()
		if first {
			s.looked = time.Time{}
		}
		return
	}
	s.blind = ""
	s.host, s.stale = h, s.stale && !s.anew
	s.follow()
	if !s.stale { // what moved since may have been seen half-way
		s.noteDrift()
	}
	s.forget()
}

// follow has the guests watched that there are now. As long as nodes and CPUs
// are the same, the watcher keeps its rates.
func (s *state) follow() {
	t := s.host.Topology
	if s.followed == nil || !s.followed.CPUSet().Equal(t.CPUSet()) || !s.followed.NodeSet().Equal(t.NodeSet()) {
		s.followed = &t
	}
	s.d.Watcher.Follow(s.host.Guests, s.followed)
}

// lookSoon has the host looked at in the next turn; where it is just being
// looked at, once more: that look may have missed what changed.
func (s *state) lookSoon() { s.due = true }

// withLoads is the inventory as a plan wants it: with what guests asked for
// lately, and how fast memory was copied. Where the latest sample shows much more
// than the mean, that counts: a guest that has just begun to work must not be
// taken for a small one, and find the node full that it was sent to.
func (s *state) withLoads() inventory.Host {
	h := s.host
	h.Taken = time.Now().UTC()
	h.Guests = append([]inventory.Guest(nil), h.Guests...)
	asked := make(map[string]float64, len(s.sample.Guests))
	for i := range s.sample.Guests {
		asked[s.sample.Guests[i].Name] = s.sample.Guests[i].Load.Demand()
	}
	for i := range h.Guests {
		if load, ok := s.history.Load(h.Guests[i].Name, means); ok {
			if demand := asked[h.Guests[i].Name]; load.Demand() > 0 {
				load = grown(load, demand/load.Demand())
			}
			h.Guests[i].Seen.Load = &load
		}
	}
	h.Load = s.history.NodeLoads(means)
	for i := range h.Load {
		for _, n := range s.sample.Nodes {
			if l := &h.Load[i]; n.Node == l.Node && n.CPU+n.Wait > begun*(l.CPU+l.Wait) {
				l.CPU, l.Wait = n.CPU, n.Wait
			}
		}
	}
	h.MoverBytesPerSecond = s.copies.BytesPerSecond()
	return h
}

// begun is how many times its mean a load is that has just begun: less is noise.
const begun = 1.5

// grown is a load that asks for more, in the same proportions.
func grown(l inventory.GuestLoad, times float64) inventory.GuestLoad {
	if times > begun {
		l.CPU, l.Wait, l.MemoryMBps = l.CPU*times, l.Wait*times, l.MemoryMBps*times
	}
	return l
}

// forget drops what is kept of guests that are gone.
func (s *state) forget() {
	pids, names := map[int]bool{}, map[string]bool{}
	for _, g := range s.host.Guests {
		pids[g.PID], names[g.Name] = true, true
	}
	for pid := range s.told {
		if !pids[pid] {
			delete(s.told, pid)
		}
	}
	for name := range s.drifted {
		if !names[name] {
			delete(s.drifted, name)
		}
	}
}
