package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/api/fleet/show"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server/store"
)

// showVM returns a VM as the API shows it.
func (s *Server) showVM(st *state, vm record[fleet.VM]) fleetapi.VM {
	out := fleetapi.VM{VM: fleetapi.HideSecrets(vm.value), Revision: vm.revision}
	if !st.hosts[vm.value.Host].value.Draining {
		out.Stays = ""
	}
	if status := st.statusOf(vm.value.Name, vm.value.Host); status != nil {
		out.Status = &status.value
	}
	if l := s.loads.recent(vm.value.Host); l != nil {
		if load, ok := l.vms[vm.value.Name]; ok {
			out.Load = &load
		}
	}
	out.State = fleetapi.StateOf(&vm.value, out.Status, st.keys[store.Alive+vm.value.Host] != 0)
	return out
}

func noSuchVM(name string) string { return "there is no VM " + name }

// findVM returns a VM that a user may do an operation on.
func findVM(st *state, c *rest.Call, name string) (record[fleet.VM], error) {
	vm, ok := st.vm(name)
	if !ok {
		return vm, fleetapi.NewProblem(fleetapi.ProblemNotFound, noSuchVM(name))
	}
	return vm, c.Allow(vm.value.Project, noSuchVM(name))
}

// VM implements rest.Service.
func (s *Server) VM(ctx context.Context, c rest.Call, name string) (out fleetapi.VM, err error) {
	s.cache.read(func(st *state) {
		var vm record[fleet.VM]
		if vm, err = findVM(st, &c, name); err == nil {
			out = s.showVM(st, vm)
		}
	})
	if err == nil {
		out.Why = s.whyStored(ctx, name)
	}
	return out, err
}

// whyStored returns the reasons of a VM's placement; nil if they are not known.
func (s *Server) whyStored(ctx context.Context, name string) *fleetapi.Why {
	r, err := s.Store.Look(ctx, store.Reasons+name) // the VM itself is shown as this server knows it, too
	why := &fleetapi.Why{}
	if err != nil || json.Unmarshal(r.Value, why) != nil {
		return nil
	}
	return why
}

// Placement implements rest.Service.
func (s *Server) Placement(ctx context.Context, c rest.Call, name string) (fleetapi.Placement, error) {
	vm, err := s.VM(ctx, c, name)
	return fleetapi.Placement{VM: name, Host: vm.Host, Placement: vm.Placement, Pending: vm.Pending, Why: vm.Why}, err
}

// VMs implements rest.Service. It locks the state for some VMs at a time: a filter may pass few of 100,000.
func (s *Server) VMs(_ context.Context, c rest.Call, f fleetapi.Filter, p rest.Page) (out fleetapi.VMs, _ error) {
	p = p.WithDefaults()
	out = fleetapi.VMs{VMs: []fleetapi.VM{}}
	for cursor, more := p.Cursor, true; more; {
		s.cache.read(func(st *state) {
			names := after(st.vmNames(f.Host), cursor)
			names, more = names[:min(len(names), atOnce)], len(names) > atOnce
			for _, name := range names {
				cursor = name
				if !s.passes(st, &c, &f, name) {
					continue
				}
				if len(out.VMs) == p.Limit {
					out.Next, more = out.VMs[p.Limit-1].Name, false
					return
				}
				out.VMs = append(out.VMs, s.showVM(st, st.vmOf(name)))
			}
		})
	}
	return out, nil
}

// vmNames returns the sorted names of the VMs of a host; empty: of all.
func (s *state) vmNames(host string) []string {
	if host != "" {
		return sortedKeys(s.on[host])
	}
	return s.sorted(store.VMs)
}

// passes reports whether a user sees a VM, and a filter passes it.
func (s *Server) passes(st *state, c *rest.Call, f *fleetapi.Filter, name string) bool {
	at := st.vms[name]
	v := at.rest // without what tells VMs apart: to make up all of 100,000 takes time
	return c.User.Has(v.Project) && f.Passes(v.Project, v.Labels) && (f.State == "" || st.stateOf(at) == f.State)
}

// stateOf says in one word how a VM is.
func (s *state) stateOf(r *vmRecord) fleetapi.VMState {
	v := fleet.VM{Delete: r.rest.Delete, Host: r.host, Generation: r.generation, Migration: r.migration}
	var status *fleet.VMStatus
	if at := s.statusAt(r.name, r.host); at != nil {
		status = &fleet.VMStatus{Host: at.host, Generation: at.generation, Phase: at.rest.Phase}
	}
	return fleetapi.StateOf(&v, status, s.keys[store.Alive+r.host] != 0)
}

// newVM checks a request to create a VM, and returns its record.
func (s *Server) newVM(c *rest.Call, v *fleetapi.VMCreate) (fleet.VM, error) {
	invalid := func(err error) (fleet.VM, error) {
		return fleet.VM{}, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	projectName, err := projectOf(c.User, v.Project)
	if err != nil {
		return invalid(err)
	}
	if err := c.Allow(projectName, "there is no project "+projectName); err != nil {
		return fleet.VM{}, err
	}
	checked, err := v.Normalize()
	if err != nil {
		return fleet.VM{}, err
	}
	spec := checked.Spec
	return fleet.VM{Name: spec.Name, Project: projectName, Created: s.Now().UTC().Truncate(time.Second),
		By:   c.User.Name,
		Spec: spec, Machine: v.Machine, Affinity: v.Affinity, Labels: v.Labels, Run: checked.Run, Generation: 1}, nil
}

// projectOf returns the project of a new VM: the one that the request names, else the user's only one.
func projectOf(u *fleetapi.User, named string) (string, error) {
	switch {
	case named != "":
		return named, nil
	case len(u.Projects) != 1:
		return "", errors.New("project: needed, since the user belongs to several")
	case u.Projects[0] == fleetapi.AllProjects:
		return fleetapi.DefaultProject, nil
	}
	return u.Projects[0], nil
}

// repeated returns the result of an earlier request with the same key; nil if there is none.
func (s *Server) repeated(ctx context.Context, c rest.Call, key, hash string) (*fleetapi.VM, error) {
	if key == "" {
		return nil, nil //nolint:nilnil // no result and no error: the request is new
	}
	r, err := s.Store.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrStale) {
		return nil, nil //nolint:nilnil // as above
	}
	var earlier repeat
	if err == nil {
		err = json.Unmarshal(r.Value, &earlier)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	if earlier.Body != hash {
		return nil, rest.ErrOtherRequest()
	}
	s.cache.wait(ctx, r.Revision-1, catchUp)
	vm, err := s.VM(ctx, c, earlier.VM)
	return &vm, err
}

// CreateVM implements rest.Service.
func (s *Server) CreateVM(ctx context.Context, c rest.Call, v fleetapi.VMCreate) (fleetapi.VM, error) {
	vm, err := s.newVM(&c, &v)
	if err != nil {
		return fleetapi.VM{}, err
	}
	return s.add(ctx, c, v, vm, nil)
}

// add stores a new VM as decided; decide is nil if the server chooses its host.
func (s *Server) add(
	ctx context.Context, c rest.Call, body any, vm fleet.VM,
	decide func(*state, *transaction, *fleet.VM) (*fleetapi.Why, error),
) (fleetapi.VM, error) {
	key, hash, err := c.Repeat(body)
	if err != nil {
		return fleetapi.VM{}, err
	}
	if key != "" {
		key = store.Repeats + key
	}
	if earlier, err := s.repeated(ctx, c, key, hash); err != nil || earlier != nil {
		return *orZero(earlier), err
	}
	n := &creation{call: c, vm: vm, key: key, hash: hash, alone: true}
	if decide == nil {
		decide = s.decideNew
		if !c.DryRun {
			s.createTogether(ctx, n)
		}
	}
	if n.alone {
		n.err = s.addAlone(ctx, n, decide)
	}
	if n.err != nil {
		if earlier, _ := s.repeated(ctx, c, key, hash); earlier != nil { // the same request came twice at once
			return *earlier, nil
		}
		return fleetapi.VM{}, n.err
	}
	return n.out, nil
}

// addAlone stores one new VM.
func (s *Server) addAlone(
	ctx context.Context, n *creation, decide func(*state, *transaction, *fleet.VM) (*fleetapi.Why, error),
) error {
	revision, err := s.decidePlacing(ctx, n.call.DryRun, func(st *state, t *transaction) error {
		next := n.vm
		if err := admit(st, t, &next, fleetapi.Quota{}); err != nil {
			return err
		}
		why, err := decide(st, t, &next)
		if err != nil {
			return err
		}
		n.out = created(&next, why)
		if n.call.DryRun {
			return errNothing
		}
		s.putNew(t, n, &next)
		return nil
	})
	n.out.Revision = revision
	return err
}

func orZero[T any](v *T) *T {
	if v == nil {
		return new(T)
	}
	return v
}

// admit checks that a VM may exist: its name is free, and its project has quota. more is what the project uses in
// addition to what the state knows.
func admit(st *state, t *transaction, vm *fleet.VM, more fleetapi.Quota) error {
	if st.vms[vm.Name] != nil {
		return fleetapi.NewProblem(fleetapi.ProblemExists, "the name "+vm.Name+" is in use")
	}
	p, ok := st.projects[vm.Project]
	if !ok {
		return fleetapi.NewProblem(fleetapi.ProblemNotFound, "there is no project "+vm.Project)
	}
	if err := checkQuota(st, vm, plus(st.used[vm.Project], more, 1)); err != nil {
		return err
	}
	t.require(store.Projects+vm.Project, p.revision)
	t.touch(store.Usage+vm.Project, st.keys[store.Usage+vm.Project])
	if group := groupOf(vm); group != "" {
		t.touch(store.Groups+group, st.keys[store.Groups+group])
	}
	return nil
}

// decideNew chooses the host of a new VM. Without one it is pending; in a dry run the caller sees the same.
func (s *Server) decideNew(_ *state, t *transaction, vm *fleet.VM) (*fleetapi.Why, error) {
	_, why, err := s.decideHost(t, vm)
	return why, err
}

// decideHost is decideNew with the decision; nil: the VM is pending.
func (s *Server) decideHost(t *transaction, vm *fleet.VM) (*schedule.Decision, *fleetapi.Why, error) {
	d, err := s.sched.place(wish{vm: vm}, t)
	if none := noHost(err); none != nil {
		vm.Pending = none.Error()
		return nil, &fleetapi.Why{Summary: none.Error(), Decided: s.Now().UTC(), Excluded: excludedOf(none.Excluded),
			Next: nextOf(none.Refused)}, nil
	}
	if err != nil {
		return nil, nil, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	settleOn(vm, d)
	return d, whyOf(d, s.Now().UTC()), nil
}

// AdoptVM implements rest.Service. The VM stays where it is.
func (s *Server) AdoptVM(ctx context.Context, c rest.Call, a fleetapi.VMAdopt) (fleetapi.VM, error) {
	projectName, err := projectOf(c.User, a.Project)
	if err != nil {
		return fleetapi.VM{}, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	vm := fleet.VM{Name: a.Name, Project: projectName, By: c.User.Name, Adopted: true, Generation: 1,
		Created: s.Now().UTC().Truncate(time.Second)}
	return s.add(ctx, c, a, vm, func(st *state, t *transaction, vm *fleet.VM) (*fleetapi.Why, error) {
		return s.decideAdopted(st, t, a.Host, vm)
	})
}

// decideAdopted fills the record of a VM that a host runs already.
func (s *Server) decideAdopted(st *state, t *transaction, host string, vm *fleet.VM) (*fleetapi.Why, error) {
	h, ok := st.hosts[host]
	if !ok {
		return nil, noSuchHost(host)
	}
	g, ok := orZero(st.reports[host]).guest(vm.Name)
	if !ok {
		return nil, fleetapi.NewProblem(fleetapi.ProblemNotFound, "host "+host+" reports no VM "+vm.Name)
	}
	if err := show.Adopted(&g, vm); err != nil {
		return nil, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	if err := checkQuota(st, vm, st.used[vm.Project]); err != nil {
		return nil, err
	}
	t.require(store.Hosts+host, h.revision)
	if vm.Placement.Guest == "" {
		return s.adoptUnbound(t, host, vm)
	}
	vm.Host = host // it runs where Numavisor put it
	t.touch(store.Claims+host, st.keys[store.Claims+host])
	return &fleetapi.Why{Summary: "adopted where it runs", Decided: s.Now().UTC()}, nil
}

// checkQuota refuses a VM that its project, with what it uses without the VM, has no quota for.
func checkQuota(st *state, vm *fleet.VM, used fleetapi.Quota) error {
	if over := exceeds(st.projects[vm.Project].value.Quota, used, shareOf(vm)); over != "" {
		return fleetapi.NewProblem(fleetapi.ProblemQuota, "the quota of project "+vm.Project+" is used up: "+over)
	}
	return nil
}

// adoptUnbound chooses nodes for a VM that Numavisor did not place, on its host.
func (s *Server) adoptUnbound(t *transaction, host string, vm *fleet.VM) (*fleetapi.Why, error) {
	if err := s.sched.fleet.Remove(host, vm.Name); err == nil { // its own room is free for it
		defer s.sched.noteHost(host)
	}
	d, err := s.sched.place(wish{vm: vm, host: host}, t)
	if err != nil {
		return nil, fleetapi.NewProblem(fleetapi.ProblemNoHost,
			"host "+host+" has no nodes for VM "+vm.Name+": "+err.Error())
	}
	settleOn(vm, d)
	return whyOf(d, s.Now().UTC()), nil
}

// same reports whether two records have the same JSON form.
func same(a, b any) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// changeVM changes the record of a VM, and not its placement.
func (s *Server) changeVM(
	ctx context.Context, c rest.Call, name string, f func(vm *fleet.VM) error,
) (fleetapi.VM, error) {
	return s.changeBy(ctx, s.decide, c, name, func(_ *state, _ *transaction, vm *fleet.VM) (*fleetapi.Why, error) {
		return nil, f(vm)
	})
}

// placeVM changes the record of a VM and where it is placed. f may add to the transaction; it returns the reasons of a
// new placement.
func (s *Server) placeVM(
	ctx context.Context, c rest.Call, name string,
	f func(st *state, t *transaction, vm *fleet.VM) (*fleetapi.Why, error),
) (fleetapi.VM, error) {
	return s.changeBy(ctx, func(ctx context.Context, f decision) (int64, error) {
		return s.decidePlacing(ctx, c.DryRun, f)
	}, c, name, f)
}

// changeBy is placeVM with a way to decide.
func (s *Server) changeBy(
	ctx context.Context, decide func(context.Context, decision) (int64, error), c rest.Call, name string,
	f func(st *state, t *transaction, vm *fleet.VM) (*fleetapi.Why, error),
) (fleetapi.VM, error) {
	var out fleetapi.VM
	revision, err := decide(ctx, func(st *state, t *transaction) error {
		at, err := findVM(st, &c, name)
		if err != nil {
			return err
		}
		if err := c.CheckRevision(at.revision); err != nil {
			return err
		}
		next := at.value
		why, err := f(st, t, &next)
		if err != nil {
			return err
		}
		if same(next, at.value) {
			out = s.showVM(st, at)
			return errNothing
		}
		next.Generation++
		out = s.showVM(st, record[fleet.VM]{next, at.revision})
		out.Why = why
		if c.DryRun {
			return errNothing
		}
		t.require(store.VMs+name, at.revision)
		t.put(store.VMs+name, next)
		if why != nil {
			t.put(store.Reasons+name, why)
		}
		s.audit(t, &c, fleetapi.AboutVM, name, fleetapi.HideSecrets(at.value), out.VM)
		return nil
	})
	if err != nil {
		return fleetapi.VM{}, err
	}
	if revision != 0 {
		out.Revision = revision
	}
	return out, nil
}

// StartVM implements rest.Service.
func (s *Server) StartVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	return s.changeVM(ctx, c, name, func(vm *fleet.VM) error {
		vm.Run = fleet.Running
		return notDeleted(vm)
	})
}

// StopVM implements rest.Service.
func (s *Server) StopVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	return s.changeVM(ctx, c, name, func(vm *fleet.VM) error {
		vm.Run = fleet.Stopped
		return notDeleted(vm)
	})
}

// notDeleted refuses changes of a VM that is being removed.
func notDeleted(vm *fleet.VM) error {
	if vm.Delete {
		return fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+vm.Name+" is being deleted")
	}
	return nil
}

// settledVM refuses changes of a VM that has no host, or has two.
func settledVM(vm *fleet.VM) error {
	switch {
	case vm.Delete:
		return notDeleted(vm)
	case vm.Host == "":
		return fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+vm.Name+" has no host yet: "+vm.Pending)
	case vm.Migration != nil:
		return fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+vm.Name+" migrates to host "+vm.Migration.To+
			": wait until that has ended")
	}
	return nil
}

// BindVM implements rest.Service.
func (s *Server) BindVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	return s.placeVM(ctx, c, name, func(_ *state, t *transaction, vm *fleet.VM) (*fleetapi.Why, error) {
		if err := settledVM(vm); err != nil {
			return nil, err
		}
		return s.placeAgain(t, vm)
	})
}

// placeAgain chooses the nodes of a VM again, on its host.
func (s *Server) placeAgain(t *transaction, vm *fleet.VM) (*fleetapi.Why, error) {
	d, err := s.sched.place(wish{vm: vm, host: vm.Host, fresh: true}, t)
	if none := noHost(err); none != nil {
		return nil, fleetapi.NewProblem(fleetapi.ProblemNoHost, none.Error())
	}
	if err != nil {
		return nil, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	settleOn(vm, d)
	return whyOf(d, s.Now().UTC()), nil
}

// ResizeVM implements rest.Service.
func (s *Server) ResizeVM(ctx context.Context, c rest.Call, name string, r fleetapi.VMResize) (fleetapi.VM, error) {
	return s.placeVM(ctx, c, name, func(st *state, t *transaction, vm *fleet.VM) (*fleetapi.Why, error) {
		if err := settledVM(vm); err != nil {
			return nil, err
		}
		if vm.Run != fleet.Stopped {
			return nil, fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+name+" runs: stop it before it is resized")
		}
		before := shareOf(vm)
		spec, err := r.Of(vm.Spec)
		if err != nil {
			return nil, err
		}
		vm.Spec = spec
		if err := checkQuota(st, vm, plus(st.used[vm.Project], before, -1)); err != nil {
			return nil, err
		}
		t.touch(store.Usage+vm.Project, st.keys[store.Usage+vm.Project])
		vm.Placement = guest.Placement{} // cells of another size
		return s.placeAgain(t, vm)
	})
}

// MigrateVM implements rest.Service.
func (s *Server) MigrateVM(ctx context.Context, c rest.Call, name string, m fleetapi.VMMigrate) (fleetapi.VM, error) {
	if err := m.Validate(); err != nil {
		return fleetapi.VM{}, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	return s.placeVM(ctx, c, name, func(st *state, t *transaction, vm *fleet.VM) (*fleetapi.Why, error) {
		if now := vm.Migration; now != nil && (m.To == "" || m.To == now.To) &&
			(m.MigrationOptions == fleet.MigrationOptions{} || m.MigrationOptions == now.Options) {
			return nil, nil // it is under way, as asked for
		}
		if err := settledVM(vm); err != nil {
			return nil, err
		}
		if m.To == vm.Host {
			return nil, fleetapi.NewProblem(fleetapi.ProblemConflict, "VM "+name+" is on host "+m.To+" already")
		}
		if _, ok := st.hosts[m.To]; m.To != "" && !ok {
			return nil, noSuchHost(m.To)
		}
		if vm.Run != fleet.Running {
			return nil, fleetapi.NewProblem(fleetapi.ProblemConflict,
				"VM "+name+" does not run: only running VMs migrate")
		}
		if st.keys[store.Alive+vm.Host] == 0 {
			return nil, fleetapi.NewProblem(fleetapi.ProblemConflict,
				"host "+vm.Host+" is unreachable: its VMs cannot migrate")
		}
		return s.migrate(t, st, vm, fleet.Migration{To: m.To, Why: orElse(m.Why, "asked for by "+c.User.Name),
			Options: m.MigrationOptions})
	})
}

// migratable refuses the migration of a VM that its host would refuse to send.
func migratable(st *state, vm *fleet.VM, copyStorage bool) error {
	if vm.Spec.IsHandoff() {
		return fleetapi.NewProblem(fleetapi.ProblemConflict, fmt.Sprintf("VM %s cannot migrate: %v", vm.Name,
			guest.ErrMirrored))
	}
	g, ok := orZero(st.reports[vm.Host]).guest(vm.Name)
	switch {
	case !ok: // not reported yet: its host decides
	case len(g.Config.Devices) > 0:
		return fleetapi.NewProblem(fleetapi.ProblemConflict, fmt.Sprintf(
			"VM %s cannot migrate: device %s of host %s is assigned to it; detach it first", vm.Name,
			strings.Join(g.Config.Devices, ", "), vm.Host))
	case !copyStorage && g.Config.SharedStorage != nil && !*g.Config.SharedStorage:
		return fleetapi.NewProblem(fleetapi.ProblemConflict, fmt.Sprintf(
			"VM %s cannot migrate: a disk or folder of it is on host %s alone; put it on shared storage first, "+
				"or ask for a copy of its disks", vm.Name, vm.Host))
	}
	return nil
}

// capabilitiesOf returns what the hypervisor of a running VM can do with it. Of one that its host has not reported yet,
// nothing is assumed.
func capabilitiesOf(st *state, vm *fleet.VM) *inventory.Capabilities {
	g, _ := orZero(st.reports[vm.Host]).guest(vm.Name)
	return &g.Can
}

// migrate chooses the target of a VM, unless the migration names one, and begins the migration there.
func (s *Server) migrate(t *transaction, st *state, vm *fleet.VM, m fleet.Migration) (*fleetapi.Why, error) {
	if err := migratable(st, vm, m.Options.CopyStorage); err != nil {
		return nil, err
	}
	d, err := s.sched.place(wish{vm: vm, host: m.To, can: capabilitiesOf(st, vm)}, t)
	if none := noHost(err); none != nil {
		return nil, fleetapi.NewProblem(fleetapi.ProblemNoHost, none.Error())
	}
	if err != nil {
		return nil, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	t.touch(store.Claims+vm.Host, st.keys[store.Claims+vm.Host])
	m.To, m.Placement, m.Began = d.Host, d.Placement, s.Now().UTC()
	vm.Migration, vm.Stays = &m, ""
	return whyOf(d, s.Now().UTC()), nil
}

// DeleteVM implements rest.Service.
func (s *Server) DeleteVM(ctx context.Context, c rest.Call, name string) (fleetapi.VM, error) {
	return s.changeVM(ctx, c, name, func(vm *fleet.VM) error {
		if vm.Migration != nil {
			return settledVM(vm)
		}
		vm.Delete, vm.Run = true, fleet.Stopped
		return nil
	})
}

// projectsOf returns the names of the projects that a user sees.
func projectsOf(st *state, u *fleetapi.User) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(st.projects)), func(p string) bool { return !u.Has(p) })
}
