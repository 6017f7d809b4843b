package operate_test

import (
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// The waits of a mirrored guest's vCPUs without a CPU are no waits for others.
func TestTruthOfAMirroredGuest(t *testing.T) {
	id := guest.VCPUID(0)
	g := inventory.Guest{Name: "m", State: "running", PID: 1, Seen: inventory.Seen{Threads: []inventory.Thread{
		{TID: 1, VCPU: &id, RunTime: time.Second, WaitTime: 7 * time.Second},
	}}}
	if r := operate.TruthOf(g, &topology.Topology{}); r.WaitShare == nil || r.HandedOver != nil {
		t.Fatalf("an ordinary guest: %+v", r)
	}
	g.Placement = &guest.Placement{Handoff: &guest.Handoff{Min: 2, Weight: 3}}
	if r := operate.TruthOf(g, &topology.Topology{}); r.WaitShare != nil || r.HandedOver == nil ||
		r.HandedOver.Min != 2 || r.HandedOver.Weight != 3 {
		t.Errorf("without a record: %+v", r)
	}
	g.Seen.HandedOver = &inventory.HandedOver{Taken: 5}
	if r := operate.TruthOf(g, &topology.Topology{}); r.HandedOver.Taken != 5 {
		t.Errorf("with a record: %+v", r.HandedOver)
	}
}
