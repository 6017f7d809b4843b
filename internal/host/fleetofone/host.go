package fleetofone

import (
	"context"
	"fmt"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/api/fleet/show"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// hostName is the name of the host: that in its fleet, if it has joined one.
func (s *Service) hostName(ctx context.Context, h *inventory.Host) string {
	if st, err := s.Daemon.Status(ctx); err == nil && st.Fleet != nil {
		return st.Fleet.Host
	}
	return h.Name
}

// nameIn returns the name of the host in a status: that in its fleet, if it has joined one.
func nameIn(st *status.Status) string {
	if st.Fleet != nil {
		return st.Fleet.Host
	}
	return st.Host
}

// name is hostName of the host as it is now.
func (s *Service) name(ctx context.Context) (string, error) {
	h, err := s.look(ctx)
	if err != nil {
		return "", err
	}
	return s.hostName(ctx, h), nil
}

func noSuchHost(asked, here string) error {
	return fleetapi.NewProblem(fleetapi.ProblemNotFound,
		fmt.Sprintf("there is no host %s: this is the daemon of host %s alone", asked, here))
}

// onlyHost returns the host, if it has the name.
func (s *Service) onlyHost(ctx context.Context, name string) (*inventory.Host, error) {
	h, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	if here := s.hostName(ctx, h); name != here {
		return nil, noSuchHost(name, here)
	}
	return h, nil
}

// Hosts implements rest.HostService.
func (s *Service) Hosts(ctx context.Context, c rest.Call, p rest.Page) (fleetapi.Hosts, error) {
	out := fleetapi.Hosts{Hosts: []fleetapi.Host{}}
	name, err := s.name(ctx)
	if err != nil {
		return out, err
	}
	names, _ := p.Of([]string{name}, func(string) bool { return true })
	for _, name := range names {
		h, err := s.Host(ctx, c, name)
		if err != nil {
			return out, err
		}
		out.Hosts = append(out.Hosts, h)
	}
	return out, nil
}

// Host implements rest.HostService.
func (s *Service) Host(ctx context.Context, _ rest.Call, name string) (fleetapi.Host, error) {
	h, err := s.onlyHost(ctx, name)
	if err != nil {
		return fleetapi.Host{}, err
	}
	return s.shownHost(ctx, h, name)
}

// shownHost returns the host as the API shows it.
func (s *Service) shownHost(ctx context.Context, h *inventory.Host, name string) (fleetapi.Host, error) {
	p, err := s.Daemon.Policy(ctx)
	if err != nil {
		return fleetapi.Host{}, unavailable(err)
	}
	st, err := s.Daemon.Status(ctx)
	if err != nil {
		return fleetapi.Host{}, unavailable(err)
	}
	out := fleetapi.Host{Host: fleet.Host{Name: name, ID: h.ID, Joined: st.Started.UTC()},
		State: fleetapi.HostReachable, Reported: h.Taken.UTC(), Daemon: s.Version, Left: show.Left(h, p),
		VMs: len(h.Guests)}
	show.Size(&out, &h.Topology)
	for i := range st.Alarms {
		if out.Alarms == nil {
			out.Alarms = map[string]int{}
		}
		out.Alarms[string(st.Alarms[i].Quantity)]++
	}
	if h.Load != nil {
		out.CPU, out.Wait = new(float64), new(float64)
		for _, n := range h.Load {
			*out.CPU += n.CPU
			*out.Wait += n.Wait
		}
	}
	out.Revision = revisionOf(out.Name, out.ID, out.Nodes, out.CPUs, out.Memory)
	return out, nil
}

// Nodes implements rest.HostService.
func (s *Service) Nodes(ctx context.Context, _ rest.Call, host string) (fleetapi.Nodes, error) {
	out := fleetapi.Nodes{Host: host, Nodes: []fleetapi.Node{}}
	h, err := s.onlyHost(ctx, host)
	if err != nil {
		return out, err
	}
	p, err := s.Daemon.Policy(ctx)
	if err != nil {
		return out, unavailable(err)
	}
	out.Nodes = show.Nodes(h, p)
	return out, nil
}

// Inventory implements rest.HostService.
func (s *Service) Inventory(ctx context.Context, _ rest.Call, host string) (inventory.Host, error) {
	h, err := s.onlyHost(ctx, host)
	if err != nil {
		return inventory.Host{}, err
	}
	return *h, nil
}

// Alarms implements rest.HostService.
func (s *Service) Alarms(ctx context.Context, _ rest.Call) (fleetapi.Alarms, error) {
	out := fleetapi.Alarms{Alarms: []fleetapi.Alarm{}, Lasting: []fleetapi.LastingAlarm{}}
	st, err := s.Daemon.Status(ctx)
	if err != nil {
		return out, unavailable(err)
	}
	host := nameIn(&st)
	return show.Alarms(out, host, st.Alarms), nil
}
