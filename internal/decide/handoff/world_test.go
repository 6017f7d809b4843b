package handoff_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/topology"
)

// start is when each test begins.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// draw returns a host with mirrored guests whose minimums fit, and no grants.
// units is the greatest number of CPUs.
func draw(t *rapid.T, shapes []string) handoff.Input {
	topo, err := topology.Synthetic(rapid.SampledFrom(shapes).Draw(t, "host"))
	if err != nil {
		t.Fatal(err)
	}
	in := handoff.Input{Now: start, Topology: &topo, Rules: handoff.Rules{
		CPUs: topo.CPUSet(), WholeCores: rapid.Bool().Draw(t, "wholeCores"),
	}}
	count := rapid.IntRange(1, min(4, cores(&topo))).Draw(t, "guests")
	var anchors topology.CPUSet
	for i := range count {
		g := handoff.Guest{
			Name: fmt.Sprintf("vm%d", i), Home: rapid.SampledFrom(topo.Nodes).Draw(t, "home").ID,
			Weight: rapid.SampledFrom([]int{1, 2, 3, 100}).Draw(t, "weight"),
		}
		g.Mirror = drawMirror(t, &topo, g.Home, anchors)
		if len(g.Mirror) == 0 {
			continue
		}
		anchor, _ := topo.CPU(g.Mirror[0])
		anchors = anchors.Union(anchor.Siblings)
		g.Min = 1
		in.Guests = append(in.Guests, g)
	}
	return in
}

func cores(topo *topology.Topology) int {
	n := 0
	for _, c := range topo.CPUs {
		if first, _ := c.Siblings.First(); first == c.ID {
			n++
		}
	}
	return n
}

// drawMirror returns the CPUs of some nodes, the anchor first.
func drawMirror(t *rapid.T, topo *topology.Topology, home topology.NodeID, anchors topology.CPUSet) []topology.CPUID {
	nodes := topology.SetOf(home)
	for _, n := range topo.Nodes {
		if rapid.IntRange(0, 3).Draw(t, "covers") > 0 {
			nodes = nodes.With(n.ID)
		}
	}
	cpus := topo.CPUsOf(nodes).IDs()
	at := slices.IndexFunc(cpus, func(c topology.CPUID) bool { return !anchors.Contains(c) })
	if at < 0 {
		return nil
	}
	cpus[0], cpus[at] = cpus[at], cpus[0]
	return cpus
}

func drawDemand(t *rapid.T, in *handoff.Input, g *handoff.Guest) handoff.Demand {
	all := make([]float64, 2*len(g.Mirror)+1) // sampled, since rapid's numbers tend to be small
	for i := range all {
		all[i] = float64(i) / 2
	}
	return handoff.Demand{
		Guest: g.Name, At: in.Now,
		Running: rapid.SampledFrom(all).Draw(t, "running"), Waiting: rapid.SampledFrom(all).Draw(t, "waiting"),
		Brief: rapid.SampledFrom(all).Draw(t, "brief"),
	}
}

// world carries decisions out: guests acknowledge in any order, late or never.
type world struct {
	in    handoff.Input
	epoch handoff.Epoch
}

// step decides and carries the takes out at once; releases become leaving. Forced
// releases free their CPU.
func (w *world) step(t interface {
	Helper()
	Fatalf(format string, args ...any)
},
) handoff.Decision {
	t.Helper()
	d, memory, err := handoff.Decide(w.in)
	if err != nil {
		t.Fatalf("%v", err)
	}
	w.in.Memory = memory
	for _, take := range d.Takes {
		if i := w.find(take.CPU); i >= 0 {
			t.Fatalf("CPU %d is given to %s and still granted to %s", take.CPU, take.Guest, w.in.Grants[i].Guest)
		}
		w.epoch++
		w.in.Grants = append(w.in.Grants,
			handoff.Grant{CPU: take.CPU, Guest: take.Guest, Epoch: w.epoch, Since: w.in.Now})
	}
	for _, r := range d.Releases {
		i := w.find(r.CPU)
		if i < 0 || w.in.Grants[i].Guest != r.Guest {
			t.Fatalf("release of CPU %d by %s, which does not have it", r.CPU, r.Guest)
		}
		if r.Force {
			w.in.Grants = slices.Delete(w.in.Grants, i, i+1)
			continue
		}
		if w.in.Grants[i].Leaving {
			t.Fatalf("%s is asked twice for CPU %d", r.Guest, r.CPU)
		}
		w.in.Grants[i].Leaving, w.in.Grants[i].Since = true, w.in.Now
	}
	return d
}

func (w *world) find(cpu topology.CPUID) int {
	return slices.IndexFunc(w.in.Grants, func(g handoff.Grant) bool { return g.CPU == cpu })
}

// acknowledge frees all leaving CPUs, and reports whether there were some.
func (w *world) acknowledge() bool {
	before := len(w.in.Grants)
	w.in.Grants = slices.DeleteFunc(w.in.Grants, func(g handoff.Grant) bool { return g.Leaving })
	return len(w.in.Grants) < before
}

// settle lets time pass until nothing changes any more, and returns the number of
// decisions that changed something.
func (w *world) settle(t interface {
	Helper()
	Fatalf(format string, args ...any)
},
) int {
	t.Helper()
	for changes := 0; ; changes++ {
		if changes > 4*len(w.in.Topology.CPUs)+20 {
			t.Fatalf("does not converge: %+v", w.in)
		}
		d := w.step(t)
		if !w.acknowledge() && len(d.Takes)+len(d.Releases) == 0 {
			if d.Again.IsZero() {
				return changes
			}
			w.in.Now = d.Again
			continue
		}
		w.in.Now = w.in.Now.Add(10 * time.Millisecond)
	}
}

func (w *world) held(name string) []topology.CPUID {
	var cpus []topology.CPUID
	for _, g := range w.in.Grants {
		if g.Guest == name && !g.Leaving {
			cpus = append(cpus, g.CPU)
		}
	}
	slices.Sort(cpus)
	return cpus
}
