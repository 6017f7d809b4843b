// Package apply carries plans out step by step and reports the outcome of each
// step. It decides nothing: it stops where going on would make things worse,
// and reports exactly which steps were done and which were not.
//
// A guest never depends on apply: every step leaves it running. Since the
// intent is recorded first, an interrupted plan shows as drift of the guest,
// and binding it again finishes the work.
package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrGone means that the guest ended, or was replaced by another process of
// the same name, since the plan was made.
var ErrGone = errors.New("the VM is not the one that the plan was made for")

// ErrUnread means that it is unknown whether a guest's process has ended: it
// could not be read. A later attempt can succeed.
var ErrUnread = errors.New("the VM's process could not be read")

// Kernel are the functions of the host's kernel that apply needs.
type Kernel interface {
	// StartTicks identifies a process even if the kernel reuses its number. The
	// error wraps unix.ESRCH only if the process has ended.
	StartTicks(pid int) (uint64, error)
	// SetMems writes cpuset.mems of every thread group of the guest, and reads
	// it back.
	SetMems(ctx context.Context, pid int, nodes topology.NodeSet) error
	SetAffinity(tid int, cpus topology.CPUSet) error
	// SetFilePolicy gives the memfd memory mapped at an address a policy for pages not touched yet.
	SetFilePolicy(pid int, address uint64, mode guest.MemoryMode, nodes topology.NodeSet) error
	// Move copies the pages of one mapping that are on other nodes to s.Nodes.
	Move(ctx context.Context, pid int, s plan.Step, progress func(done, total topology.Bytes)) (plan.Moved, error)
	// GrowPool adds pages to a node's huge page pool and returns how many it
	// added.
	GrowPool(node topology.NodeID, size topology.Bytes, pages uint64) (uint64, error)
	// ShrinkPool takes free pages out of a node's pool and returns how many it
	// took.
	ShrinkPool(node topology.NodeID, size topology.Bytes, pages uint64) (uint64, error)
}

// Hypervisor are the functions of the VM's hypervisor that apply needs.
type Hypervisor interface {
	PinVCPU(ctx context.Context, name string, v guest.VCPUID, cpus topology.CPUSet) error
	PinEmulator(ctx context.Context, name string, cpus topology.CPUSet) error
	PinIOThread(ctx context.Context, name string, id int, cpus topology.CPUSet) error
	// TuneLive sets mode restrictive and a nodeset on the running guest.
	TuneLive(ctx context.Context, name string, nodes topology.NodeSet) error
	// Record stores the intent in the guest's metadata.
	Record(ctx context.Context, name string, intent guest.Intent) error
	// Forget removes the intent: the guest is unmanaged again.
	Forget(ctx context.Context, name string) error
	// Configure writes the placement into the stored configuration.
	Configure(ctx context.Context, name string, intent guest.Intent) error
	// StoredBinding returns the part of the stored configuration that Configure
	// and the pins change, without the intent, as text in the hypervisor's own form. It has no
	// secrets. A guest without a stored configuration is guest.ErrTransient.
	StoredBinding(ctx context.Context, name string) (string, error)
	// RestoreBinding writes a result of StoredBinding back; the running guest and
	// the rest of its stored configuration stay.
	RestoreBinding(ctx context.Context, name, former string) error
}

// Status is the result of a step.
type Status string

// Results of a step.
const (
	Done    Status = "done"
	Partial Status = "partial"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Outcome is the outcome of one step.
type Outcome struct {
	Step   plan.Step     `json:"step"`
	Status Status        `json:"status"`
	Detail string        `json:"detail,omitempty"`
	Moved  *plan.Moved   `json:"moved,omitempty"`
	Took   time.Duration `json:"took_ns"`
	// Run is the guest's new run, if the step made it again; see Runs.
	Run string `json:"run,omitempty"`
	// Unfinished means that copying ended before all of the step's memory was visited.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Arrived returns how much of the step's memory is on its target: what was moved
// there and, if all of it was visited, what was found there.
func (o Outcome) Arrived() topology.Bytes {
	switch {
	case o.Moved == nil:
		return 0
	case o.Unfinished || o.Status == Failed:
		return min(o.Step.Bytes, o.Moved.Moved)
	}
	return o.Step.Bytes - min(o.Step.Bytes, o.Moved.Failed)
}

// Progress is called while memory is copied.
type Progress func(step plan.Step, done, total topology.Bytes)

// Executor carries plans out on one host.
type Executor struct {
	Kernel     Kernel
	Hypervisor Hypervisor // nil for plain processes
	Clock      func() time.Time
	Progress   Progress // may be nil
}

// Run carries out a plan. It returns an outcome for every step, including those
// that it did not reach. The error says why it stopped early; it wraps ErrGone
// if the guest no longer exists.
func (x Executor) Run(ctx context.Context, p plan.Steps, intent guest.Intent) ([]Outcome, error) {
	outcomes := make([]Outcome, 0, len(p.Steps))
	var stop error
	for _, s := range p.Steps {
		if stop == nil {
			stop = x.guard(ctx, p)
		}
		if stop != nil {
			outcomes = append(outcomes, Outcome{Step: s, Status: Skipped})
			continue
		}
		begin := x.Clock()
		o, err := x.step(ctx, p, s, intent)
		o.Step, o.Took = s, x.Clock().Sub(begin)
		if o.Run != "" {
			p.Basis.Run = o.Run // from here on the plan is for this run
		}
		if err != nil {
			o.Status, o.Detail = Failed, err.Error()
			stop = fmt.Errorf("%s: %w", s, err)
			if gone := x.guard(context.WithoutCancel(ctx), p); gone != nil {
				stop = fmt.Errorf("%s: %w (%w)", s, gone, err)
			}
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, stop
}

// guard refuses to go on if the context has ended or the guest is not the
// plan's.
func (x Executor) guard(ctx context.Context, p plan.Steps) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return Still(ctx, x.Kernel, x.Hypervisor, p.Guest, p.Basis)
}

// Still returns ErrGone if the guest of a plan has ended or was restarted, and ErrUnread if that is unknown.
func Still(ctx context.Context, k Kernel, h Hypervisor, name string, b plan.Basis) error {
	if err := StillThere(k, b); err != nil {
		return err
	}
	return StillRuns(ctx, h, name, b)
}

// Runs is a hypervisor whose guests have no process on this host.
type Runs interface {
	// RunOf identifies the present run of a guest, as inventory.Guest.Run does.
	RunOf(ctx context.Context, name string) (string, error)
}

// StillRuns returns ErrGone if a guest without a process has ended or was restarted since the plan was made.
func StillRuns(ctx context.Context, h Hypervisor, name string, b plan.Basis) error {
	runs, ok := h.(Runs)
	if !ok || b.Run == "" {
		return nil
	}
	run, err := runs.RunOf(ctx, name)
	switch {
	case errors.Is(err, guest.ErrNotFound):
		return fmt.Errorf("%w: VM %s has ended", ErrGone, name)
	case err != nil:
		return fmt.Errorf("%w: VM %s: %w", ErrUnread, name, err)
	case run != b.Run:
		return fmt.Errorf("%w: VM %s was restarted: its number was %s and is %s", ErrGone, name, b.Run, run)
	}
	return nil
}

// StillThere returns ErrGone if a plan's process has ended or another process
// has its number, and ErrUnread if that is unknown. It does nothing for a plan
// without a process.
func StillThere(k Kernel, b plan.Basis) error {
	if b.PID == 0 {
		return nil
	}
	ticks, err := startTicks(k, b.PID)
	if err != nil {
		return err
	}
	if ticks != b.StartTicks {
		return fmt.Errorf("%w: its process ID %d now belongs to another process", ErrGone, b.PID)
	}
	return nil
}

// startTicks returns ErrGone if a process has ended, ErrUnread if it could not be read.
func startTicks(k Kernel, pid int) (uint64, error) {
	ticks, err := k.StartTicks(pid)
	if errors.Is(err, unix.ESRCH) {
		return 0, fmt.Errorf("%w: process %d has ended", ErrGone, pid)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: process %d: %w", ErrUnread, pid, err)
	}
	return ticks, nil
}

func (x Executor) step(ctx context.Context, p plan.Steps, s plan.Step, intent guest.Intent) (Outcome, error) {
	done := Outcome{Status: Done}
	switch s.Kind {
	case plan.Record:
		return done, x.Hypervisor.Record(ctx, p.Guest, intent)
	case plan.Configure:
		return done, x.Hypervisor.Configure(ctx, p.Guest, intent)
	case plan.PinVCPU:
		if soft, ok := x.Hypervisor.(SoftPinner); ok && !s.Prefer.IsEmpty() {
			return done, soft.PinVCPUSoft(ctx, p.Guest, s.VCPU, s.CPUs, s.Prefer)
		}
		return done, x.Hypervisor.PinVCPU(ctx, p.Guest, s.VCPU, s.CPUs)
	case plan.PinHelper:
		return done, x.Hypervisor.PinEmulator(ctx, p.Guest, s.CPUs)
	case plan.PinIO:
		return done, x.Hypervisor.PinIOThread(ctx, p.Guest, s.IOThread, s.CPUs)
	case plan.TuneLive:
		return done, x.Hypervisor.TuneLive(ctx, p.Guest, s.Nodes)
	case plan.AllowNodes, plan.HoldNodes:
		return done, x.Kernel.SetMems(ctx, p.PID, s.Nodes)
	case plan.Affinity:
		return done, x.Kernel.SetAffinity(s.TID, s.CPUs)
	case plan.SetPolicy:
		return done, x.Kernel.SetFilePolicy(p.PID, s.Address, s.Mode, s.Nodes)
	case plan.MoveRange:
		return x.move(ctx, p, s)
	case plan.MoveOwn:
		return x.moveOwn(ctx, p, s)
	case plan.Recreate:
		return x.recreate(ctx, p, s)
	case plan.GrowPool:
		return pool(x.Kernel.GrowPool, s)
	case plan.ShrinkPool:
		return pool(x.Kernel.ShrinkPool, s)
	}
	return Outcome{}, fmt.Errorf("unknown kind of step %q", s.Kind)
}

// SoftPinner is a hypervisor whose vCPUs prefer some of the CPUs on which they may run.
type SoftPinner interface {
	PinVCPUSoft(ctx context.Context, name string, v guest.VCPUID, cpus, prefer topology.CPUSet) error
}

// Recreator is a hypervisor that can make a running guest again on this host.
type Recreator interface {
	// Recreate makes the guest again with its vCPUs and its memory as placed, and lets it take over; the former one
	// ends. It returns the new run (see Runs). On error the former guest runs on, unless the error says otherwise.
	// The definition is the operator's; empty: the hypervisor's own.
	Recreate(ctx context.Context, name string, placed guest.Placement, definition []byte) (run string, err error)
}

func (x Executor) recreate(ctx context.Context, p plan.Steps, s plan.Step) (Outcome, error) {
	again, ok := x.Hypervisor.(Recreator)
	if !ok {
		return Outcome{}, fmt.Errorf("VM %s: its hypervisor cannot make it again", p.Guest)
	}
	run, err := again.Recreate(ctx, p.Guest, p.Placement, s.Definition)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Status: Done, Run: run, Moved: &plan.Moved{Moved: s.Bytes}}, nil
}

func (x Executor) move(ctx context.Context, p plan.Steps, s plan.Step) (Outcome, error) {
	moved, err := x.Kernel.Move(ctx, p.PID, s, func(done, total topology.Bytes) {
		if x.Progress != nil {
			x.Progress(s, done, total)
		}
	})
	o := Outcome{Status: Done, Moved: &moved}
	if moved.Failed > 0 {
		o.Status, o.Detail = Partial, moved.Shortfall()
	}
	return o, err
}

// ownPasses is how often moveOwn asks for pages that were in use.
const ownPasses = 3

// moveOwn copies the process's own memory. A running QEMU uses some of these
// pages at any moment, so moveOwn asks again for those that stay behind while
// more than a tolerated remainder of them does, and fewer with each pass.
func (x Executor) moveOwn(ctx context.Context, p plan.Steps, s plan.Step) (Outcome, error) {
	var sum plan.Moved
	for pass, before := 1, topology.Bytes(0); pass <= ownPasses; pass, before = pass+1, sum.Failed {
		sum.Failed = 0
		for _, part := range s.Parts {
			one := s
			one.Address, one.Size, one.PageSize = part.Address, part.Size, part.PageSize
			moved, err := x.Kernel.Move(ctx, p.PID, one, func(topology.Bytes, topology.Bytes) {})
			sum.Moved += moved.Moved
			sum.Failed += moved.Failed
			if err != nil {
				return Outcome{Status: Partial, Moved: &sum}, err
			}
		}
		if sum.Failed <= toleratedOf(s) || pass > 1 && sum.Failed >= before {
			break
		}
	}
	return ownOutcome(Outcome{Step: s, Status: Done, Moved: &sum}), nil
}

// ownOutcome decides whether the process's own memory that stays behind is a
// shortfall.
func ownOutcome(o Outcome) Outcome {
	if o.Moved.Failed > 0 {
		o.Detail = fmt.Sprintf("%v left behind, in use", o.Moved.Failed)
	}
	if o.Moved.Failed > toleratedOf(o.Step) {
		o.Status = Partial
	}
	return o
}

// toleratedOf returns how much of a process's own memory may stay behind: the
// kernel or QEMU itself always uses a few of these pages.
func toleratedOf(s plan.Step) topology.Bytes { return max(topology.MiB, s.Bytes/50) }

func pool(change func(topology.NodeID, topology.Bytes, uint64) (uint64, error), s plan.Step) (Outcome, error) {
	got, err := change(s.Node, s.PageSize, s.Pages)
	o := Outcome{Status: Done}
	if got < s.Pages {
		o.Status, o.Detail = Partial, fmt.Sprintf("%d of %d pages: node %d has no more unfragmented free memory", got,
			s.Pages, s.Node)
	}
	return o, err
}

// Complete reports whether every step was done in full.
func Complete(outcomes []Outcome) bool {
	for _, o := range outcomes {
		if o.Status != Done {
			return false
		}
	}
	return true
}

// Basis identifies the process that a plan is made for.
func Basis(k Kernel, g inventory.Guest) (plan.Basis, error) {
	if g.PID == 0 {
		return plan.Basis{Run: g.Run}, nil // its hypervisor runs it without a process on this host
	}
	ticks, err := startTicks(k, g.PID)
	if err != nil {
		return plan.Basis{}, fmt.Errorf("VM %s: %w", g.Name, err)
	}
	return plan.Basis{PID: g.PID, StartTicks: ticks}, nil
}
