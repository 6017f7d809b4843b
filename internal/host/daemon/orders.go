package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

var _ hostapi.Daemon = (*Daemon)(nil)

// ask runs a function in the loop and returns its result. It fails if ctx ends
// first, or the loop has ended.
func ask[T any](ctx context.Context, d *Daemon, do func(*loop) (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	answers := make(chan answer, 1)
	select {
	case d.asks <- func(l *loop) {
		result, err := do(l)
		answers <- answer{result, err}
	}:
	case <-ctx.Done():
		return result, fmt.Errorf("asking the daemon: %w", ctx.Err())
	case <-d.stopped:
		return result, ErrStopped
	}
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
		return result, fmt.Errorf("waiting for the daemon, which may carry out the order later: %w", ctx.Err())
	}
}

// Status implements hostapi.Daemon.
func (d *Daemon) Status(ctx context.Context) (status.Status, error) {
	return ask(ctx, d, func(l *loop) (status.Status, error) {
		r := l.controller.Status(time.Now())
		r.Policy.File = l.PolicyFile
		if l.Self != nil {
			r.Self = l.Self()
		}
		r.Self.Sample, r.Self.Plan = r.Sample.Cost, l.planning
		if l.Fleet != nil {
			f := l.Fleet()
			r.Fleet = &f
		}
		return r, nil
	})
}

// Inventory implements hostapi.Daemon.
func (d *Daemon) Inventory(ctx context.Context) (inventory.Host, error) {
	return ask(ctx, d, func(l *loop) (inventory.Host, error) {
		h, ok := l.controller.Inventory(time.Now())
		if !ok {
			err := errors.New("the daemon has not observed the host yet")
			return h, &hostapi.Error{Status: http.StatusServiceUnavailable, Err: err}
		}
		h.Topology.Nodes = slices.Clone(h.Topology.Nodes) // samples change them
		return h, nil
	})
}

// Series implements hostapi.Daemon.
func (d *Daemon) Series(ctx context.Context, kind, name string) (history.Series, error) {
	return ask(ctx, d, func(l *loop) (r history.Series, err error) {
		switch kind {
		case "guest":
			r = l.controller.History().Guest(name)
		case "node":
			id, err := strconv.Atoi(name)
			if err != nil {
				return r, &hostapi.Error{
					Status: http.StatusBadRequest,
					Err:    fmt.Errorf("node %q is not a number", name),
				}
			}
			r = l.controller.History().Node(topology.NodeID(id))
		default:
			return r, unknown("series of a %q: only those of a guest or a node exist", kind)
		}
		if len(r.Times) == 0 {
			return r, unknown("no series of %s %s", kind, name)
		}
		return r, nil
	})
}

func unknown(format string, args ...any) error {
	return &hostapi.Error{Status: http.StatusNotFound, Err: fmt.Errorf(format, args...)}
}

// Accept implements hostapi.Daemon.
func (d *Daemon) Accept(ctx context.Context, id string) error {
	return d.order(ctx, func(o control.OrderID) control.Event { return control.Accept{Order: o, Advice: id} })
}

// Cancel implements hostapi.Daemon. A move that is cancelled has not failed.
func (d *Daemon) Cancel(ctx context.Context, id string) error {
	return d.order(ctx, func(o control.OrderID) control.Event { return control.Cancel{Order: o, Job: id} })
}

// Pause implements hostapi.Daemon. The error is control.ErrNotPersistent if
// moves are paused, but would not be after a restart.
func (d *Daemon) Pause(ctx context.Context, length time.Duration, why string) error {
	return d.order(ctx, func(o control.OrderID) control.Event { return control.Pause{Order: o, For: length, Why: why} })
}

// Resume implements hostapi.Daemon. The error is control.ErrNotPersistent if a
// restart would pause again.
func (d *Daemon) Resume(ctx context.Context) error {
	return d.order(ctx, func(o control.OrderID) control.Event { return control.Resume{Order: o} })
}

// SetPolicy activates a new policy: at once, or when the running job ends.
func (d *Daemon) SetPolicy(ctx context.Context, p policy.Policy) error {
	return d.order(ctx, func(o control.OrderID) control.Event { return control.SetPolicy{Order: o, Policy: p} })
}

// Policy returns the policy in force, with defaults.
func (d *Daemon) Policy(ctx context.Context) (policy.Policy, error) {
	return ask(ctx, d, func(l *loop) (policy.Policy, error) { return l.controller.Policy(), nil })
}

// order passes an order to the controller and returns its reply.
func (d *Daemon) order(ctx context.Context, event func(control.OrderID) control.Event) error {
	_, err := ask(ctx, d, func(l *loop) (struct{}, error) {
		l.orders++
		l.step(event(l.orders))
		err := l.replies[l.orders]
		delete(l.replies, l.orders)
		return struct{}{}, err
	})
	for reason, code := range statuses {
		if errors.Is(err, reason) {
			return &hostapi.Error{Status: code, Err: err}
		}
	}
	return err
}

// statuses are the HTTP statuses of refused orders.
var statuses = map[error]int{
	control.ErrMalformed: http.StatusBadRequest,
	control.ErrUnknown:   http.StatusNotFound,
	control.ErrConflict:  http.StatusConflict,
}
