package move

import (
	"context"
	"math"
	"time"

	"github.com/numavisor/numavisor/internal/decide/throttle"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Meter measures the run and wait times of a thread.
type Meter interface {
	// ThreadTimes returns how long a thread has run, and how long it was
	// runnable and waited for a CPU, since it started.
	ThreadTimes(tid int) (ran, waited time.Duration, err error)
}

// baseline is how long the guests are measured before memory is copied.
const baseline = 250 * time.Millisecond

// pacer paces one move: between slices it measures how long the guests' vCPUs
// waited, and waits itself to stay within the rate that decide/throttle allows.
type pacer struct {
	clock  func() time.Time
	meter  Meter
	bounds throttle.Bounds
	guests [][]int // threads of the vCPUs of each guest
	free   bool    // no limit applies: full speed

	last    []times // of each guest when the last slice began
	before  []float64
	rate    topology.Bytes
	copied  topology.Bytes // since last
	began   time.Time      // when last was taken
	reached topology.Bytes // bytes a second of the last slice, pauses included
	waited  time.Duration  // before the last slice
	slice   topology.Bytes // copied by the last slice
	took    time.Duration  // of the last slice
}

type times struct{ ran, waited time.Duration }

// newPacer makes the pacer of a move, for its guests as observed.
func (m *mover) newPacer(inv *inventory.Host) *pacer {
	bandwidth, used := m.bandwidth(inv)
	bounds := throttle.Of(m.host.Policy.Balance, bandwidth, used)
	bounds.MostWait = max(bounds.MostWait, m.loses())
	p := &pacer{clock: m.host.Clock, meter: m.host.Meter, bounds: bounds}
	watched := false
	for _, move := range m.guests {
		var tids []int
		if g, ok := inv.Guest(move.Guest); ok && p.meter != nil {
			for _, t := range g.Seen.Threads {
				if t.VCPU != nil {
					tids, watched = append(tids, t.TID), true
				}
			}
		}
		p.guests = append(p.guests, tids)
	}
	p.free = m.FullSpeed || !watched && p.bounds.Cap == 0
	p.rate = throttle.First(p.bounds)
	return p
}

// urgentThreads is how many threads at most copy the memory of a guest that loses
// more than copying may cost it. The kernel package allows only as many as the
// target has CPUs: with more, copying would take the CPUs of the guests there.
const urgentThreads = 4

// threads is how many threads copy the guest's memory. A guest notices a copy by
// several threads more. That is worth it where it loses more work until it is
// copied than max_guest_wait allows copying to take from it.
func (g *moving) threads(b policy.Balance) int {
	vcpus := float64(len(g.Placement.VCPUs))
	if g.Saves <= vcpus*b.WithDefaults().MaxGuestWait {
		return 1
	}
	return urgentThreads
}

// loses is the share of their time that the guests of the move lose until they
// are copied. Copying may slow them as much: a slower copy would only make them
// lose it for longer.
func (m *mover) loses() float64 {
	saves, vcpus := 0.0, 0
	for _, g := range m.guests {
		saves, vcpus = saves+g.Saves, vcpus+len(g.Placement.VCPUs)
	}
	if vcpus == 0 {
		return 0
	}
	return min(1, saves/float64(vcpus))
}

// bandwidth is the lowest measured bandwidth of the nodes that memory is copied
// between, and its part in use now, in bytes a second; 0: unknown.
func (m *mover) bandwidth(inv *inventory.Host) (least, used topology.Bytes) {
	low := math.Inf(1)
	for _, g := range m.guests {
		nodes := g.Placement.Nodes
		if seen, ok := inv.Guest(g.Guest); ok {
			for node := range seen.Seen.MemoryByNode {
				nodes = nodes.With(node)
			}
		}
		for node := range nodes.All() {
			mbps, ok := inv.Topology.Bandwidth(node, node)
			if !ok || mbps >= low {
				continue
			}
			low, used = mbps, 0
			if m.host.Traffic != nil {
				used = topology.Bytes(1e6 * m.host.Traffic(node))
			}
		}
	}
	if math.IsInf(low, 1) {
		return 0, 0
	}
	return topology.Bytes(1e6 * low), used
}

// Next waits as long as the rate requires after the last slice, measures its
// effect on the guests, and returns how much to copy next.
func (p *pacer) Next(ctx context.Context) (topology.Bytes, error) {
	began := p.clock()
	defer func() { p.waited = p.clock().Sub(began) }()
	switch {
	case p.free:
		return apply.FullSlice, ctx.Err()
	case p.last == nil:
		p.waits()
		if err := sleep(ctx, baseline); err != nil {
			return 0, err
		}
		p.before = p.waits()
	case p.copied > 0:
		if err := sleep(ctx, throttle.Pause(p.rate, p.copied, p.clock().Sub(p.began))); err != nil {
			return 0, err
		}
		s := throttle.Slice{Bytes: p.copied, Took: p.clock().Sub(p.began)}
		for i, wait := range p.waits() {
			if before := p.before[i]; wait-before >= s.Wait-s.Before {
				s.Wait, s.Before = wait, before
			}
		}
		if s.Took > 0 {
			p.reached = topology.Bytes(float64(s.Bytes) / s.Took.Seconds())
		}
		p.rate = throttle.Next(p.bounds, p.rate, s)
	}
	return throttle.Size(p.rate), nil
}

// Copied adds memory copied since the last measurement.
func (p *pacer) Copied(bytes topology.Bytes, took time.Duration) {
	p.copied, p.slice, p.took = p.copied+bytes, bytes, took
	if p.free && bytes > 0 && took > 0 {
		p.reached = topology.Bytes(float64(bytes) / took.Seconds())
	}
}

// waits returns for each guest the share of their runnable time that its vCPUs
// waited since the last measurement. Threads that have ended do not count.
func (p *pacer) waits() []float64 {
	shares := make([]float64, len(p.guests))
	now := make([]times, len(p.guests))
	for i, tids := range p.guests {
		for _, tid := range tids {
			if ran, waited, err := p.meter.ThreadTimes(tid); err == nil {
				now[i].ran, now[i].waited = now[i].ran+ran, now[i].waited+waited
			}
		}
		if p.last == nil {
			continue
		}
		ran, waited := now[i].ran-p.last[i].ran, now[i].waited-p.last[i].waited
		if ran >= 0 && waited >= 0 && ran+waited > 0 {
			shares[i] = float64(waited) / float64(ran+waited)
		}
	}
	p.last, p.copied, p.began = now, 0, p.clock()
	return shares
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
