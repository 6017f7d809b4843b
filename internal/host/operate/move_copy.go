package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// Pacer says how fast memory may be copied. It waits before a slice as long as
// it thinks right, and is told afterwards how long the slice took.
type Pacer interface {
	Before(ctx context.Context, pid int, bytes topology.Bytes) error
	After(pid int, bytes topology.Bytes, took time.Duration)
	// Rate is how fast copying goes now, in bytes a second; 0: not bounded.
	Rate() topology.Bytes
}

// How much is copied before the next guest's turn: a fraction of a second, and
// large beside the cost of a call, which disturbs every CPU. Paced, pauses are
// the shorter the smaller the slices.
const (
	sliceBytes = 128 * topology.MiB
	pacedBytes = 16 * topology.MiB
)

// slice is a piece of a mapping to be copied, or all of a process's own memory.
type slice struct{ step plan.Step }

// slicesOf cuts copies into disjoint pieces at page borders.
func slicesOf(copies []plan.Step, most topology.Bytes) []slice {
	var all []slice
	for _, s := range copies {
		if s.Kind == plan.MoveOwn {
			all = append(all, slice{step: s})
			continue
		}
		size := max(most, s.PageSize)
		for at := topology.Bytes(0); at < s.Size; at += size {
			piece := s
			piece.Address, piece.Size = s.Address+uint64(at), min(size, s.Size-at)
			piece.Bytes = topology.Bytes(float64(s.Bytes) * float64(piece.Size) / float64(s.Size))
			all = append(all, slice{step: piece})
		}
	}
	return all
}

// copy brings memory over in turns, a slice of each guest. A slice that found
// no room is tried again once others have moved; when a whole turn brings
// nothing, what is left stays and is reported.
func (m *mover) copy(ctx context.Context) {
	for ctx.Err() == nil {
		brought, left := topology.Bytes(0), false
		for waiting := true; waiting && ctx.Err() == nil; {
			waiting = false
			for _, p := range m.parts {
				if p.failed == nil && len(p.slices) > 0 {
					brought += p.copyNext(ctx)
					waiting = waiting || len(p.slices) > 0
				}
			}
		}
		for _, p := range m.parts {
			p.slices, p.again = p.again, nil
			left = left || p.failed == nil && len(p.slices) > 0
		}
		if !left {
			return
		}
		if brought == 0 {
			m.giveUp()
			return
		}
	}
}

// copyNext copies a guest's next slice and returns how much it brought.
func (p *part) copyNext(ctx context.Context) topology.Bytes {
	s := p.slices[0]
	p.slices = p.slices[1:]
	pid := p.bound.Plan.PID
	if p.Pace != nil {
		if err := p.Pace.Before(ctx, pid, s.step.Bytes); err != nil {
			p.slices = append([]slice{s}, p.slices...)
			return 0
		}
	}
	some := p.bound.Plan
	some.Steps = []plan.Step{s.step}
	p.show(p, "copies memory", 0)
	begin := p.host.Clock()
	outcomes, err := p.executor.Run(ctx, some, p.want)
	moved := topology.Bytes(0)
	if outcomes[0].Moved != nil {
		moved = outcomes[0].Moved.Moved
	}
	if p.Pace != nil {
		p.Pace.After(pid, moved, p.host.Clock().Sub(begin))
	}
	switch {
	case errors.Is(err, unix.ENOMEM):
		outcomes[0].Detail = "no room on the target yet"
		p.again = append(p.again, slice{step: s.step})
		p.bound.Outcomes = append(p.bound.Outcomes, brought(outcomes[0], moved)...)
	case ctx.Err() != nil:
		p.bound.Outcomes = append(p.bound.Outcomes, brought(outcomes[0], moved)...)
	default:
		p.bound.Outcomes = append(p.bound.Outcomes, outcomes...)
		p.failed = err
	}
	p.show(p, "copies memory", s.step.Bytes)
	return moved
}

// brought keeps of a slice that is to be tried again only what it did bring.
func brought(o apply.Outcome, moved topology.Bytes) []apply.Outcome {
	if moved == 0 {
		return nil
	}
	o.Status, o.Moved = apply.Done, &plan.Moved{Moved: moved}
	return []apply.Outcome{o}
}

// giveUp reports slices for which no turn brought room.
func (m *mover) giveUp() {
	for _, p := range m.parts {
		for _, s := range p.slices {
			p.bound.Outcomes = append(p.bound.Outcomes, apply.Outcome{Step: s.step, Status: apply.Partial,
				Detail: fmt.Sprintf("no room on nodes %s, after all other memory of the move had its turn", s.step.Nodes), Moved: &plan.Moved{Failed: s.step.Bytes}})
		}
		p.slices = nil
	}
}

// show tells what the move is doing.
func (m *mover) show(p *part, doing string, more topology.Bytes) {
	m.done += more
	if m.Progress == nil {
		return
	}
	now := status.Moving{ID: m.ID, Began: m.began, Move: m.MoveRequest.Move, Step: doing + " of " + p.bound.Plan.Guest, Done: m.done}
	for _, p := range m.parts {
		now.Total += p.bytes
	}
	if m.Pace != nil {
		now.BytesPerSecond = m.Pace.Rate()
	} else if took := m.host.Clock().Sub(m.began).Seconds(); took > 0 {
		now.BytesPerSecond = topology.Bytes(float64(m.done) / took)
	}
	m.Progress(now)
}
