package agent

import (
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// What changes all the time makes no new report: loads, free memory, and the CPUs that mirrored VMs hand over.
func TestAReportDoesNotChangeWithEachHandOver(t *testing.T) {
	host := func(cpus topology.CPUSet, taken int) inventory.Host {
		return inventory.Host{Name: "h", Taken: time.Unix(1_800_000_000, 0), Guests: []inventory.Guest{{
			Name: "m", Seen: inventory.Seen{Load: &inventory.GuestLoad{CPU: float64(taken)},
				HandedOver: &inventory.HandedOver{CPUs: cpus, Taken: taken, Means: "partition"}},
		}}}
	}
	a := digest(reported(host(topology.SetOf[topology.CPUID](0), 1)))
	b := digest(reported(host(topology.SetOf[topology.CPUID](0, 1), 2)))
	if a != b {
		t.Error("a hand-over makes a new report to the fleet's server")
	}
	other := host(topology.CPUSet{}, 1)
	other.Guests[0].State = "paused"
	if a == digest(reported(other)) {
		t.Error("a change of the VM's state makes no new report")
	}
}
