package drift_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// without takes CPUs of the host offline.
func without(gone string) *topology.Topology {
	t := host()
	t.Offline = cpus(gone)
	t.CPUs = slices.DeleteFunc(t.CPUs, func(c topology.CPU) bool { return t.Offline.Contains(c.ID) })
	for i := range t.Nodes {
		t.Nodes[i].CPUs = t.Nodes[i].CPUs.Minus(t.Offline)
	}
	return t
}

// The kernel lets a thread run everywhere when the last of its CPUs goes offline.
func TestOf_VCPUWhoseCPUsAreAllOffline(t *testing.T) {
	g := twoCells()
	g.Seen.Threads[1] = vcpu(1, "0-1,4-5", "0-1") // was restricted to CPUs 2-3
	got := drift.Of(g, without("2-3"))
	want := []drift.Difference{{Kind: drift.CPUsOffline, Object: "vCPU 1", Intended: "2-3", Seen: "0-1,4-5"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text := got[0].String(); text != "vCPU 1 may run on CPUs 0-1,4-5, as its CPUs 2-3 are all offline" {
		t.Errorf("says %q", text)
	}
}

func TestOf_VCPUThatHasCPUsLeft(t *testing.T) {
	g := twoCells()
	g.Seen.Threads[1] = vcpu(1, "2", "0-1")
	if got := drift.Of(g, without("3")); len(got) > 0 {
		t.Errorf("CPU 3 of 2-3 is offline, drift is %v", got)
	}
}

// Which of its CPUs a guest that hands CPUs over has changes all the time; others are
// not its.
func TestOf_VCPUsThatAreHandedOver(t *testing.T) {
	g := twoCells()
	g.Placement.CPUMode, g.Placement.Handoff = guest.CPUHandoff, &guest.Handoff{Min: 1}
	g.Placement.VCPUs = []guest.VCPU{{ID: 0, CPUs: cpus("0")}, {ID: 1, CPUs: cpus("2")}}
	g.Seen.Threads[0], g.Seen.Threads[1] = vcpu(0, "0", "0-1"), vcpu(1, "0", "0-1")
	if got := drift.Of(g, host()); len(got) > 0 {
		t.Errorf("vCPU 1 waits on the CPU of vCPU 0; drift is %v", got)
	}
	g.Seen.Threads[1] = vcpu(1, "2-3", "0-1")
	if got := drift.Of(g, host()); len(got) != 1 || got[0].Kind != drift.VCPUAffinity {
		t.Errorf("vCPU 1 may run on CPU 3 of others; drift is %v", got)
	}
}

func TestOf_EmulatorWhoseCPUsAreAllOffline(t *testing.T) {
	g := twoCells()
	g.Placement.Emulator = cpus("4-5")
	g.Seen.Threads = append(g.Seen.Threads, helper(inventory.RoleEmulator, "0-3", "0-1"))
	got := drift.Of(g, without("4-5"))
	if len(got) != 1 || got[0].Kind != drift.CPUsOffline || got[0].Object != "emulator threads" {
		t.Errorf("drift is %v", got)
	}
}
