package main

import (
	"strings"
	"testing"

	guestapi "github.com/numavisor/numavisor/internal/api/guest"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// A VM that does not run has no threads, no memory, and no source of them.
func TestAVMThatDoesNotRunIsShown(t *testing.T) {
	var printed strings.Builder
	printView(&printed, &topology.Topology{},
		operate.View{Truth: operate.Truth{Guest: "db", State: "shutoff", VCPUs: 2}})
	if text := printed.String(); !strings.Contains(text,
		"memory by node from no source; cells from no source; threads from no source\n") ||
		strings.Contains(text, "THREAD ") {
		t.Errorf("printed\n%s", text)
	}
}

// A VM whose number of vCPUs follows its demand is shown with those that it uses.
func TestWhichVCPUsAVMUsesIsShown(t *testing.T) {
	for want, s := range map[string]*inventory.Scaled{
		"": nil,
		"vCPUs by demand: uses all vCPUs, at least 1; no agent has reported\n": {Min: 1},
		"vCPUs by demand: uses vCPUs 0-1, at least 1; its agent frees vCPUs by means partition\n": {Min: 1,
			Used: topology.SetOf[guest.VCPUID](0, 1), Means: string(guestapi.Partition)},
		"vCPUs by demand: uses all vCPUs, at least 2; no agent has reported\n" +
			"vCPUs by accesses: 0,2 on node 0, 1 on node 3\n": {Min: 2, Divided: []inventory.VCPUsOfNode{
			{Node: 0, VCPUs: topology.SetOf[guest.VCPUID](0, 2)}, {Node: 3, VCPUs: topology.SetOf[guest.VCPUID](1)}}},
	} {
		var printed strings.Builder
		printScaled(&printed, s)
		if got := printed.String(); got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
	g := operate.Truth{VCPUs: 8, Scaled: &inventory.Scaled{Used: topology.SetOf[guest.VCPUID](0, 1)}}
	if got := vcpusText(g); got != "2 of 8" {
		t.Errorf("the list shows %q vCPUs", got)
	}
}

// A mirrored VM is shown with its CPUs and the means of its agent.
func TestWhatAMirroredVMHasIsShown(t *testing.T) {
	cpus := topology.SetOf[topology.CPUID](0, 1, 2)
	for want, g := range map[string]*inventory.HandedOver{
		"": nil,
		"hand-over: has no CPUs on record, at least 1; took 0; no agent has reported\n": {Min: 1},
		"hand-over: has CPUs 0-2, at least 1; took 5; its agent frees vCPUs by means offline\n": {CPUs: cpus, Min: 1,
			Means: string(guestapi.Offline), Taken: 5},
		"hand-over: has CPUs 0-2, at least 1; took 0; its agent has no means to free vCPUs\n": {CPUs: cpus, Min: 1,
			Means: string(guestapi.None)},
		"hand-over: has CPUs 0-2, at least 1; took 0; its agent (means flip) has sent nothing for 3 s\n" +
			"hand-over: 1 vCPU ran after its release, and was stopped\n": {CPUs: cpus, Min: 1,
			Means: string(guestapi.Flip), Silent: true, Misbehaved: 1},
	} {
		var printed strings.Builder
		printHandedOver(&printed, g)
		if got := printed.String(); got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
}
