package drift_test

import (
	"math"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// A guest may be local although its vCPUs may run anywhere: the CPUs on which they
// last ran count, as long as the vCPUs may still run there.
func TestLocalShare_GoesByWhereVCPUsRan(t *testing.T) {
	ran := func(id guest.VCPUID, affinity string, last topology.CPUID, run time.Duration) inventory.Thread {
		v := vcpu(id, affinity, "0-2")
		v.LastCPU, v.RunTime = last, run
		return v
	}
	for name, c := range map[string]struct {
		threads []inventory.Thread
		want    float64
		source  drift.LocalSource
	}{
		"both ran on the node of the memory": {[]inventory.Thread{ran(0, "0-5", 2, time.Second),
			ran(1, "0-5", 3, time.Second)}, 1, drift.ByLastCPU},
		"one ran on another node, for a third of the time": {[]inventory.Thread{ran(0, "0-5", 2, 2*time.Second),
			ran(1, "0-5", 4, time.Second)}, 2. / 3, drift.ByLastCPU},
		"no run times are known": {[]inventory.Thread{ran(0, "0-5", 2, 0), ran(1, "0-5", 4, 0)}, 0.5,
			drift.ByLastCPU},
		"pinned to another node since, idle": {[]inventory.Thread{ran(0, "4-5", 2, time.Second),
			ran(1, "4-5", 4, time.Second)}, 0, drift.ByAffinity},
		"the last CPU is offline": {[]inventory.Thread{ran(0, "2-3", 9, time.Second)}, 1,
			drift.ByAffinity},
		"one never ran": {[]inventory.Thread{ran(0, "0-5", 2, time.Second), ran(1, "0-5", 0, 0)},
			1, drift.ByLastCPU},
	} {
		g := inventory.Guest{Name: "g", Seen: inventory.Seen{Threads: c.threads, MemoryByNode: byNode{1: 100 * mib}}}
		share, source := drift.LocalShare(g, host()), drift.LocalBy(&g, host())
		if share == nil || math.Abs(*share-c.want) > 1e-9 || source != c.source {
			t.Errorf("%s: share %v by %q, want %v by %q", name, share, source, c.want, c.source)
		}
	}
}
