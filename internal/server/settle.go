package server

import (
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
)

// settled is what the reports of hosts mean for a VM's record.
type settled struct {
	vm      fleet.VM
	changed bool
	moved   bool // the host has moved the VM to other nodes of its own
	deleted bool // the host has removed the VM: the record goes
}

// prepareTime is how long the target of a migration may take to claim the room.
const prepareTime = 5 * time.Minute

// facts are what is known of the hosts of a VM.
type facts struct {
	source, target *fleet.VMStatus // nil: not reported
	// sourceDead, targetDead: an operator said that the host does not run the VM and will not.
	sourceDead, targetDead bool
	now                    time.Time
}

// settle decides what follows from the reports about a VM. A VM has one host alone at each time: the record
// changes hosts only when the target says that the VM runs there, and a migration that fails ends
// only when the target has nothing of it (see fleet.Migration).
func settle(vm fleet.VM, f facts) settled {
	if vm.Migration != nil {
		return settleMigration(vm, f)
	}
	if vm.Delete && (vm.Host == "" || f.sourceDead || f.source != nil && f.source.Host == vm.Host &&
		f.source.Generation >= vm.Generation && f.source.Phase == fleet.PhaseGone) {
		return settled{vm: vm, deleted: true}
	}
	if s := f.source; movedByHost(&vm, s) {
		vm.Placement = s.Placement
		vm.Generation++ // the host has it already: it only says so
		return settled{vm: vm, changed: true, moved: true}
	}
	return settled{vm: vm}
}

// movedByHost reports whether a VM's host has carried out the record and then, by its own balancing, moved the VM
// to other nodes: the claim must follow, or the room there could be claimed twice.
func movedByHost(vm *fleet.VM, s *fleet.VMStatus) bool {
	return s != nil && vm.Host != "" && s.Host == vm.Host && s.Generation == vm.Generation && !vm.Delete &&
		vm.Run == fleet.Running && s.Phase == fleet.PhaseRunning && s.Placement.Guest == vm.Name &&
		len(s.Placement.Reservations) > 0 && !samePlacement(&s.Placement, &vm.Placement)
}

func settleMigration(vm fleet.VM, f facts) settled {
	m := *vm.Migration
	source, target := partOf(f.source, m.Began), partOf(f.target, m.Began)
	end := func() settled {
		vm.Migration = nil
		vm.Generation++
		return settled{vm: vm, changed: true}
	}
	cancel := func(why string) settled {
		if m.Cancel != "" {
			return settled{vm: vm}
		}
		m.Cancel = why
		vm.Migration = &m
		vm.Generation++
		return settled{vm: vm, changed: true}
	}
	stays := source.Phase == fleet.MigrationStays || source.Phase == fleet.MigrationUndecided
	switch {
	case target.Phase == fleet.MigrationArrived && source.Phase == fleet.MigrationStays && !f.sourceDead &&
		!f.targetDead:
		// One of the reports is wrong. As long as they contradict each other, neither host may start the VM.
		return cancel("both hosts report that they run the VM")
	case target.Phase == fleet.MigrationArrived && !f.targetDead:
		vm.Host, vm.Placement = m.To, m.Placement
		return end()
	case target.Phase == fleet.MigrationRefused && m.Ready == nil: // the source has not begun
		return end()
	case m.Cancel != "" && (target.Phase == fleet.MigrationGivenBack || target.Phase == fleet.MigrationRefused ||
		f.targetDead) && (stays || m.Ready == nil || f.sourceDead):
		return end()
	case m.Cancel != "" && source.Phase == fleet.MigrationGone && (f.targetDead ||
		target.Phase == fleet.MigrationGivenBack || target.Phase == fleet.MigrationRefused): // the VM has ended
		return end()
	case f.targetDead:
		return cancel("host " + m.To + " was declared dead")
	case f.sourceDead:
		return cancel("host " + vm.Host + " was declared dead")
	case stays:
		return cancel(orElse(source.Message, "the source has the VM still"))
	case source.Phase == fleet.MigrationGone:
		return cancel(orElse(source.Message, "the source has the VM no more"))
	case target.Phase == fleet.MigrationRefused:
		return cancel(orElse(target.Message, "the target has no room"))
	case target.Phase == fleet.MigrationPrepared && m.Ready == nil && m.Cancel == "" && target.Arrival != nil:
		m.Ready = target.Arrival
		vm.Migration = &m
		vm.Generation++
		return settled{vm: vm, changed: true}
	case m.Ready == nil && f.now.Sub(m.Began) > prepareTime:
		return cancel("the target has not prepared for the VM in " + prepareTime.String())
	}
	return settled{vm: vm}
}

// partOf returns what a host reports of the migration that began at a time.
func partOf(s *fleet.VMStatus, began time.Time) fleet.MigrationStatus {
	if s == nil || s.Migration == nil || !s.Migration.Began.Equal(began) {
		return fleet.MigrationStatus{}
	}
	return *s.Migration
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// moveOff returns the record of a VM whose host was declared dead, to be placed elsewhere.
func moveOff(vm fleet.VM) fleet.VM {
	vm.Pending = "host " + vm.Host + " was declared dead"
	vm.Host, vm.Placement = "", guest.Placement{}
	vm.Generation++
	return vm
}

// remaining returns the record by which a host that was declared dead removes a VM that was started elsewhere.
func remaining(vm fleet.VM) fleet.VM {
	vm.Delete, vm.Run, vm.Migration = true, fleet.Stopped, nil
	vm.Generation++
	return vm
}
