package fleetapi

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/fleet"
)

// StateOf says in one word how a VM is. Reachable says whether the server hears from its host.
func StateOf(vm *fleet.VM, s *fleet.VMStatus, reachable bool) VMState {
	switch {
	case vm.Delete:
		return VMDeleting
	case vm.Host == "":
		return VMPending
	case !reachable:
		return VMUnknown
	case vm.Migration != nil:
		return VMMigrating
	case s == nil || s.Host != vm.Host || s.Generation < vm.Generation:
		return VMWorking
	}
	switch s.Phase {
	case fleet.PhaseRunning:
		return VMRunning
	case fleet.PhaseStopped:
		return VMStopped
	case fleet.PhaseFailed:
		return VMFailed
	case fleet.PhaseWorking, fleet.PhaseGone:
	}
	return VMWorking
}

// HideSecrets removes what may contain passwords.
func HideSecrets(vm fleet.VM) fleet.VM {
	if vm.Machine.CloudInit != "" {
		vm.Machine.CloudInit = fmt.Sprintf("(%d bytes, not shown)", len(vm.Machine.CloudInit))
	}
	return vm
}

// Passes reports whether a filter passes a VM of a project with labels, whatever its host and its state are.
func (f *Filter) Passes(project string, labels map[string]string) bool {
	key, value, withValue := strings.Cut(f.Label, "=")
	label, has := labels[key]
	return (f.Project == "" || project == f.Project) && (f.Label == "" || has && (!withValue || label == value))
}

// AlarmOf returns an alarm of a host as the API shows it.
func AlarmOf(host string, a *alarm.Alarm) LastingAlarm {
	return LastingAlarm{Host: host, Severity: a.Severity, Quantity: a.Quantity, Object: a.Object.String(),
		Worst: a.Worst, Threshold: a.Threshold, Since: a.First, VMs: a.Guests, Why: a.Why}
}
