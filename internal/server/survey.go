package server

import (
	"context"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server/store"
)

// survey is a copy of the fleet, so that a long look at it holds no decision up. It may be older than the
// state: what follows from it is decided again on the state.
type survey struct {
	fleet   *schedule.Fleet
	vms     map[string]migrate.VM // of the fleet
	running []migrate.Running
}

// survey copies the fleet. The caller holds surveying. Hosts whose loads this server does not know
// count as unreachable if onlyLoaded is set.
func (s *Server) survey(ctx context.Context, onlyLoaded bool) (*survey, error) {
	out := &survey{fleet: newFleet(s.Policy), vms: map[string]migrate.VM{}}
	var names []string
	s.cache.read(func(st *state) { names = st.sorted(store.Hosts) })
	for _, name := range names { // one at a time: others wait for the state
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.cache.read(func(st *state) {
			_, has := st.hosts[name]
			report, reported := st.reports[name]
			if !has || !reported {
				return
			}
			h, groups := hostOf(st, name, s.loads, true)
			giveNames(h.Inventory)
			h.Unreachable = h.Unreachable || onlyLoaded && s.loads.recent(name) == nil
			out.fleet.Set(h, groups)
			for vm := range st.on[name] {
				out.add(name, st.vmOf(vm).value, report)
			}
		})
	}
	return out, nil
}

// giveNames gives the specs of VMs their names: requests to place them elsewhere are made of them.
func giveNames(h *inventory.Host) {
	for i := range h.Guests {
		g := &h.Guests[i]
		if g.Spec != nil {
			spec := *g.Spec
			spec.Name, g.Spec = g.Name, &spec
		}
	}
}

// add notes a VM of a host.
func (s *survey) add(host string, vm fleet.VM, report *reportRecord) {
	if vm.Host != host {
		return // it migrates to this host: its own host has it
	}
	known := migrate.VM{Affinity: vm.Affinity, Machine: vm.Machine.Type}
	known.Affinity.Group = groupOf(&vm)
	if g, ok := report.guest(vm.Name); ok {
		known.SharedStorage = g.Config.SharedStorage
	}
	if vm.Migration != nil {
		s.running = append(s.running, migrate.Running{VM: vm.Name, From: vm.Host, To: vm.Migration.To})
	}
	s.vms[vm.Name] = known
}

// headroomTime is how long one request for headroom may compute: the rest is on the next page.
const headroomTime = 10 * time.Second

// Headroom implements rest.Service.
func (s *Server) Headroom(ctx context.Context, _ rest.Call, p rest.Page) (fleetapi.Headroom, error) {
	s.surveying.Lock()
	defer s.surveying.Unlock()
	of, err := s.survey(ctx, false)
	if err != nil {
		return fleetapi.Headroom{}, err
	}
	out := fleetapi.Headroom{Hosts: []fleetapi.HostHeadroom{}}
	names, next := p.Of(of.fleet.Names(), func(string) bool { return true })
	end := time.Now().Add(headroomTime)
	for i, name := range names {
		if i > 0 && time.Now().After(end) {
			out.Next = names[i-1]
			return out, nil
		}
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		h := migrate.HeadroomOf(of.fleet, of.vms, name)
		shown := fleetapi.HostHeadroom{Host: h.Host, VMs: h.VMs, Proven: h.Proven}
		for _, m := range h.Missing {
			shown.Missing = append(shown.Missing, fleetapi.MissingVM{VM: m.VM, Why: m.Why})
		}
		out.Hosts = append(out.Hosts, shown)
	}
	out.Next = next
	return out, nil
}
