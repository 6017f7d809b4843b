// Package simhost runs the real agent of a host's daemon on a host in memory: it joins a fleet, holds a connection
// with its own certificate, reports, and creates the VMs that the fleet wants.
package simhost

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/journal"
)

// Machines makes definitions for the fake.
type Machines struct{}

// Prepare implements operate.Machines.
func (Machines) Prepare(context.Context, *fleet.VM) (operate.Renderer, func() error, error) {
	return func(i guest.Intent) (operate.Rendered, error) {
		definition, err := fake.Render(i)
		return operate.Rendered{Definition: definition}, err
	}, nil, nil
}

// book is a journal in memory: VMs of simulated hosts do not move.
type book struct{}

func (book) Append(journal.Entry) error        { return nil }
func (book) Entries() ([]journal.Entry, error) { return nil, nil }

// Join returns what acts on a host in memory. Its claims are in a new folder below the given one: those of a killed
// process are void.
func Join(h *fake.Host, folder string) (*operate.Host, error) {
	claims, err := os.MkdirTemp(folder, "claims")
	if err != nil {
		return nil, err
	}
	on := hosttest.Join(h, claims, time.Now)
	on.Journal = book{}
	return &on.Host, nil
}

// Agent returns the agent of a daemon whose membership is in o.Folder; it joins the fleet first if there is none.
// o.Member and o.Machines need not be set.
func Agent(ctx context.Context, join agent.JoinRequest, o agent.Options) (*agent.Agent, error) {
	of, err := agent.LoadMember(o.Folder)
	if errors.Is(err, agent.ErrNotMember) {
		of, err = agent.Join(ctx, o.Folder, join)
	}
	if err != nil {
		return nil, err
	}
	o.Member, o.Machines = of, Machines{}
	return agent.New(o), nil
}
