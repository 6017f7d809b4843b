package operate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/decide/pace"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Gentle is a Pacer that asks the guest: it copies as fast as the guest's
// vCPUs bear, by their own run and wait times.
type Gentle struct {
	limits  pace.Limits
	threads func(pid int) ([]inventory.Thread, string, error)
	clock   func() time.Time

	mu     sync.Mutex
	guests map[int]*borne
}

// borne is how one guest bears it.
type borne struct {
	rate   topology.Bytes
	next   time.Time // when the next slice may begin
	marked reading   // at the end of the slice before, or at first sight
	before pace.Use  // without copying
	at     reading   // when the slice on its way began
}

// reading is what a guest's vCPUs have used at a moment.
type reading struct {
	at          time.Time
	ran, waited time.Duration
}

// baseline is how long a guest is looked at before its first slice.
const baseline = 200 * time.Millisecond

// NewGentle returns a Pacer for guests whose threads the kernel tells of.
func NewGentle(l pace.Limits, threads func(pid int) ([]inventory.Thread, string, error), clock func() time.Time) *Gentle {
	return &Gentle{limits: l, threads: threads, clock: clock, guests: map[int]*borne{}}
}

// Before waits until a guest's next slice may be copied. What the guest does
// meanwhile is what it does without copying.
func (g *Gentle) Before(ctx context.Context, pid int, _ topology.Bytes) error {
	b, err := g.of(pid)
	if err != nil {
		return err
	}
	if wait := b.next.Sub(g.clock()); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
	now, err := g.read(pid)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if use, ok := now.since(b.marked); ok {
		b.before = use
	}
	b.at = now
	return nil
}

// After takes down how a guest bore a slice, and how long the next one waits.
func (g *Gentle) After(pid int, bytes topology.Bytes, took time.Duration) {
	b, err := g.of(pid)
	if err != nil {
		return
	}
	now, err := g.read(pid)
	if err != nil {
		return // the guest has ended: the next step finds that
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if use, ok := now.since(b.at); ok && bytes > 0 {
		b.rate = pace.Next(b.rate, g.limits, b.before, use)
	}
	b.marked = now
	due := time.Duration(float64(bytes) / float64(b.rate) * float64(time.Second))
	b.next = now.at.Add(max(0, due-took))
}

// Rate is the slowest pace of the guests on their way.
func (g *Gentle) Rate() topology.Bytes {
	g.mu.Lock()
	defer g.mu.Unlock()
	rate := topology.Bytes(0)
	for _, b := range g.guests {
		if rate == 0 || b.rate < rate {
			rate = b.rate
		}
	}
	return rate
}

func (g *Gentle) of(pid int) (*borne, error) {
	g.mu.Lock()
	b := g.guests[pid]
	g.mu.Unlock()
	if b != nil {
		return b, nil
	}
	first, err := g.read(pid)
	if err != nil {
		return nil, err
	}
	b = &borne{rate: pace.First(g.limits), marked: first, next: first.at.Add(baseline)}
	g.mu.Lock()
	g.guests[pid] = b
	g.mu.Unlock()
	return b, nil
}

func (g *Gentle) read(pid int) (r reading, err error) {
	threads, _, err := g.threads(pid)
	if err != nil {
		return r, fmt.Errorf("seeing how process %d bears the copying: %w", pid, err)
	}
	for _, t := range threads {
		if t.VCPU != nil {
			r.ran += t.RunTime
			r.waited += t.WaitTime
		}
	}
	r.at = g.clock()
	return r, nil
}

// since is what was used between two readings; ok is false where they are too
// close to tell anything: the kernel counts run time by ticks of up to 10 ms.
func (r reading) since(earlier reading) (use pace.Use, ok bool) {
	took := r.at.Sub(earlier.at)
	if took < 20*time.Millisecond {
		return use, false
	}
	return pace.Use{Ran: (r.ran - earlier.ran).Seconds() / took.Seconds(), Waited: (r.waited - earlier.waited).Seconds() / took.Seconds()}, true
}
