package xen

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// table is an output of xl vcpu-list: lines of domain, vCPU, CPU, state and run time.
func table(lines ...string) map[int][]vcpu {
	text := "Name                                ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)\n"
	for _, l := range lines {
		text += "vm " + l + " all / all\n"
	}
	all, err := parseVCPUs([]byte(text))
	if err != nil {
		panic(err)
	}
	return all
}

// measured computes a sample from readings that are five seconds apart, on a host of two nodes with four CPUs each.
func measured(t *testing.T, guests []inventory.Guest, tables ...map[int][]vcpu) inventory.Sample {
	t.Helper()
	topo := synthetic(t)
	f := figures{guests: guests, topology: &topo, window: time.Second, free: map[topology.NodeID]topology.Bytes{1: 7}}
	for i, v := range tables {
		f.readings = append(f.readings, reading{at: time.Unix(int64(5*i), 0), vcpus: v})
	}
	var s inventory.Sample
	f.fill(&s)
	return s
}

func domU(run string) inventory.Guest {
	return inventory.Guest{Name: "vm" + run, State: "running", Run: run, Seen: inventory.Seen{
		MemoryByNode: topology.MemoryByNode{0: topology.GiB}}}
}

// CPU use is by the CPU on which each vCPU last ran, of guests and of the control domain.
func TestFigures_CPUUse(t *testing.T) {
	s := measured(t, []inventory.Guest{domU("1")},
		table("0 0 2 r-- 10.0", "1 0 1 r-- 20.0", "1 1 5 -b- 30.0"),
		table("0 0 2 r-- 11.0", "1 0 1 r-- 24.0", "1 1 5 -b- 30.5"))
	g := s.Guests[0]
	if !near(g.Load.CPU, 0.9) || !near(g.CPUByNode[0], 0.8) || !near(g.CPUByNode[1], 0.1) ||
		g.Load.Window != time.Second {
		t.Errorf("load is %+v, by node %v; want 0.9 CPUs, 0.8 of them on node 0", g.Load, g.CPUByNode)
	}
	if g.Load.Wait != 0 {
		t.Errorf("waits %v, but none of its vCPUs was seen waiting", g.Load.Wait)
	}
	if !near(s.Nodes[0].CPU, 1) || !near(s.Nodes[1].CPU, 0.1) || s.Nodes[0].CPUs != 4 || s.Nodes[1].Free != 7 {
		t.Errorf("nodes are %+v", s.Nodes)
	}
	if g.Load.Remote == nil || g.Load.Remote.Source != inventory.AccessEstimate || !near(g.Load.Remote.Share, 1.0/9) {
		t.Errorf("remote accesses are %+v, want the placement estimate of 1/9", g.Load.Remote)
	}
	if len(s.Gaps) == 0 || s.Gaps[0].Kind != inventory.NotReported {
		t.Errorf("gaps are %v, want what Xen does not report", s.Gaps)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// Waits are estimated from states, and not by chance: few states count less. A vCPU that waits where the control
// domain runs was displaced by xl itself.
func TestFigures_Waits(t *testing.T) {
	waiting := []map[int][]vcpu{}
	for i := range 12 {
		run := 10 + 2.5*float64(i)
		waiting = append(waiting, table("0 0 7 r-- 1.0",
			strings.Replace("1 0 1 STATE RUN", "STATE RUN", running(i%2 == 0, run), 1),
			strings.Replace("1 1 1 STATE RUN", "STATE RUN", running(i%2 == 1, run), 1)))
	}
	s := measured(t, []inventory.Guest{domU("1")}, waiting...)
	if l := s.Guests[0].Load; !near(l.CPU, 1) || l.Wait < 0.75 || l.Wait > 1 {
		t.Errorf("two vCPUs share a CPU: load is %+v, want 1 CPU used and nearly 1 waited for", l)
	}
	if n := s.Nodes[0]; !near(n.Wait, 1) {
		t.Errorf("%v vCPUs wait on node 0, want 1", n.Wait)
	}
	few := measured(t, []inventory.Guest{domU("1")}, waiting[:2]...)
	if l := few.Guests[0].Load; l.Wait <= 0 || l.Wait >= s.Guests[0].Load.Wait {
		t.Errorf("by two readings it waits %v, and by twelve %v; want less", l.Wait, s.Guests[0].Load.Wait)
	}
	displaced := measured(t, []inventory.Guest{domU("1")}, table("0 0 1 r-- 1.0", "1 0 1 --- 10.0"),
		table("0 0 1 r-- 1.1", "1 0 1 --- 14.8"))
	if l := displaced.Guests[0].Load; l.Wait != 0 {
		t.Errorf("displaced by xl itself it waits %v", l.Wait)
	}
	topo := synthetic(t)
	capped := figures{guests: []inventory.Guest{domU("1")}, topology: &topo, window: time.Second,
		capped: map[int]bool{1: true}}
	for i, v := range waiting {
		capped.readings = append(capped.readings, reading{at: time.Unix(int64(5*i), 0), vcpus: v})
	}
	var limited inventory.Sample
	capped.fill(&limited)
	if l := limited.Guests[0].Load; l.Wait != 0 || limited.Nodes[0].Wait != 0 || !near(l.CPU, 1) {
		t.Errorf("a domain with a cap has %+v, its node a wait of %v; a cap is no waiting", l, limited.Nodes[0].Wait)
	}
	paused := measured(t, []inventory.Guest{domU("1")}, table("1 0 1 --- 10.0"), table("1 0 1 --- 10.0"))
	if l := paused.Guests[0].Load; l.Wait != 0 || paused.Nodes[0].Wait != 0 {
		t.Errorf("a paused domain waits %v, its node %v", l.Wait, paused.Nodes[0].Wait)
	}
}

func running(runs bool, seconds float64) string {
	word := "---"
	if runs {
		word = "r--"
	}
	return fmt.Sprintf("%s %.1f", word, seconds)
}

// A domain that ended has no sample. One that just came, or has another number than when it was observed, is not
// measured yet. Offline vCPUs neither run nor wait.
func TestFigures_ComeAndGo(t *testing.T) {
	s := measured(t, []inventory.Guest{domU("1"), domU("2"), domU("3")},
		table("1 0 1 r-- 10.0", "3 0 0 r-- 1.0", "3 1 - --p 0.0"),
		table("2 0 1 r-- 1.0", "3 0 0 r-- 6.0", "3 1 - --p 0.0"))
	if len(s.Guests) != 2 || s.Guests[0].Name != "vm2" || s.Guests[0].Load.Window != 0 || !s.Unmeasured {
		t.Fatalf("guests are %+v, unmeasured %v; want vm2 without figures, and vm3", s.Guests, s.Unmeasured)
	}
	if l := s.Guests[1].Load; !near(l.CPU, 1) || l.Wait != 0 {
		t.Errorf("vm3 with an offline vCPU has %+v", l)
	}
	if s := measured(t, []inventory.Guest{domU("3")}, table("3 0 0 r-- 1.0"), table("3 0 0 r-- 2.0")); s.Unmeasured {
		t.Error("a measured guest counts as unmeasured")
	}
	s = measured(t, []inventory.Guest{domU("1")})
	if len(s.Guests) != 1 || s.Guests[0].Load.Window != 0 || !s.Unmeasured {
		t.Errorf("without readings the guests are %+v, want one that is not measured", s.Guests)
	}
}

func TestLeastShare(t *testing.T) {
	for _, c := range []struct {
		counted, of int
		low, high   float64
	}{{0, 0, 0, 0}, {0, 24, 0, 0}, {1, 24, 0.01, 0.03}, {12, 24, 0.38, 0.42}, {24, 24, 0.95, 1}, {2, 2, 0.6, 0.7}} {
		if got := leastShare(c.counted, c.of); got < c.low || got > c.high {
			t.Errorf("%d of %d: %v, want between %v and %v", c.counted, c.of, got, c.low, c.high)
		}
	}
}
