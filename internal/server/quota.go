package server

import (
	"fmt"
	"strings"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// shareOf returns what a VM counts against the quota of its project.
func shareOf(vm *fleet.VM) fleetapi.Quota {
	q := fleetapi.Quota{VMs: 1, VCPUs: vm.Spec.VCPUs, Memory: vm.Spec.Memory}
	if vm.Spec.CPU.Binding == guest.CPUExclusive {
		q.Exclusive = vm.Spec.VCPUs
	}
	if vm.Spec.PageSize > 0 {
		q.HugePages = vm.Spec.Memory
	}
	return q
}

// plus adds a share; sign is 1 or -1.
func plus(q, share fleetapi.Quota, sign int) fleetapi.Quota {
	add := func(a, b topology.Bytes) topology.Bytes {
		if sign < 0 {
			return a - min(a, b)
		}
		return a.Plus(b)
	}
	return fleetapi.Quota{
		VMs: q.VMs + sign*share.VMs, VCPUs: q.VCPUs + sign*share.VCPUs, Exclusive: q.Exclusive + sign*share.Exclusive,
		Memory: add(q.Memory, share.Memory), HugePages: add(q.HugePages, share.HugePages),
	}
}

// exceeds says in one line which limits a project would exceed; "" if none.
func exceeds(quota, used, share fleetapi.Quota) string {
	var over []string
	number := func(limit, used, more int, what string) {
		if limit > 0 && more > 0 && used+more > limit {
			over = append(over, fmt.Sprintf("%s: %d of %d in use, %d more asked for", what, used, limit, more))
		}
	}
	memory := func(limit, used, more topology.Bytes, what string) {
		if limit > 0 && more > 0 && used.Plus(more) > limit {
			over = append(over, fmt.Sprintf("%s: %v of %v in use, %v more asked for", what, used, limit, more))
		}
	}
	number(quota.VMs, used.VMs, share.VMs, "VMs")
	number(quota.VCPUs, used.VCPUs, share.VCPUs, "vCPUs")
	number(quota.Exclusive, used.Exclusive, share.Exclusive, "exclusive CPUs")
	memory(quota.Memory, used.Memory, share.Memory, "memory")
	memory(quota.HugePages, used.HugePages, share.HugePages, "huge pages")
	return strings.Join(over, "; ")
}
