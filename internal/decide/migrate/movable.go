package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
)

// specOf returns the spec that a VM has on another host: its NUMA cells are those that it
// booted with.
func specOf(g *inventory.Guest) guest.Spec {
	s := adopt.Spec(*g)
	if g.Spec != nil {
		s = adopt.Elsewhere(*g.Spec, g.Placement, g.Can)
	}
	s.Name = g.Name
	return s
}

// machineOf returns the type of a VM's machine. A VM that its host does not report yet has no hypervisor.
func machineOf(g *inventory.Guest, facts VM) string {
	return cmp.Or(facts.Machine, inventory.MachineTypeOf(g.Hypervisor))
}

// immovable says why a VM cannot migrate at all; no kind: it can.
func (p *planner) immovable(host string, g *inventory.Guest) Blocked {
	b := Blocked{VM: g.Name, Host: host}
	facts, known := p.VMs[g.Name]
	switch {
	case slices.ContainsFunc(p.Running, func(r Running) bool { return r.VM == g.Name }):
		b.Kind, b.Why = Migrating, "migrates already"
	case p.modeOf(g) == policy.ModeOff:
		b.Kind, b.Why = ModeOff, "mode off"
	case g.State != "running":
		b.Kind, b.Why = NotRunning, "is "+g.State
	case !g.Managed || g.Placement == nil:
		b.Kind, b.Why = Unmanaged, "is not managed: bind it first"
	case !known:
		b.Kind, b.Why = Unmanaged, "is not a VM of the fleet: adopt it first"
	case g.Placement.Handoff != nil:
		b.Kind, b.Why = Mirrored, guest.ErrMirrored.Error()
	case len(g.Config.Devices) > 0 || slices.ContainsFunc(specOf(g).Devices, passthrough):
		b.Kind, b.Why = Devices, "a host device is assigned to it"
	case facts.SharedStorage == nil:
		b.Kind, b.Why = Storage, "its disks are not known to be reachable from other hosts"
	case !*facts.SharedStorage:
		b.Kind, b.Why = Storage, "its disks are on this host only"
	}
	return b
}

// modeOf returns what may be done with a VM now.
func (p *planner) modeOf(g *inventory.Guest) policy.Mode {
	mode := p.policy.Balance.MigrateModeOf(g.Name, g.Ours())
	if mode == policy.ModeAuto && !p.policy.Balance.Open(p.Now) {
		return policy.ModeAdvise
	}
	return mode
}

func passthrough(d guest.DeviceSpec) bool { return d.Passthrough }

// past is what the migrations of a VM within the last day mean for the next one.
type past struct {
	recent   int
	until    time.Time // the end of its cooldown
	left     []string  // hosts that it may not return to yet
	everLeft []string
}

func (p *planner) pastOf(vm string) past {
	b := p.policy.Balance
	var out past
	var last time.Time
	for _, m := range p.History {
		age := p.Now.Sub(m.At)
		if m.VM != vm || age >= balance.Remembered(b) {
			continue
		}
		out.recent++
		out.everLeft = append(out.everLeft, m.From)
		if age < time.Duration(b.NoReturn) {
			out.left = append(out.left, m.From)
		}
		if m.At.After(last) {
			last = m.At
		}
	}
	if out.recent > 0 {
		out.until = last.Add(time.Duration(b.Cooldown) << min(out.recent-1, 16))
	}
	return out
}

// cooling says whether a VM is in cooldown.
func (p *planner) cooling(host, vm string, m past) Blocked {
	if failed := p.VMs[vm].NotBefore; p.Now.Before(failed) && m.until.Before(failed) {
		return Blocked{VM: vm, Host: host, Kind: Cooldown, Until: failed.UTC(),
			Why: "its last migration failed; not tried again until " + failed.UTC().Format(time.RFC3339)}
	}
	if !p.Now.Before(m.until) {
		return Blocked{}
	}
	until := m.until.UTC()
	return Blocked{VM: vm, Host: host, Kind: Cooldown, Until: until,
		Why: fmt.Sprintf("in cooldown until %s (migrations within the last %v: %d)", until.Format(time.RFC3339),
			balance.Remembered(p.policy.Balance), m.recent)}
}
