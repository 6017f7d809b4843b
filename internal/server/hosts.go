package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/api/fleet/show"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

func (s *Server) showHost(st *state, name string, h record[fleet.Host]) fleetapi.Host {
	out := fleetapi.Host{Host: h.value, Revision: h.revision, State: fleetapi.HostReachable, VMs: len(st.on[name])}
	switch {
	case h.value.Dead != nil:
		out.State = fleetapi.HostDead
	case st.keys[store.Alive+name] == 0:
		out.State = fleetapi.HostUnreachable
	}
	if r, ok := st.reports[name]; ok {
		out.Reported, out.Daemon = r.Taken, r.Program
		show.Size(&out, &r.Inventory.Topology)
	}
	if l := s.loads.of(name); l != nil {
		out.Alarms = maps.Clone(l.alarms)
	}
	if l := s.loads.recent(name); l != nil {
		out.CPU, out.Wait = new(float64), new(float64)
		for _, n := range l.nodes {
			*out.CPU += n.CPU
			*out.Wait += n.Wait
		}
	}
	for key := range st.remains {
		if key.host == name {
			out.Remaining = append(out.Remaining, key.vm)
		}
	}
	slices.Sort(out.Remaining)
	return out
}

// Hosts implements rest.Service.
func (s *Server) Hosts(_ context.Context, _ rest.Call, p rest.Page) (out fleetapi.Hosts, _ error) {
	s.cache.read(func(st *state) {
		names, next := p.Of(st.sorted(store.Hosts), func(string) bool { return true })
		out = fleetapi.Hosts{Hosts: make([]fleetapi.Host, 0, len(names)), Next: next}
		for _, name := range names {
			out.Hosts = append(out.Hosts, s.showHost(st, name, st.hosts[name]))
		}
	})
	return out, nil
}

// Host implements rest.Service.
func (s *Server) Host(_ context.Context, _ rest.Call, name string) (out fleetapi.Host, err error) {
	s.cache.read(func(st *state) {
		h, ok := st.hosts[name]
		if !ok {
			err = noSuchHost(name)
			return
		}
		out = s.showHost(st, name, h)
		if _, reported := st.reports[name]; reported {
			view, _ := hostOf(st, name, s.loads, false)
			out.Left = show.Left(view.Inventory, s.sched.policy.WithDefaults())
		}
	})
	return out, err
}

func noSuchHost(name string) error {
	return fleetapi.NewProblem(fleetapi.ProblemNotFound, fmt.Sprintf("there is no host %s", name))
}

// Nodes implements rest.Service.
func (s *Server) Nodes(_ context.Context, _ rest.Call, host string) (out fleetapi.Nodes, err error) {
	var view *inventory.Host
	s.cache.read(func(st *state) {
		if _, ok := st.hosts[host]; !ok {
			err = noSuchHost(host)
		} else if _, reported := st.reports[host]; reported {
			h, _ := hostOf(st, host, s.loads, false)
			view = h.Inventory
		}
	})
	out = fleetapi.Nodes{Host: host, Nodes: []fleetapi.Node{}}
	if err != nil || view == nil {
		return out, err
	}
	out.Nodes = show.Nodes(view, s.sched.policy.WithDefaults())
	return out, nil
}

// Inventory implements rest.Service.
func (s *Server) Inventory(_ context.Context, _ rest.Call, host string) (out inventory.Host, err error) {
	s.cache.read(func(st *state) {
		if _, ok := st.hosts[host]; !ok {
			err = noSuchHost(host)
			return
		}
		r, ok := st.reports[host]
		if !ok {
			err = fleetapi.NewProblem(fleetapi.ProblemNotFound, "host "+host+" has not reported its inventory yet")
			return
		}
		out = *inventoryOf(r.inventory(true), nil, s.loads.of(host))
	})
	return out, err
}

// changeHost changes a host's record.
func (s *Server) changeHost(
	ctx context.Context, c rest.Call, name string, f func(st *state, h *fleet.Host) error,
) (fleetapi.Host, error) {
	_, err := s.decide(ctx, func(st *state, t *transaction) error {
		at, ok := st.hosts[name]
		if !ok {
			return noSuchHost(name)
		}
		if err := c.CheckRevision(at.revision); err != nil {
			return err
		}
		h := at.value
		h.Labels = maps.Clone(h.Labels)
		if err := f(st, &h); err != nil {
			return err
		}
		if same(h, at.value) {
			return errNothing
		}
		t.require(store.Hosts+name, at.revision)
		t.put(store.Hosts+name, h)
		s.audit(t, &c, fleetapi.AboutHost, name, at.value, h)
		return nil
	})
	if err != nil {
		return fleetapi.Host{}, err
	}
	return s.Host(ctx, c, name)
}

// EditHost implements rest.Service.
func (s *Server) EditHost(ctx context.Context, c rest.Call, name string, e fleetapi.HostEdit) (fleetapi.Host, error) {
	if e.Labels != nil {
		if err := fleetapi.CheckLabels(*e.Labels); err != nil {
			return fleetapi.Host{}, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
		}
	}
	return s.changeHost(ctx, c, name, func(_ *state, h *fleet.Host) error {
		if e.Rack != nil {
			h.Rack = *e.Rack
		}
		if e.Labels != nil {
			h.Labels = *e.Labels
		}
		if e.Preference != nil {
			h.Preference = *e.Preference
		}
		return nil
	})
}

// Cordon implements rest.Service.
func (s *Server) Cordon(ctx context.Context, c rest.Call, name string) (fleetapi.Host, error) {
	return s.changeHost(ctx, c, name, func(_ *state, h *fleet.Host) error { h.Cordoned = true; return nil })
}

// Uncordon implements rest.Service.
func (s *Server) Uncordon(ctx context.Context, c rest.Call, name string) (fleetapi.Host, error) {
	return s.changeHost(ctx, c, name, func(_ *state, h *fleet.Host) error {
		h.Cordoned, h.Draining, h.DrainOptions = false, false, fleet.MigrationOptions{}
		return nil
	})
}

// Drain implements rest.Service.
func (s *Server) Drain(ctx context.Context, c rest.Call, name string, how fleetapi.HostDrain) (fleetapi.Host, error) {
	if err := how.Validate(); err != nil {
		return fleetapi.Host{}, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	return s.changeHost(ctx, c, name, func(_ *state, h *fleet.Host) error {
		if h.Dead != nil {
			return fleetapi.NewProblem(fleetapi.ProblemConflict,
				"host "+name+" was declared dead: its VMs are started elsewhere, and cannot migrate")
		}
		h.Cordoned, h.Draining, h.DrainOptions = true, true, how.MigrationOptions
		return nil
	})
}

// DeclareDead implements rest.Service.
func (s *Server) DeclareDead(ctx context.Context, c rest.Call, name, why string) (fleetapi.Host, error) {
	return s.changeHost(ctx, c, name, func(st *state, h *fleet.Host) error {
		if st.keys[store.Alive+name] != 0 {
			return fleetapi.NewProblem(fleetapi.ProblemConflict, "host "+name+
				" is reachable: only a host that does not answer can be declared dead; drain it instead")
		}
		if h.Dead == nil {
			h.Dead = &fleet.Declared{By: c.User.Name, At: s.Now().UTC(), Why: why}
		}
		return nil
	})
}

// DeclareAlive implements rest.Service.
func (s *Server) DeclareAlive(ctx context.Context, c rest.Call, name string) (fleetapi.Host, error) {
	return s.changeHost(ctx, c, name, func(st *state, h *fleet.Host) error {
		remain := s.showHost(st, name, st.hosts[name]).Remaining
		for vm := range st.on[name] {
			remain = append(remain, vm)
		}
		if h.Dead != nil && len(remain) > 0 {
			return fleetapi.NewProblem(fleetapi.ProblemConflict, fmt.Sprintf(
				"host %s has not removed %d of its former VMs yet, among them %s: its daemon does so when it connects",
				name, len(remain), remain[0]))
		}
		h.Dead = nil
		return nil
	})
}

// RemoveHost implements rest.Service.
func (s *Server) RemoveHost(ctx context.Context, c rest.Call, name string) error {
	_, err := s.decide(ctx, func(st *state, t *transaction) error {
		at, ok := st.hosts[name]
		if !ok {
			return noSuchHost(name)
		}
		if err := c.CheckRevision(at.revision); err != nil {
			return err
		}
		if n := len(st.on[name]); n > 0 {
			return fleetapi.NewProblem(fleetapi.ProblemConflict,
				fmt.Sprintf("host %s still has %d VMs: drain it, or delete them first", name, n))
		}
		t.require(store.Hosts+name, at.revision)
		t.require(store.Claims+name, st.keys[store.Claims+name])
		t.remove(store.Hosts + name)
		t.remove(store.Reports + name)
		t.remove(store.Claims + name)
		for key := range st.remains {
			if key.host == name {
				t.remove(remainsKey(name, key.vm))
			}
		}
		s.audit(t, &c, fleetapi.AboutHost, name, at.value, nil)
		return nil
	})
	if err == nil {
		s.loads.forget(name)
	}
	return err
}

// CreateJoin implements rest.Service.
func (s *Server) CreateJoin(ctx context.Context, c rest.Call, j fleetapi.JoinCreate) (fleetapi.NewJoin, error) {
	minutes := j.Minutes
	if minutes == 0 {
		minutes = 60
	}
	token := auth.NewJoin()
	expires := s.Now().Add(time.Duration(minutes) * time.Minute).UTC().Truncate(time.Second)
	_, err := s.decide(ctx, func(_ *state, t *transaction) error {
		t.require(store.Joins+token.Hash, 0)
		t.put(store.Joins+token.Hash, join{Expires: expires, By: c.User.Name})
		s.audit(t, &c, fleetapi.AboutJoin, token.ID, nil, map[string]any{"expires": expires})
		return nil
	})
	if err != nil {
		return fleetapi.NewJoin{}, err
	}
	return fleetapi.NewJoin{Address: s.Address, Token: token.Secret, Expires: expires, Fingerprint: s.CA.Fingerprint(),
		Command: JoinCommand(s.Address, s.CA.Fingerprint(), token.Secret)}, nil
}

// JoinCommand returns the command by which a host joins.
func JoinCommand(address, fingerprint, token string) string {
	return fmt.Sprintf("numavisor daemon --join %s --ca-fingerprint %s --token %s", address, fingerprint, token)
}

// Alarms implements rest.Service.
func (s *Server) Alarms(_ context.Context, c rest.Call) (fleetapi.Alarms, error) {
	out := fleetapi.Alarms{Alarms: []fleetapi.Alarm{}, Lasting: []fleetapi.LastingAlarm{}}
	var names []string
	s.cache.read(func(st *state) { names = st.sorted(store.Hosts) })
	for _, name := range names {
		l := s.loads.of(name)
		if l == nil {
			continue
		}
		out.Alarms = append(out.Alarms, show.Counts(name, l.alarms)...)
		for i := range l.lasting {
			if a := &l.lasting[i]; s.maySeeAlarm(c.User, a) {
				out.Lasting = append(out.Lasting, fleetapi.AlarmOf(name, a))
			}
		}
	}
	return out, nil
}

// maySeeAlarm reports whether a user may see an alarm: its text names the VMs that cause it.
func (s *Server) maySeeAlarm(u *fleetapi.User, a *alarm.Alarm) (may bool) {
	if u.Has(fleetapi.AllProjects) {
		return true
	}
	name, isVM := a.Object.Guest()
	if !isVM {
		return false
	}
	s.cache.read(func(st *state) {
		may = len(a.Guests) <= 1
		for _, vm := range append([]string{name}, a.Guests...) {
			of, known := st.vm(vm)
			may = may && known && u.Has(of.value.Project)
		}
	})
	return may
}

// Info implements rest.Service.
func (s *Server) Info() fleetapi.ServerInfo {
	return fleetapi.ServerInfo{Version: s.Version, API: "v1"}
}

// desiredOf returns what a host should have.
func desiredOf(st *state, host string) fleet.Desired {
	d := fleet.Desired{Revision: st.revision, VMs: []fleet.VM{}, Servers: st.addresses()}
	for name := range st.on[host] {
		d.VMs = append(d.VMs, st.vmOf(name).value)
	}
	for key, vm := range st.remains {
		if key.host == host && !st.on[host][key.vm] {
			d.VMs = append(d.VMs, vm.value)
		}
	}
	slices.SortFunc(d.VMs, func(a, b fleet.VM) int { return strings.Compare(a.Name, b.Name) })
	return d
}

var _ agentapi.Server = (*agents)(nil)
