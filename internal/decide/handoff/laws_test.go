package handoff_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/topology"
)

var hosts = []string{
	"nodes:1 cores:4", "nodes:2 cores:3", "nodes:2 cores:2 threads:2", "nodes:4 cores:2 distances:10,16,28 square",
	"nodes:3 cores:2 threads:2 distances:10,15,30", "nodes:2 cores:8 threads:2",
}

// minimums raises minimums as far as all of them can hold at once.
func minimums(t *rapid.T, in *handoff.Input) {
	size := 1
	if in.Rules.WholeCores {
		size = in.Topology.CPUs[0].Siblings.Len()
	}
	for i := range in.Guests {
		g := &in.Guests[i]
		before := g.Min
		g.Min = rapid.IntRange(1, len(g.Mirror)).Draw(t, "min")
		if !possible(in, size) {
			g.Min = before
		}
	}
}

// possible reports whether the minimums can hold at once (Hall's theorem): each set of
// guests can have as many units as its members need.
func possible(in *handoff.Input, size int) bool {
	for set := 1; set < 1<<len(in.Guests); set++ {
		need := 0
		var may, notMay topology.CPUSet
		for i := range in.Guests {
			anchor, _ := in.Topology.CPU(in.Guests[i].Mirror[0])
			taken := topology.SetOf(anchor.ID)
			if in.Rules.WholeCores {
				taken = anchor.Siblings
			}
			if set>>i&1 == 0 {
				notMay = notMay.Union(taken)
				continue
			}
			need += (in.Guests[i].Min + size - 1) / size
			may = may.With(in.Guests[i].Mirror...)
		}
		if may.Minus(notMay).Len() < need*size {
			return false
		}
	}
	return true
}

// chaos is a world in which guests answer late, refuse, freeze, come and go.
type chaos struct {
	world
}

func (c *chaos) disturb(t *rapid.T) {
	for range rapid.IntRange(0, 4).Draw(t, "events") {
		g := &c.in.Guests[rapid.IntRange(0, len(c.in.Guests)-1).Draw(t, "guest")]
		switch rapid.SampledFrom([]string{"demand", "acknowledge", "refuse", "freeze", "thaw", "stop"}).Draw(t, "event") {
		case "demand":
			demand := drawDemand(t, &c.in, g)
			c.in.Demands = slices.DeleteFunc(c.in.Demands, func(d handoff.Demand) bool { return d.Guest == g.Name })
			c.in.Demands = append(c.in.Demands, demand)
		case "acknowledge":
			if i := slices.IndexFunc(c.in.Grants, func(x handoff.Grant) bool {
				return x.Leaving && x.Guest == g.Name
			}); i >= 0 {
				c.in.Grants = slices.Delete(c.in.Grants, i, i+1)
			}
		case "refuse":
			for i := range c.in.Grants {
				if x := &c.in.Grants[i]; x.Leaving && x.Guest == g.Name {
					x.Leaving, x.Stuck, x.Since = false, true, c.in.Now
				}
			}
		case "freeze":
			g.Frozen = true
		case "thaw":
			g.Frozen = false
			for i := range c.in.Grants {
				c.in.Grants[i].Stuck = false
			}
		case "stop": // and start again, without grants
			c.in.Grants = slices.DeleteFunc(c.in.Grants, func(x handoff.Grant) bool { return x.Guest == g.Name })
		}
	}
	c.in.Now = c.in.Now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "ms")) * time.Millisecond)
}

// lawful checks what holds after each decision, whatever the guests do.
func (c *chaos) lawful(t *rapid.T, d handoff.Decision) {
	seen := map[topology.CPUID]string{}
	core := map[topology.CoreID]string{}
	for _, g := range c.in.Grants {
		if other, twice := seen[g.CPU]; twice {
			t.Fatalf("CPU %d serves %s and %s", g.CPU, other, g.Guest)
		}
		seen[g.CPU] = g.Guest
		cpu, _ := c.in.Topology.CPU(g.CPU)
		if other, taken := core[cpu.Core]; taken && other != g.Guest && c.in.Rules.WholeCores {
			t.Fatalf("core %d serves %s and %s", cpu.Core, other, g.Guest)
		}
		core[cpu.Core] = g.Guest
	}
	for _, g := range c.in.Guests {
		if i := slices.IndexFunc(d.Releases, func(r handoff.Release) bool {
			return r.Guest == g.Name && r.CPU == g.Mirror[0]
		}); i >= 0 {
			t.Fatalf("%s is asked for its anchor, CPU %d", g.Name, g.Mirror[0])
		}
	}
	for _, r := range d.Releases {
		frozen := slices.ContainsFunc(c.in.Guests, func(g handoff.Guest) bool { return g.Name == r.Guest && g.Frozen })
		if frozen && !r.Force {
			t.Fatalf("frozen VM %s is asked for CPU %d", r.Guest, r.CPU)
		}
	}
	for _, target := range d.Targets {
		if target.CPUs > target.Want || target.Steady > target.Want {
			t.Fatalf("target %+v exceeds what the VM wants", target)
		}
	}
}

// TestLaws_HoldWhateverGuestsDo: never two guests on a CPU (nor, with whole cores, on a
// core), anchors stay, and once guests answer again, each has at least its minimum
// within two control periods, and the host comes to rest.
func TestLaws_HoldWhateverGuestsDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &chaos{world: world{in: draw(t, hosts)}}
		minimums(t, &c.in)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			c.disturb(t)
			c.lawful(t, c.step(t))
		}
		// Nobody answers: minimums come by force, after one period at most.
		for range 2 {
			c.lawful(t, c.step(t))
			c.in.Now = c.in.Now.Add(50 * time.Millisecond)
			c.lawful(t, c.step(t))
		}
		for _, g := range c.in.Guests {
			if n := len(c.held(g.Name)); n < g.Min {
				t.Fatalf("VM %s has %d CPUs after two periods; its minimum is %d: %+v", g.Name, n, g.Min, c.in)
			}
		}
		for i := range c.in.Guests {
			c.in.Guests[i].Frozen = false
		}
		for i := range c.in.Grants {
			c.in.Grants[i].Stuck = false
		}
		c.settle(t)
		c.atRest(t)
	})
}

// atRest checks the state in which nothing more is to be done.
func (c *chaos) atRest(t *rapid.T) {
	d, _, err := handoff.Decide(c.in)
	if err != nil || len(d.Takes)+len(d.Releases) > 0 {
		t.Fatalf("not at rest: %+v, %v", d, err)
	}
	for _, target := range d.Targets {
		if target.Has < target.CPUs {
			t.Fatalf("at rest with target %+v", target)
		}
	}
}

// TestLaws_NoiseMovesNothing: demand that varies within the settling time below what
// each guest has moves nothing.
func TestLaws_NoiseMovesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: draw(t, hosts)}
		peak := map[string]float64{}
		for i := range w.in.Guests {
			d := drawDemand(t, &w.in, &w.in.Guests[i])
			peak[d.Guest] = d.Running + d.Waiting
			w.in.Demands = append(w.in.Demands, d)
		}
		w.settle(t)
		before := slices.Clone(w.in.Grants)
		for step := range 50 { // each guest reaches its peak each 80 ms, and is lower otherwise
			w.in.Now = w.in.Now.Add(20 * time.Millisecond)
			for i := range w.in.Demands {
				d := &w.in.Demands[i]
				d.Running, d.Waiting = peak[d.Guest]*rapid.Float64Range(0, 1).Draw(t, "noise"), 0
				if step%4 == 0 {
					d.Running = peak[d.Guest]
				}
			}
			w.step(t)
		}
		if diff := cmp.Diff(before, w.in.Grants); diff != "" {
			t.Fatalf("noise moved CPUs: %s", diff)
		}
	})
}

// TestLaws_FarthestReleasedNearestTaken: no VM retains, of those it needs, a CPU that is
// farther from its home than one that it releases to a VM that could use either;
// and no VM takes a CPU that is farther than a free one that it could have.
func TestLaws_FarthestReleasedNearestTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: draw(t, hosts)}
		w.in.Rules.WholeCores = false
		minimums(t, &w.in)
		w.step(t)
		for range 4 {
			w.in.Demands = nil
			for i := range w.in.Guests {
				w.in.Demands = append(w.in.Demands, drawDemand(t, &w.in, &w.in.Guests[i]))
			}
			w.in.Now = w.in.Now.Add(time.Hour) // each fall of demand has settled
			before := slices.Clone(w.in.Grants)
			d := w.step(t)
			if slices.ContainsFunc(d.Releases, func(r handoff.Release) bool {
				return r.Reason == handoff.ReasonNearer || r.Reason == handoff.ReasonCore
			}) {
				return // an exchange
			}
			w.nearestFirst(t, before, d)
			w.acknowledge()
			w.step(t)
			w.acknowledge()
		}
	})
}

func (w *world) nearestFirst(t *rapid.T, before []handoff.Grant, d handoff.Decision) {
	guests := map[string]handoff.Guest{}
	target := map[string]int{}
	for _, g := range w.in.Guests {
		guests[g.Name] = g
	}
	for _, x := range d.Targets {
		target[x.Guest] = x.CPUs
	}
	away := func(name string, id topology.CPUID) int {
		cpu, _ := w.in.Topology.CPU(id)
		distance, _ := w.in.Topology.Distance(guests[name].Home, cpu.Node)
		return distance
	}
	mayHave := func(name string, id topology.CPUID) bool {
		for _, g := range w.in.Guests {
			if g.Mirror[0] == id && g.Name != name {
				return false
			}
		}
		return slices.Contains(guests[name].Mirror, id)
	}
	granted := map[topology.CPUID]bool{}
	for _, g := range before {
		granted[g.CPU] = true
	}
	takenNow := map[topology.CPUID]bool{}
	for _, take := range d.Takes {
		takenNow[take.CPU] = true
	}
	for _, take := range d.Takes {
		for _, cpu := range w.in.Topology.CPUs {
			if !granted[cpu.ID] && !takenNow[cpu.ID] && mayHave(take.Guest, cpu.ID) &&
				away(take.Guest, cpu.ID) < away(take.Guest, take.CPU) {
				t.Fatalf("%s takes CPU %d; CPU %d is nearer and free", take.Guest, take.CPU, cpu.ID)
			}
		}
	}
	for _, r := range d.Releases {
		nearer := 0 // CPUs that the guest retains and that are at most as far as the released one
		farther := topology.CPUID(-1)
		for _, id := range w.held(r.Guest) {
			switch {
			case away(r.Guest, id) <= away(r.Guest, r.CPU):
				nearer++
			case mayHave(r.For, id):
				farther = id
			}
		}
		if farther >= 0 && nearer < target[r.Guest] && len(w.held(r.Guest)) <= target[r.Guest] {
			t.Fatalf("%s releases CPU %d to %s and retains CPU %d, which is farther: %+v", r.Guest, r.CPU, r.For, farther, w.in)
		}
	}
}

// TestLaws_CoresStayTogether: guests that need whole cores' worth of CPUs, and fit on their
// home nodes, divide no core.
func TestLaws_CoresStayTogether(t *testing.T) {
	shapes := []string{"nodes:2 cores:4 threads:2", "nodes:1 cores:6 threads:2", "nodes:2 cores:2 threads:4"}
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: draw(t, shapes)}
		w.in.Guests = nil
		size := w.in.Topology.CPUs[0].Siblings.Len()
		for _, n := range w.in.Topology.Nodes {
			free := n.CPUs
			for !free.IsEmpty() && len(w.in.Guests) < 6 {
				first, _ := free.First()
				cores := rapid.IntRange(1, free.Len()/size).Draw(t, "cores")
				w.in.Guests = append(w.in.Guests, handoff.Guest{
					Name: fmt.Sprintf("vm%d", 9-len(w.in.Guests)), Home: n.ID, Weight: 1, Min: cores * size,
					Mirror: anchorFirst(w.in.Topology.CPUSet().IDs(), first),
				})
				for range cores {
					first, _ = free.First()
					cpu, _ := w.in.Topology.CPU(first)
					free = free.Minus(cpu.Siblings)
				}
			}
		}
		w.settle(t)
		core := map[topology.CoreID]string{}
		for _, g := range w.in.Grants {
			cpu, _ := w.in.Topology.CPU(g.CPU)
			if other, taken := core[cpu.Core]; taken && other != g.Guest {
				t.Fatalf("core %d is divided between %s and %s: %+v", cpu.Core, other, g.Guest, w.in)
			}
			core[cpu.Core] = g.Guest
		}
	})
}

func anchorFirst(cpus []topology.CPUID, anchor topology.CPUID) []topology.CPUID {
	at := slices.Index(cpus, anchor)
	cpus[0], cpus[at] = cpus[at], cpus[0]
	return cpus
}
