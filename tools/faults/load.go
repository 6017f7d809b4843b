package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// history is what users were answered. Each VM has one user, so its last answer says what must be there.
type history struct {
	mu  sync.Mutex
	vms map[string]fleet.RunState // deleted ones are absent
	ops int
	// migrations are those that a server has taken on.
	migrations int
}

func (h *history) note(vm string, run fleet.RunState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops++
	if run == "" {
		delete(h.vms, vm)
	} else {
		h.vms[vm] = run
	}
}

func (h *history) migrates() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.migrations++
}

// requestTime limits one request; a user repeats it at another server.
const requestTime = 10 * time.Second

// user makes, stops, starts, migrates and deletes VMs of its own until ctx ends. Each request but that for a migration
// is repeated until a server has answered, also after ctx has ended.
func (f *aFleet) user(ctx, life context.Context, id int, seed uint64, h *history) error {
	random := rand.New(rand.NewPCG(seed, uint64(id)+1))
	var own []string
	for n := 0; ctx.Err() == nil; n++ {
		if len(own) < 4 && random.IntN(2) == 0 || len(own) == 0 {
			name := fmt.Sprintf("u%d-%d", id, n)
			if err := f.create(life, random, name); err != nil {
				return err
			}
			own = append(own, name)
			h.note(name, fleet.Running)
			continue
		}
		i := random.IntN(len(own))
		if f.migrates && random.IntN(4) == 0 {
			taken, err := f.migrate(life, random, own[i])
			if err != nil {
				return err
			}
			if taken {
				h.migrates()
			}
			continue
		}
		state, err := f.change(life, random, own[i])
		if err != nil {
			return err
		}
		h.note(own[i], state)
		if state == "" {
			own = append(own[:i], own[i+1:]...)
		}
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
	}
	return nil
}

// specOf draws a VM: with shared or exclusive CPUs, small or huge pages.
func specOf(random *rand.Rand, name string) guest.Spec {
	s := guest.Spec{Name: name, VCPUs: 1 + random.IntN(2),
		Memory: topology.Bytes(1+random.IntN(3)) * 128 * topology.MiB}
	if random.IntN(2) == 0 {
		s.CPU.Binding = guest.CPUExclusive
	}
	if random.IntN(3) == 0 {
		s.PageSize = 2 * topology.MiB
	}
	return s
}

func (f *aFleet) create(ctx context.Context, random *rand.Rand, name string) error {
	v := fleetapi.VMCreate{Project: fleetapi.DefaultProject, Spec: specOf(random, name)}
	return f.insist(ctx, random, "create "+name, func(ctx context.Context, c *fleetapi.Client) error {
		_, err := c.CreateVM(ctx, v, fleetapi.Change{Key: "create-" + name})
		return err
	})
}

// change stops, starts or deletes a VM, and returns what it should be then; empty: deleted.
func (f *aFleet) change(ctx context.Context, random *rand.Rand, name string) (fleet.RunState, error) {
	switch random.IntN(3) {
	case 0:
		stop := func(ctx context.Context, c *fleetapi.Client) error {
			_, err := c.StopVM(ctx, name, fleetapi.Change{})
			return err
		}
		return fleet.Stopped, f.insist(ctx, random, "stop "+name, stop)
	case 1:
		return fleet.Running, f.insist(ctx, random, "start "+name, func(ctx context.Context, c *fleetapi.Client) error {
			_, err := c.StartVM(ctx, name, fleetapi.Change{})
			return err
		})
	default:
		tried := false
		return "", f.insist(ctx, random, "delete "+name, func(ctx context.Context, c *fleetapi.Client) error {
			_, err := c.DeleteVM(ctx, name, fleetapi.Change{})
			if p, ok := errors.AsType[*fleetapi.Problem](err); ok && p.Type == fleetapi.ProblemNotFound && tried {
				return nil // an attempt without an answer has done it
			}
			tried = true
			return err
		})
	}
}

// insist repeats a request until a server has carried it out. A server that is behind may not know the VM yet.
func (f *aFleet) insist(ctx context.Context, random *rand.Rand, what string,
	do func(context.Context, *fleetapi.Client) error,
) error {
	var last error
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, requestTime)
		err := do(one, f.clients[random.IntN(len(f.clients))])
		cancel()
		if err == nil {
			return nil
		}
		if p, ok := errors.AsType[*fleetapi.Problem](err); ok && p.Type != fleetapi.ProblemUnavailable &&
			p.Type != fleetapi.ProblemNotFound && p.Type != fleetapi.ProblemConflict {
			return fmt.Errorf("%s: %s: %w", what, p.Type, err)
		}
		last = err
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s: no server has done it until the end: %w", what, last)
}
