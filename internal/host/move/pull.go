package move

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/numavisor/numavisor/internal/decide/order"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// pullEvery is the time between two readings of where the memory is. One reading
// costs as much as a sample of the guests.
const pullEvery = 500 * time.Millisecond

// pulled are the guests whose memory the kernel brings to their vCPUs before the
// rest is copied; none unless Request.Pull.
func (m *mover) pulled(inv *inventory.Host) (chosen []*moving) {
	balancing, err := strconv.Atoi(inv.Kernel.NUMABalancing)
	if !m.Pull || err != nil || balancing < 0 || m.host.Policy.Movers.KernelBalancing == policy.AnswerOff ||
		m.Move.Benefit.WaitCPUs > m.Move.Benefit.AccessCPUs || m.exposed(inv) {
		return nil
	}
	var pulls []order.Pull
	for _, g := range m.guests {
		seen, _ := inv.Guest(g.Guest)
		if p := g.pull(seen, &inv.Topology); p.Possible() {
			chosen, pulls = append(chosen, g), append(pulls, p)
		}
	}
	if !order.Pays(pulls, 0) {
		return nil
	}
	return chosen
}

// pull describes the guest's memory for the kernel's hinting faults.
func (g *moving) pull(seen *inventory.Guest, t *topology.Topology) order.Pull {
	p := order.Pull{Targets: g.Placement.Nodes.Len(), Loses: g.Saves, VCPUs: len(g.Placement.VCPUs)}
	_, p.Bytes = g.turn.Done()
	for _, r := range seen.Seen.Ranges {
		if r.Policy != "default" || r.Backing != "anonymous" {
			continue
		}
		for node, bytes := range r.ByNode {
			if !g.Placement.Nodes.Contains(node) {
				p.Movable += bytes
			}
		}
	}
	for node := range g.Placement.Nodes.All() {
		if n, ok := t.Node(node); ok {
			p.Free += n.Free + n.Reclaimable
		}
	}
	return p
}

// exposed reports whether kernel balancing, which acts on all processes, would move
// memory of a guest that is not part of the move: one that Numavisor has not placed
// and whose memory is not where its vCPUs run. With kernel balancing on, that happens anyway.
func (m *mover) exposed(inv *inventory.Host) bool {
	if inv.Kernel.NUMABalancing != "0" {
		return false
	}
	for i := range inv.Guests {
		g := &inv.Guests[i]
		if g.Placement != nil || slices.Contains(m.Move.Names(), g.Name) || g.State != "running" {
			continue
		}
		near := g.VCPUNodes(&inv.Topology)
		for node := range g.Seen.MemoryByNode {
			if !near.Contains(node) || near.Len() > 1 {
				return true
			}
		}
	}
	return false
}

// pull lets the kernel bring memory to the vCPUs of the guests for which that is
// the better mover, until it gets slower than copying. Its error is the end of the
// context; without kernel balancing all memory is copied.
func (m *mover) pull(ctx context.Context) error {
	var guests []*moving
	for _, g := range m.order {
		if g.pulls && g.err == nil {
			guests = append(guests, g)
		}
	}
	if len(guests) == 0 || m.refused() != nil {
		return nil
	}
	restore, err := m.balance(ctx)
	if err != nil {
		m.note("the kernel does not bring memory to the vCPUs: " + err.Error())
		return nil //nolint:nilerr // noted; all memory is copied instead
	}
	stopped := m.watchPull(ctx, guests)
	if err := restore(); err != nil {
		m.unrecorded = errors.Join(m.unrecorded, err)
	}
	return stopped
}

// balance enables kernel balancing, unless it is, and returns how to restore it.
// The setting is in the journal as one that the daemon holds: after a kill, its
// start restores the former value.
func (m *mover) balance(ctx context.Context) (restore func() error, err error) {
	now, err := m.host.Settings.ReadSetting(plan.NUMABalancingPath)
	if err != nil {
		return nil, err
	}
	mode, err := strconv.Atoi(now)
	if err != nil || mode&1 == 1 {
		return func() error { return nil }, err
	}
	on := strconv.Itoa(mode | 1)
	why := "the kernel brings memory to the vCPUs of " + m.Move.String()
	_, err = m.host.Fix(ctx, operate.FixRequest{Held: true, Remedy: plan.Remedy{
		Kind: plan.WriteSetting, Path: plan.NUMABalancingPath, From: now, Value: on, Why: why}})
	if err != nil {
		return nil, err
	}
	return func() error {
		_, err := m.host.Fix(context.WithoutCancel(ctx), operate.FixRequest{Remedy: plan.Remedy{
			Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath, From: on, Value: now, Why: why + ": done"}})
		return err
	}, nil
}

// watchPull waits until the kernel has brought the memory, or is slower than
// copying would be.
func (m *mover) watchPull(ctx context.Context, guests []*moving) error {
	var all topology.Bytes
	left := make([]topology.Bytes, len(guests))
	for i, g := range guests {
		_, left[i] = g.turn.Done()
		all += left[i]
	}
	var own topology.Bytes // our rate; 0: not known
	if m.Move.Cost.RateMeasured {
		own = m.Move.Cost.BytesPerSecond
	}
	var state order.Pulling
	for began := m.elapsed(); ; {
		from := m.elapsed()
		if err := sleep(ctx, pullEvery); err != nil {
			return err
		}
		var sum topology.Bytes
		for i, g := range guests {
			now, ok := m.misplaced(g)
			if !ok {
				now = left[i] // the guest has ended, or its memory cannot be read: copying finds out
			}
			now = min(now, left[i])
			m.trace.Add(g.Guest, journal.TracePull, from, m.elapsed(), left[i]-now)
			m.fetched += left[i] - now
			left[i], sum = now, sum+now
		}
		m.tell("the kernel brings memory to the vCPUs", 0)
		if !state.Continue(m.elapsed()-began, sum, all, own) {
			return nil
		}
	}
}

// misplaced is how much of a guest's memory is not on its nodes.
func (m *mover) misplaced(g *moving) (sum topology.Bytes, ok bool) {
	byNode, _, err := m.host.Sources.Kernel.Memory(g.seen)
	if err != nil {
		return 0, false
	}
	for node, bytes := range byNode {
		if !g.Placement.Nodes.Contains(node) {
			sum += bytes
		}
	}
	return sum, true
}
