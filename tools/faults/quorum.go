package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/tools/process"
)

// quorum ends more than half of the members of etcd, and checks what works without.
func (f *aFleet) quorum(_ context.Context, random *rand.Rand) fault {
	voters := f.voters()
	left := random.IntN(len(voters))
	lost := slices.DeleteFunc(slices.Clone(voters), func(p *process.Program) bool { return p == voters[left] })
	ask := left // the server that is asked
	if len(f.members) > 0 {
		ask = random.IntN(len(f.servers))
	}
	out := fault{name: "no quorum: kill", during: func(ctx context.Context) error { return f.withoutQuorum(ctx, ask) },
		begin: func() error {
			for _, p := range lost {
				p.Kill()
			}
			return nil
		},
		end: func() (err error) {
			for _, p := range lost {
				err = errors.Join(err, p.Start())
			}
			return err
		}}
	for _, p := range lost {
		out.name += " " + p.Name
	}
	return out
}

// oldTime is how long a server may take to say that its records may be old: the time of a lease and some seconds.
const oldTime = 40 * time.Second

// withoutQuorum checks a server without a quorum: writes fail with a clear error, reads say that they may be old, and
// hosts go on.
func (f *aFleet) withoutQuorum(ctx context.Context, server int) error {
	var old atomic.Bool
	c, err := fleetapi.NewClient(fleetapi.Config{URL: "https://" + f.api(server), Token: f.token, CA: []byte(f.ca),
		Old: func(time.Duration) { old.Store(true) }})
	if err != nil {
		return err
	}
	if err := f.answers(ctx, server); err != nil {
		return err
	}
	before, err := f.readWithin(ctx, c)
	if err != nil {
		return fmt.Errorf("a read at s%d: %w", server, err)
	}
	one, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	_, err = c.CreateJoin(one, fleetapi.JoinCreate{})
	if err == nil {
		return fmt.Errorf("a write at s%d without a quorum succeeded", server)
	}
	if p, ok := errors.AsType[*fleetapi.Problem](err); !ok || p.Type != fleetapi.ProblemUnavailable {
		return fmt.Errorf("a write at s%d without a quorum does not say that the store is unavailable: %w", server, err)
	}
	for end := time.Now().Add(oldTime); !old.Load(); time.Sleep(500 * time.Millisecond) {
		if _, err := f.readWithin(ctx, c); err != nil {
			return fmt.Errorf("a read at s%d without a quorum: %w", server, err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("reads at s%d do not say that they may be old", server)
		}
	}
	for i := range before {
		v := &before[i]
		if v.Run != fleet.Running || v.State != fleetapi.VMRunning {
			continue
		}
		if _, err := os.Stat(filepath.Join(f.shared, "running", v.Name)); err != nil {
			return fmt.Errorf("VM %s ran on %s before there was no quorum, and does not now: %w", v.Name, v.Host, err)
		}
	}
	return nil
}

// readWithin reads the VMs, in the time of a request.
func (f *aFleet) readWithin(ctx context.Context, c *fleetapi.Client) ([]fleetapi.VM, error) {
	one, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return c.VMs(one, fleetapi.Filter{})
}
