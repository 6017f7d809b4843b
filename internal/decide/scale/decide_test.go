package scale

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func cells(v ...string) (all []Cell) {
	for i := 0; i < len(v); i += 3 {
		all = append(all, Cell{Nodes: topology.MustParseSet[topology.NodeID](v[i]),
			VCPUs: topology.MustParseSet[guest.VCPUID](v[i+1]), Used: topology.MustParseSet[guest.VCPUID](v[i+2])})
	}
	return all
}

func wants(name string, cpus float64) handoff.Demand {
	return handoff.Demand{Guest: name, At: start, Running: cpus}
}

// decided returns the vCPUs in use after a decision, by guest.
func decided(t *testing.T, in Input) map[string]string {
	t.Helper()
	targets, _, err := Decide(in)
	if err != nil {
		t.Fatal(err)
	}
	use := map[string]string{}
	for _, g := range targets {
		use[g.Guest] = g.Use.String()
	}
	return use
}

// Two wide guests with a cell on each of two nodes of four CPUs: what one does not demand is used by the other one,
// by node.
func TestDecide_VCPUsFollowDemandByNode(t *testing.T) {
	in := Input{Now: start, CPUs: map[topology.NodeID]int{0: 4, 1: 4}, Guests: []Guest{
		{Name: "a", Weight: 1, Min: 1, Cells: cells("0", "0-3", "0-3", "1", "4-7", "4-7")},
		{Name: "b", Weight: 1, Min: 2, Cells: cells("0", "0-3", "0-3", "1", "4-7", "4-7")},
	}}
	for _, c := range []struct {
		a, b float64
		want map[string]int
	}{
		{8, 8, map[string]int{"a": 4, "b": 4}},
		{8, 0, map[string]int{"a": 6, "b": 2}},
		{1, 8, map[string]int{"a": 1, "b": 7}},
	} {
		in.Demands = []handoff.Demand{wants("a", c.a), wants("b", c.b)}
		use := decided(t, in)
		got := map[string]int{}
		for name, vcpus := range use {
			got[name] = topology.MustParseSet[guest.VCPUID](vcpus).Len()
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("demands %v and %v: %v (-want +got):\n%s", c.a, c.b, use, diff)
		}
	}
}

// Demand of others elsewhere takes nothing from a guest; a guest without competitors keeps its vCPUs.
func TestDecide_AGuestKeepsWhatNobodyNeeds(t *testing.T) {
	in := Input{Now: start, CPUs: map[topology.NodeID]int{0: 4, 1: 4}, Guests: []Guest{
		{Name: "idle", Weight: 1, Min: 1, Cells: cells("0", "0-3", "0-3")},
		{Name: "busy", Weight: 1, Min: 1, Cells: cells("1", "0-7", "0-1")},
	}, Demands: []handoff.Demand{wants("idle", 0), wants("busy", 8)}}
	if diff := cmp.Diff(map[string]string{"idle": "0-3", "busy": "0-3"}, decided(t, in)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Minimums hold although a node has fewer CPUs.
func TestDecide_MinimumsExceedANode(t *testing.T) {
	in := Input{Now: start, CPUs: map[topology.NodeID]int{0: 2}, Guests: []Guest{
		{Name: "a", Weight: 1, Min: 3, Cells: cells("0", "0-3", "0-3")},
		{Name: "b", Weight: 9, Min: 1, Cells: cells("0", "0-3", "0")},
	}, Demands: []handoff.Demand{wants("b", 4)}}
	if diff := cmp.Diff(map[string]string{"a": "0-2", "b": "0"}, decided(t, in)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Where it has the choice, a guest uses the cell with most of its memory, and changes no vCPU for that.
func TestDecide_NearTheMemory(t *testing.T) {
	in := Input{Now: start, CPUs: map[topology.NodeID]int{0: 4, 1: 4}, Guests: []Guest{
		{Name: "a", Weight: 1, Min: 1, Cells: cells("0", "0-3", "0", "1", "4-7", "")},
	}, Demands: []handoff.Demand{wants("a", 3)}}
	in.Guests[0].Cells[1].Memory = topology.GiB
	if got := decided(t, in)["a"]; got != "0,4-5" {
		t.Errorf("it uses vCPUs %s", got)
	}
	in.Guests[0].Cells[0].Used = topology.MustParseSet[guest.VCPUID]("0-2")
	if got := decided(t, in)["a"]; got != "0-2" {
		t.Errorf("it changes to vCPUs %s", got)
	}
}

func TestInput_Check(t *testing.T) {
	good := Guest{Name: "a", Weight: 1, Min: 1, Cells: cells("0", "0-3", "0")}
	for name, change := range map[string]func(*Guest){
		"weight":         func(g *Guest) { g.Weight = 0 },
		"minimum":        func(g *Guest) { g.Min = 5 },
		"no minimum":     func(g *Guest) { g.Min = 0 },
		"no vCPU 0":      func(g *Guest) { g.Cells = cells("0", "1-3", "1") },
		"vCPUs twice":    func(g *Guest) { g.Cells = cells("0", "0-3", "0", "1", "3-4", "") },
		"used elsewhere": func(g *Guest) { g.Cells = cells("0", "0-3", "4") },
		"no nodes":       func(g *Guest) { g.Cells = cells("", "0-3", "0") },
		"name twice":     func(g *Guest) { g.Name = "other" },
	} {
		g := good
		change(&g)
		other := good
		other.Name = "other"
		if _, _, err := Decide(Input{Guests: []Guest{other, g}}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, _, err := Decide(Input{CPUs: map[topology.NodeID]int{0: -1}, Guests: []Guest{good}}); err == nil {
		t.Error("a node with less than no CPUs is no error")
	}
}

// draw returns guests on a small host.
func draw(t *rapid.T) Input {
	in := Input{Now: start, CPUs: map[topology.NodeID]int{}}
	nodes := rapid.IntRange(1, 3).Draw(t, "nodes")
	for n := range nodes {
		in.CPUs[topology.NodeID(n)] = rapid.IntRange(1, 5).Draw(t, "CPUs")
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "guests") {
		g := Guest{Name: fmt.Sprintf("g%d", i), Weight: rapid.IntRange(1, 3).Draw(t, "weight"), Min: 1}
		next := guest.VCPUID(0)
		for range rapid.IntRange(1, 2).Draw(t, "cells") {
			c := Cell{Memory: topology.Bytes(rapid.IntRange(0, 2).Draw(t, "memory"))}
			for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, nodes-1), 1, 2, rapid.ID[int]).Draw(t, "on") {
				c.Nodes = c.Nodes.With(topology.NodeID(n))
			}
			for range rapid.IntRange(1, 3).Draw(t, "vCPUs") {
				c.VCPUs = c.VCPUs.With(next)
				if rapid.Bool().Draw(t, "used") || next == 0 {
					c.Used = c.Used.With(next)
				}
				next++
			}
			g.Cells = append(g.Cells, c)
		}
		g.Min = rapid.SampledFrom([]int{1, 1, 2, 2, 6}).Draw(t, "min")
		g.Min = min(g.Min, int(next))
		in.Guests = append(in.Guests, g)
		if rapid.Bool().Draw(t, "has a demand") {
			in.Demands = append(in.Demands, wants(g.Name, float64(rapid.IntRange(0, 7).Draw(t, "demand"))))
		}
	}
	return in
}

// oracle visits all ways to give vCPUs of cells CPUs of nodes: cell counts of each guest, in the order of the input.
func oracle(in *Input, visit func(counts [][]int)) {
	left := map[topology.NodeID]int{}
	for n, cpus := range in.CPUs {
		left[n] = cpus
	}
	counts := make([][]int, len(in.Guests))
	for i := range in.Guests {
		counts[i] = make([]int, len(in.Guests[i].Cells))
	}
	var next func(g, c int, nodes []topology.NodeID)
	next = func(g, c int, nodes []topology.NodeID) {
		if g == len(in.Guests) {
			visit(counts)
			return
		}
		cell := &in.Guests[g].Cells[c]
		if len(nodes) == 0 {
			if cell.VCPUs.Contains(0) && counts[g][c] == 0 {
				return // its kernel uses vCPU 0
			}
			if c++; c == len(in.Guests[g].Cells) {
				g, c = g+1, 0
			}
			if g == len(in.Guests) {
				next(g, c, nil)
				return
			}
			next(g, c, in.Guests[g].Cells[c].Nodes.IDs())
			return
		}
		n, had := nodes[0], counts[g][c]
		most := min(left[n], cell.VCPUs.Len()-had)
		for k := range most + 1 {
			counts[g][c], left[n] = had+k, left[n]-k
			next(g, c, nodes[1:])
			left[n] += k
		}
		counts[g][c] = had
	}
	next(0, 0, in.Guests[0].Cells[0].Nodes.IDs())
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// price is what shares cost: less if they are more fair.
func price(in *Input, shares []int) (p float64) {
	for i, n := range shares {
		p += float64(n*n) / float64(in.Guests[i].Weight)
	}
	return p
}

// Shares are the best of all that are possible, and of all ways to give them, one that changes the fewest vCPUs
// is chosen.
func TestDecide_EqualsBruteForce(t *testing.T) {
	judged := 0
	rapid.Check(t, func(t *rapid.T) {
		in := draw(t)
		targets, _, err := Decide(in)
		if err != nil {
			t.Fatal(err)
		}
		got, within := make([]int, len(targets)), make([]int, len(targets))
		change := 0
		for i, g := range targets {
			got[i] = g.Use.Len()
			within[i] = min(got[i], g.Want)
			change += g.Use.Minus(g.Before).Len()
		}
		most, best, fewest, possible := -1, 0.0, -1, false
		oracle(&in, func(counts [][]int) {
			shares, fresh, same := make([]int, len(counts)), 0, true
			for i := range counts {
				shares[i] = sum(counts[i])
				same = same && shares[i] == got[i]
				if shares[i] < in.Guests[i].Min {
					return
				}
				for c, n := range counts[i] {
					fresh += max(0, n-in.Guests[i].Cells[c].Used.Len())
				}
			}
			possible = true
			if same && (fewest < 0 || fresh < fewest) {
				fewest = fresh
			}
			for i := range shares {
				if shares[i] > targets[i].Want {
					return
				}
			}
			if n, p := sum(shares), price(&in, shares); n > most || n == most && p < best {
				most, best = n, p
			}
		})
		if !possible {
			return // minimums exceed nodes: see the laws
		}
		judged++
		if sum(within) != most || price(&in, within) > best+1e-9 {
			t.Fatalf("shares %v of %v: %d units at %v; possible are %d at %v", within, targets, sum(within),
				price(&in, within), most, best)
		}
		if fewest < 0 || change != fewest {
			t.Fatalf("%d vCPUs change, and %d need to: %v", change, fewest, targets)
		}
	})
	if judged == 0 {
		t.Error("no case had minimums that fit")
	}
}

// fits reports whether the vCPUs in use now have CPUs, and no guest wants more.
func fits(in *Input, targets []Target) (fits bool) {
	for i, g := range targets {
		if g.Want > g.Before.Len() || g.Before.Len() < in.Guests[i].Min {
			return false
		}
	}
	oracle(in, func(counts [][]int) {
		same := true
		for i := range counts {
			for c, n := range counts[i] {
				same = same && n == in.Guests[i].Cells[c].Used.Len()
			}
		}
		fits = fits || same
	})
	return fits
}

// Laws: vCPU 0 and the minimum are always in use; guests of which none wants more than it uses change nothing,
// if they have the CPUs; and a decision that is carried out is the last one until demands change.
func TestDecide_Laws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := draw(t)
		targets, memory, err := Decide(in)
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range targets {
			all := guest.VCPUSet{}
			for _, c := range in.Guests[i].Cells {
				all = all.Union(c.VCPUs)
			}
			if !g.Use.Contains(0) || g.Use.Len() < in.Guests[i].Min || !g.Use.SubsetOf(all) || g.Guest != in.Guests[i].Name {
				t.Fatalf("guest %+v is to use %+v", in.Guests[i], g)
			}
		}
		if fits(&in, targets) {
			for _, g := range targets {
				if !g.Use.Equal(g.Before) {
					t.Fatalf("nobody needs it, and %+v changes", g)
				}
			}
		}
		after := in
		after.Memory, after.Guests = memory, nil
		for i, g := range in.Guests {
			g.Cells = append([]Cell(nil), g.Cells...)
			for c := range g.Cells {
				g.Cells[c].Used = targets[i].Use.Intersect(g.Cells[c].VCPUs)
			}
			after.Guests = append(after.Guests, g)
		}
		again, _, err := Decide(after)
		if err != nil {
			t.Fatal(err)
		}
		for i := range again {
			if !again[i].Use.Equal(targets[i].Use) && again[i].Want == targets[i].Want {
				t.Fatalf("carried out, %+v becomes %+v", targets[i], again[i])
			}
		}
	})
}
