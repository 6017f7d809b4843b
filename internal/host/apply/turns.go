package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// Pacer decides how fast to copy.
type Pacer interface {
	// Next waits until more may be copied and returns how much at once.
	Next(ctx context.Context) (topology.Bytes, error)
	// Copied reports how much the last slice copied, and how long it took.
	Copied(bytes topology.Bytes, took time.Duration)
}

// FullSlice is the size of a slice at full speed: large, so that queries and
// calls cost little relative to copying, and small enough to stop within a
// fraction of a second.
const FullSlice = 256 * topology.MiB

// Turn is one guest's part of copying: the steps of its plan that copy
// memory, and their outcomes.
type Turn struct {
	Plan     plan.Steps
	Outcomes []Outcome // one for each step
	// Threads is how many threads copy a slice; 0 is 1.
	Threads int
	// Err says why the turn ended early: a full node (ENOMEM), ErrGone, or
	// another failure.
	Err error

	copies []*copying
}

// copying is one step in progress: mappings that are cut into disjoint slices.
type copying struct {
	step   plan.Step
	parts  []plan.Part // the rest to process; the first may have begun
	again  []plan.Part // parts with pages in use, to try again
	swept  bool
	moved  plan.Moved
	took   time.Duration
	ended  bool
	full   bool  // its target had no room, and no other step has copied since
	failed error // why the step ended early, or cannot continue for now
}

// NewTurn prepares the copying of a plan's steps.
func NewTurn(p plan.Steps, copies []plan.Step) *Turn {
	t := &Turn{Plan: p}
	for _, s := range copies {
		c := &copying{step: s, parts: s.Parts, moved: plan.Moved{Why: map[string]uint64{}}}
		if s.Kind == plan.MoveRange {
			c.parts = []plan.Part{{Address: s.Address, Size: s.Size, PageSize: s.PageSize}}
		}
		c.ended = len(c.parts) == 0
		t.copies = append(t.copies, c)
	}
	return t
}

// Done returns how much memory is on its target, and how much there is to copy.
func (t *Turn) Done() (done, total topology.Bytes) {
	for _, c := range t.copies {
		total += c.step.Bytes
		if c.ended && c.failed == nil {
			done += c.step.Bytes
		} else {
			done += min(c.moved.Moved, c.step.Bytes)
		}
	}
	return done, total
}

// Turns copies memory slice by slice, one guest after the other in the given
// order: the guest memory of one is copied before that of the next one. Pages that
// were in use and the memory of the processes themselves come last, for all guests:
// they are little, take many calls, and matter least. A step without room on
// its target waits until other steps have copied a slice, so guests that make
// room for each other take turns in the smallest slices that free enough. If no
// step has room, the waiting guests end with ENOMEM. One guest's failure does not
// stop the others. The error is the end of the context, at the boundary of a
// slice: memory copied until then stays. progressed is called after each slice
// with its guest.
func (x Executor) Turns(ctx context.Context, turns []*Turn, pace Pacer, progressed func(*Turn)) error {
	for freed := false; ; { // since all steps were last tried
		t, c := next(turns)
		switch {
		case t == nil && !freed:
			for _, t := range turns {
				t.giveUp()
			}
			return nil
		case t == nil:
			freed = false
			for _, t := range turns {
				t.retry(nil)
			}
			continue
		}
		copied, err := x.slice(ctx, t, c, pace)
		if err != nil {
			return err
		}
		progressed(t)
		if copied {
			freed = true
			for _, t := range turns {
				t.retry(c)
			}
		}
	}
}

// next returns the first step that may have room, and its guest; nil if there is
// none.
func next(turns []*Turn) (*Turn, *copying) {
	for _, late := range []bool{false, true} {
		for _, t := range turns {
			for _, c := range t.copies {
				if t.Err == nil && !c.ended && !c.full && c.late() == late {
					return t, c
				}
			}
		}
	}
	return nil, nil
}

// late reports whether the step waits for the guest memory of all guests.
func (c *copying) late() bool { return c.step.Kind == plan.MoveOwn || c.swept }

// Finish writes the outcomes of all steps, finished or not.
func (t *Turn) Finish() {
	t.Outcomes = nil
	for _, c := range t.copies {
		t.Outcomes = append(t.Outcomes, c.outcome())
	}
}

// Leave ends the copying of what has not been copied. The caller leaves that for
// another time, so it does not count as missing.
func (t *Turn) Leave() {
	for _, c := range t.copies {
		c.parts, c.again, c.ended, c.failed = nil, nil, true, nil
	}
}

// giveUp ends the steps that found no room.
func (t *Turn) giveUp() {
	for _, c := range t.copies {
		if !c.ended && t.Err == nil {
			t.Err = c.failed // the first
		}
	}
}

// retry lets the steps that found no room try again, except the one that has
// just been tried.
func (t *Turn) retry(tried *copying) {
	for _, c := range t.copies {
		c.full = c.full && c == tried
	}
}

// slice copies one slice of a guest. It reports whether it made progress; the
// error is the context's.
func (x Executor) slice(ctx context.Context, t *Turn, c *copying, pace Pacer) (bool, error) {
	size, err := pace.Next(ctx)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return false, err
	}
	if gone := StillThere(x.Kernel, t.Plan.Basis); gone != nil {
		t.Err, c.failed = gone, gone
		return false, nil //nolint:nilerr // the turn has the error; other guests' turns go on
	}
	part := cut(&c.parts, size)
	s := c.step
	s.Address, s.Size, s.PageSize = part.Address, part.Size, part.PageSize
	s.Quick, s.Threads = !c.swept, t.Threads
	begin := x.Clock()
	moved, err := x.Kernel.Move(ctx, t.Plan.PID, s, func(topology.Bytes, topology.Bytes) {})
	took := x.Clock().Sub(begin)
	pace.Copied(moved.Moved, took)
	c.took += took
	c.moved.Moved += moved.Moved
	if err == nil {
		c.failed = nil
		c.account(part, moved)
		return true, nil
	}
	c.parts = append([]plan.Part{part}, c.parts...) // try it again
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	c.failed = fmt.Errorf("%s: %w", c.step, err)
	if !errors.Is(err, unix.ENOMEM) {
		if gone := StillThere(x.Kernel, t.Plan.Basis); gone != nil {
			c.failed = fmt.Errorf("%s: %w (%w)", c.step, gone, err)
		}
		t.Err = c.failed
		return false, nil
	}
	c.full = true // another step's node may have room
	return moved.Moved > 0, nil
}

// account adds a processed slice to the outcome. Pages in use are tried once
// more when all the rest is done: most are in use for a moment only.
func (c *copying) account(part plan.Part, moved plan.Moved) {
	if moved.Failed > 0 && !c.swept {
		c.again = append(c.again, part)
	} else {
		c.moved.Failed += moved.Failed
		for why, pages := range moved.Why {
			c.moved.Why[why] += pages
		}
	}
	if len(c.parts) == 0 && !c.swept {
		c.parts, c.again, c.swept = c.again, nil, true
	}
	c.ended = len(c.parts) == 0
}

// cut takes a slice off the first part.
func cut(parts *[]plan.Part, size topology.Bytes) plan.Part {
	all := *parts
	slice := all[0]
	page := max(slice.PageSize, topology.KiB)
	if size = max(size-size%page, page); slice.Size <= size {
		*parts = all[1:]
		return slice
	}
	slice.Size = size
	rest := plan.Part{Address: all[0].Address + uint64(size), Size: all[0].Size - size, PageSize: all[0].PageSize}
	*parts = append([]plan.Part{rest}, all[1:]...)
	return slice
}

func (c *copying) outcome() Outcome {
	o := Outcome{Step: c.step, Status: Done, Moved: &c.moved, Took: c.took}
	switch {
	case c.failed != nil:
		o.Status, o.Detail = Failed, c.failed.Error()
	case !c.ended:
		o.Status, o.Detail, o.Unfinished = Partial, "stopped early", true
		if c.took == 0 {
			o = Outcome{Step: c.step, Status: Skipped}
		}
	case c.step.Kind == plan.MoveOwn:
		return ownOutcome(o)
	case c.moved.Failed > 0:
		o.Status, o.Detail = Partial, c.moved.Shortfall()
	}
	return o
}
