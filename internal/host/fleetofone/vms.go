package fleetofone

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/api/fleet/show"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

// VMs implements rest.HostService.
func (s *Service) VMs(ctx context.Context, _ rest.Call, f fleetapi.Filter, p rest.Page) (fleetapi.VMs, error) {
	out := fleetapi.VMs{VMs: []fleetapi.VM{}}
	h, err := s.complete(ctx)
	if err != nil {
		return out, err
	}
	all, host := s.all(ctx, h)
	names, next := p.Of(slices.Sorted(maps.Keys(all)), func(name string) bool {
		vm := all[name]
		return f.Passes(vm.Project, vm.Labels) && (f.Host == "" || f.Host == host) &&
			(f.State == "" || f.State == vm.State)
	})
	out.Next = next
	for _, name := range names {
		out.VMs = append(out.VMs, all[name])
	}
	return out, nil
}

// VM implements rest.HostService.
func (s *Service) VM(ctx context.Context, _ rest.Call, name string) (fleetapi.VM, error) {
	h, err := s.look(ctx)
	if err != nil {
		return fleetapi.VM{}, err
	}
	all, _ := s.all(ctx, h)
	vm, ok := all[name]
	if !ok {
		return vm, s.missing(h, name)
	}
	vm.Why, err = s.why(name)
	return vm, err
}

// missing is the problem of a VM that is not there.
func (s *Service) missing(h *inventory.Host, name string) error {
	s.mu.Lock()
	last, failed := s.failed[name]
	s.mu.Unlock()
	if failed {
		return fleetapi.NewProblem(fleetapi.ProblemNotFound, fmt.Sprintf("there is no VM %s: at %s %s",
			name, last.at.UTC().Format(time.RFC3339), last.text()))
	}
	return problemOf(operate.Missing(*h, name))
}

// Placement implements rest.HostService.
func (s *Service) Placement(ctx context.Context, c rest.Call, name string) (fleetapi.Placement, error) {
	vm, err := s.VM(ctx, c, name)
	return fleetapi.Placement{VM: name, Host: vm.Host, Placement: vm.Placement, Pending: vm.Pending, Why: vm.Why}, err
}

// all returns the VMs of a host by name: those that exist, and those that are being created.
func (s *Service) all(ctx context.Context, h *inventory.Host) (all map[string]fleetapi.VM, host string) {
	host = s.hostName(ctx, h)
	all = map[string]fleetapi.VM{}
	for i := range h.Guests {
		g := &h.Guests[i]
		all[g.Name] = s.shown(h, g, host)
	}
	for i := range h.Claims {
		c := &h.Claims[i]
		if _, exists := all[c.Name]; c.PID == 0 && !exists {
			all[c.Name] = claimed(c, host)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, w := range s.works {
		if _, exists := all[name]; !exists && w.vm.Name != "" {
			all[name] = begun(w.vm, host, w)
		}
	}
	return all, host
}

// begun shows a VM that is being created.
func begun(vm fleet.VM, host string, w *work) fleetapi.VM {
	vm.Host = host
	return settled(fleetapi.VM{VM: vm, Status: &fleet.VMStatus{Name: vm.Name, Host: host, Generation: vm.Generation,
		Phase: fleet.PhaseWorking, Since: w.began.UTC(), Message: w.text()}}, "")
}

// claimed shows a VM that another program is creating.
func claimed(c *inventory.Claim, host string) fleetapi.VM {
	spec := guest.Spec{Name: c.Name, VCPUs: len(c.Placement.VCPUs), PageSize: c.Placement.PageSize}
	for _, r := range c.Placement.Reservations {
		spec.Memory = spec.Memory.Plus(r.Memory)
	}
	vm := fleet.VM{Name: c.Name, Project: fleetapi.DefaultProject, Created: c.Since, By: c.By, Spec: spec,
		Run: fleet.Running, Generation: 1, Host: host, Placement: c.Placement}
	return settled(fleetapi.VM{VM: vm, Status: &fleet.VMStatus{Name: c.Name, Host: host, Generation: 1,
		Phase: fleet.PhaseWorking, Since: c.Since, Message: "is being created by " + c.HeldBy()}}, "")
}

// recordOf is the record of a VM that exists.
func recordOf(g *inventory.Guest, host string) fleet.VM {
	vm := fleet.VM{Name: g.Name, Project: fleetapi.DefaultProject, Generation: 1, Host: host, Adopted: g.Adopted}
	if err := show.Adopted(g, &vm); err != nil { // another program may configure what no spec allows
		vm.Spec, vm.Run = guest.Spec{Name: g.Name, VCPUs: g.Config.VCPUs, Memory: g.Config.Memory}, runOf(g)
	}
	return vm
}

// shown returns a VM of the host as the API shows it.
func (s *Service) shown(h *inventory.Host, g *inventory.Guest, host string) fleetapi.VM {
	vm := recordOf(g, host)
	made := s.made.of(g, h, s.Local.Journal)
	vm.Created, vm.By = made.at, made.by
	out := fleetapi.VM{VM: vm, Status: s.statusOf(h, g, &vm)}
	if l := g.Seen.Load; l != nil {
		out.Load = &fleet.VMLoad{Name: g.Name, GuestLoad: *l, LocalShare: operate.TruthOf(*g, &h.Topology).LocalShare}
	}
	return settled(out, g.UUID)
}

// settled completes a shown VM by its state and revision.
func settled(vm fleetapi.VM, uuid string) fleetapi.VM {
	vm.State = fleetapi.StateOf(&vm.VM, vm.Status, true)
	vm.Revision = revisionOfVM(&vm.VM, uuid)
	return vm
}

// revisionOfVM changes when what users want of a VM changes, or when it is another VM of the same name.
func revisionOfVM(vm *fleet.VM, uuid string) int64 {
	return revisionOf(uuid, vm.Spec, vm.Placement, vm.Run, vm.Adopted)
}

// statusOf is what the host says of a VM.
func (s *Service) statusOf(h *inventory.Host, g *inventory.Guest, vm *fleet.VM) *fleet.VMStatus {
	out := &fleet.VMStatus{Name: g.Name, Host: vm.Host, Generation: vm.Generation, Phase: fleet.PhaseRunning}
	truth := operate.TruthOf(*g, &h.Topology)
	var differs []string
	for _, d := range truth.Differences {
		differs = append(differs, d.String())
	}
	switch {
	case vm.Run == fleet.Stopped:
		out.Phase = fleet.PhaseStopped
	case g.State != "running":
		out.Message = "it is " + g.State
	case g.PlacedFor != nil:
		out.Message = "it was placed for host " + g.PlacedFor.String() + ": bind it here"
	case g.Placement == nil:
		out.Message = cmp.Or(g.IntentError, "Numavisor has not placed it: adopt or bind it")
	case len(differs) > 0:
		out.Message = strings.Join(differs, "; ")
	default:
		out.Placement = *g.Placement
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	claim, busy := h.Claim(g.Name)
	last, failed := s.failed[g.Name]
	switch w := s.works[g.Name]; {
	case w != nil:
		out.Phase, out.Since, out.Message = fleet.PhaseWorking, w.began.UTC(), w.text()
	case busy:
		out.Phase, out.Since, out.Message = fleet.PhaseWorking, claim.Since, "is being changed by "+claim.HeldBy()
	case failed && last.refused:
		out.Message = strings.TrimSuffix(last.text()+"; "+out.Message, "; ")
	case failed:
		out.Phase, out.Since, out.Message = fleet.PhaseFailed, last.at.UTC(), last.text()
	}
	return out
}

// revisionBits is how many bits of a hash are a revision: every JSON reader has such numbers exactly.
const revisionBits = 53

// revisionOf is a number that changes when one of the values does.
func revisionOf(values ...any) int64 {
	data, err := json.Marshal(values)
	if err != nil { // no value of these types has an unencodable part
		data = fmt.Append(nil, values...)
	}
	sum := sha256.Sum256(data)
	return int64(binary.BigEndian.Uint64(sum[:8])>>(64-revisionBits)) | 1 //nolint:gosec // it has 53 bits
}
