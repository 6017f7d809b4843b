package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Each pool has a line with its nodes and VMs.
func TestPrintPools(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:2 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	cpus := topology.MustParseSet[topology.CPUID]
	inv := &inventory.Host{Topology: topo, Pools: []inventory.Pool{
		{Name: "Pool-node0", Scheduler: "credit2", CPUs: cpus("0-1")}, {Name: "Pool-node1", Scheduler: "null", CPUs: cpus("2-3")}},
		Guests: []inventory.Guest{{Name: "a", Pool: "Pool-node1"}, {Name: "b", Pool: "Pool-node1"}}}
	var out bytes.Buffer
	printPools(&out, inv)
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := "POOL SCHEDULER CPUS NODES VMS|Pool-node0 credit2 0-1 0 -|Pool-node1 null 2-3 1 a, b"
	if joined := strings.Join(got, "|"); joined != want {
		t.Errorf("printed\n%s\nwant\n%s", joined, want)
	}
	out.Reset()
	if printPools(&out, &inventory.Host{}); !strings.Contains(out.String(), "no CPU pools") {
		t.Errorf("without pools: %s", out.String())
	}
}
