package move

import (
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	// idleFor is for how long a guest's vCPUs must hardly have worked before its memory is left: programs pause.
	idleFor = 3 * time.Second
	// usedEvery is the least time between two readings of the vCPUs' times.
	usedEvery = time.Second
)

// vcpuUse is how much the vCPUs of a guest work. Times are counted from the beginning of the move.
type vcpuUse struct {
	threads []int // of the vCPUs; none: the guest's memory is not left
	wanted  time.Duration
	read    time.Duration // when they had run and waited for a CPU so long
	worked  time.Duration // when they were last seen to work
}

// watchUse begins to watch guests whose memory is left once they hardly work: those that worked when the move was
// planned, if all targets have room for what comes to them without what leaves them. A rollback watches none: it brings
// all memory back.
func (m *mover) watchUse(inv *inventory.Host) {
	least := m.host.Policy.Balance.WithDefaults().MinCPUDemand
	if !m.Later || m.host.Meter == nil || !m.fits(inv) {
		return
	}
	for _, g := range m.guests {
		if g.Demand < least {
			continue
		}
		for _, t := range g.seen.Seen.Threads {
			if t.VCPU != nil {
				g.use.threads = append(g.use.threads, t.TID)
			}
		}
		g.use.wanted = m.wanted(g)
	}
}

// fits reports whether the target nodes have room for all the memory that the move brings to them.
func (m *mover) fits(inv *inventory.Host) bool {
	for _, g := range m.guests {
		var room, comes topology.Bytes
		for node := range g.Placement.Nodes.All() {
			if n, ok := inv.Topology.Node(node); ok {
				room += n.Free + n.Reclaimable
			}
		}
		for _, other := range m.guests {
			if other.Placement.Nodes.Intersect(g.Placement.Nodes).Len() > 0 {
				_, bytes := other.turn.Done()
				comes += bytes
			}
		}
		if comes > room {
			return false
		}
	}
	return true
}

// wanted returns how long the vCPUs of a guest have run and waited for a CPU since they started.
func (m *mover) wanted(g *moving) (sum time.Duration) {
	for _, tid := range g.use.threads {
		if ran, waited, err := m.host.Meter.ThreadTimes(tid); err == nil {
			sum += ran + waited
		}
	}
	return sum
}

// hardlyWorks reports whether the vCPUs of a guest have hardly worked for some seconds. It reads their times.
func (m *mover) hardlyWorks(g *moving) bool {
	u, now := &g.use, m.elapsed()
	if len(u.threads) == 0 {
		return false
	}
	if since := now - u.read; since >= usedEvery {
		wanted, least := m.wanted(g), m.host.Policy.Balance.WithDefaults().MinCPUDemand
		if (wanted - u.wanted).Seconds() >= least*since.Seconds() {
			u.worked = now
		}
		u.wanted, u.read = wanted, now
	}
	return now-u.worked >= idleFor
}

// allIdle reports whether none of the guests has worked for some seconds. It reads the times of all of them.
func (m *mover) allIdle(guests []*watched) bool {
	idle := 0
	for _, g := range guests {
		if m.hardlyWorks(g.moving) {
			idle++
		}
	}
	return idle == len(guests)
}

// allPause reports whether no guest of the move has worked for some seconds, including those whose memory stays where
// it is. It reads the times of all of them.
func (m *mover) allPause() bool {
	pause := true
	for _, g := range m.guests {
		pause = m.hardlyWorks(g) && pause
	}
	return pause
}

// leaveIdle leaves the memory of guests that hardly work any more: nothing depends on it, and copying takes time
// from the others. Once such a guest works again, it may move at once.
func (m *mover) leaveIdle() {
	for _, g := range m.order {
		done, total := g.turn.Done()
		if done >= total || g.err != nil || !m.hardlyWorks(g) {
			continue
		}
		m.note(fmt.Sprintf("VM %s hardly works any more: %v of its memory wait for a quiet time", g.Guest, total-done))
		g.turn.Leave()
		g.left, g.cold, g.partly, g.idle = true, true, true, true
	}
}
