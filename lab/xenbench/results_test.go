package xenbench

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

// Figures are medians over rounds, shares are of all local, and a missed goal is named.
func TestResults(t *testing.T) {
	var r Results
	for round, scale := range []float64{1, 3, 2} {
		for way, work := range map[string]float64{Default: 80, Unplaced: 50, Pinned: 60, AllLocal: 100, AllRemote: 40,
			Numavisor: 96} {
			r.Runs = append(r.Runs, Run{Round: round + 1, Way: way, Guests: 2, Work: scale * work, Local: 0.5})
		}
	}
	if got := r.Table()[6]; strings.Join(got, "|") != "2|numavisor|0.00 M|96.0 %|50.0 %" {
		t.Errorf("Numavisor's row is %q", got)
	}
	if worth := r.Worth()[2]; worth != 1 {
		t.Errorf("placement is worth %v, want 1: all local does twice the work of none", worth)
	}
	for _, v := range r.Verdicts() {
		if !v.Met {
			t.Errorf("%s is missed with %s", v.Goal, v.Measured)
		}
	}
	r.Runs = append(r.Runs, Run{Way: AllLocal, Guests: 4, Work: 100}, Run{Way: Numavisor, Guests: 4, Work: 94},
		Run{Way: Pinned, Guests: 4, Work: 99})
	missed := 0
	for _, v := range r.Verdicts() {
		if !v.Met && v.Guests == 4 {
			missed++
		}
	}
	if missed != 2 {
		t.Errorf("with 4 VMs %d goals are missed, want 2", missed)
	}
}

// All vCPUs of the VMs have a CPU.
func TestSize_ACPUForEachVCPU(t *testing.T) {
	s, err := Shape()
	if err != nil {
		t.Fatal(err)
	}
	for guests := 1; guests <= MostGuests; guests++ {
		if vcpus, memory := size(s, guests); vcpus*guests > 8 || vcpus < 1 || memory < 128 {
			t.Errorf("%d VMs of %d vCPUs and %d MiB", guests, vcpus, memory)
		}
	}
}

// VMs placed by hand are spread over all nodes; those far from their memory are on its farthest node.
func TestWays_OnASquare(t *testing.T) {
	s, err := Shape()
	if err != nil {
		t.Fatal(err)
	}
	for vm, want := range []struct{ local, remote string }{{"0-1", "6-7"}, {"2-3", "4-5"}, {"4-5", "2-3"}, {"6-7", "0-1"},
		{"0-1", "6-7"}} {
		if got := local(s, vm); got != want.local {
			t.Errorf("VM %d is on CPUs %s, want %s", vm, got, want.local)
		}
		if got := farthest(s, vm); got != want.remote {
			t.Errorf("VM %d is pinned to CPUs %s, want %s", vm, got, want.remote)
		}
	}
}

func TestLocalShare(t *testing.T) {
	s := lab.Shape{Nodes: []lab.Node{{CPUs: 1}, {CPUs: 2}}}
	m := labcounter.Misses{Nodes: []topology.NodeID{0, 1}, CPUs: [][]uint64{{6, 2}, {1, 3}, {0, 4}}}
	if got := localShare(s, m); got != 13.0/16 {
		t.Errorf("share %v, want 13/16", got)
	}
	if got := localShare(s, labcounter.Misses{}); got != 0 {
		t.Errorf("share of nothing: %v", got)
	}
}

func TestRate(t *testing.T) {
	reports := []lab.Work{{Elapsed: time.Second, Lines: 100}, {Elapsed: 2 * time.Second, Lines: 300},
		{Elapsed: 5 * time.Second, Lines: 900}}
	if got := rate(reports); got != 200 {
		t.Errorf("%v lines a second, want 200", got)
	}
}

// Each round begins with another way, and has all of them.
func TestRotated(t *testing.T) {
	for round := range 2 * len(Ways()) {
		all := rotated(round)
		seen := map[string]bool{}
		for _, w := range all {
			seen[w.Name] = true
		}
		if len(seen) != len(Ways()) || all[0].Name != Ways()[round%len(Ways())].Name {
			t.Errorf("round %d: %d ways, first %s", round, len(seen), all[0].Name)
		}
	}
}

func TestOptions_Validate(t *testing.T) {
	for _, bad := range []Options{{}, {Guests: []int{9}, Rounds: 1, Seconds: 5}, {Guests: []int{1}, Seconds: 5},
		{Guests: []int{1}, Rounds: 1, Seconds: 1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
