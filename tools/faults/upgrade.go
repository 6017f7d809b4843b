package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/tools/process"
)

// earlier are the programs that a fleet is upgraded from; empty: it is not upgraded.
type earlier struct{ server, hosts string }

// upgrade replaces the programs of all servers and hosts under load, one after the other, and waits for each: as
// an operator does. By the seed, the servers come first, the hosts do, or they alternate.
func (f *aFleet) upgrade(ctx context.Context, seed uint64, server string, log func(string)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	order := slices.Concat(f.servers, f.hosts)
	switch seed % 3 {
	case 1:
		order = slices.Concat(f.hosts, f.servers)
	case 2:
		random := rand.New(rand.NewPCG(seed, 0))
		random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	for _, p := range order {
		log("upgrade " + p.Name)
		p.Quit()
		i := slices.Index(f.servers, p)
		if i < 0 {
			p.Args[0] = self
		} else {
			p.Args[slices.Index(p.Args, "--data")-1] = server
		}
		if err := p.Start(); err != nil {
			return err
		}
		if err := f.ready(ctx, p, i); err != nil {
			return fmt.Errorf("%s after its upgrade: %w", p.Name, err)
		}
		select { // work with this mix of versions
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// ready waits until a server, or a host if server is negative, works again.
func (f *aFleet) ready(ctx context.Context, p *process.Program, server int) error {
	return f.retry(ctx, func(c *fleetapi.Client) error {
		if err := p.Alive(); err != nil {
			return err
		}
		one, cancel := context.WithTimeout(ctx, requestTime)
		defer cancel()
		if server >= 0 {
			_, err := f.clients[server].VMs(one, fleetapi.Filter{})
			return err
		}
		h, err := c.Host(one, p.Name)
		if err == nil && h.State != fleetapi.HostReachable {
			err = fmt.Errorf("host %s is %s", p.Name, h.State)
		}
		return err
	})
}
