package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/policy"
)

// After any changes of ranks, the tournament gives the hosts in the order of their ranks, of
// equals the first.
func TestTournament(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() rank {
			return rank{cells: int16(rapid.IntRange(0, 2).Draw(t, "cells")),
				cost: float64(rapid.IntRange(0, 3).Draw(t, "cost"))}
		}
		c := class{}
		for range rapid.IntRange(1, 40).Draw(t, "hosts") {
			c.on = append(c.on, draw())
		}
		c.fresh = make([]uint64, len(c.on))
		c.play()
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			c.set(rapid.IntRange(0, len(c.on)-1).Draw(t, "host"), draw())
		}
		not := rapid.IntRange(0, len(c.on)-1).Draw(t, "not allowed")
		var want []candidate
		for i, r := range c.on {
			if r.cells > 0 {
				want = append(want, candidate{i, r})
			}
		}
		if len(want) != c.fitting {
			t.Fatalf("%d hosts fit, want %d", c.fitting, len(want))
		}
		want = slices.DeleteFunc(want, func(x candidate) bool { return x.host == not })
		slices.SortStableFunc(want, func(a, b candidate) int {
			switch {
			case a.less(&b.rank):
				return -1
			case b.less(&a.rank):
				return 1
			}
			return cmp.Compare(a.host, b.host)
		})
		n := rapid.IntRange(1, 10).Draw(t, "n")
		if got := c.best(n, func(i int) bool { return i != not }); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Fatalf("%v; want %v of %v", got, want, c.on)
		}
	})
}

// Costs that are only weighed again are those that price computes, as long as the cheapest node
// is the same.
func TestCostsAreThoseOfTheMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var hosts []Host
		for range rapid.IntRange(1, 4).Draw(t, "racks") {
			for _, h := range drawHosts(t) {
				h.Name = fmt.Sprintf("h%02d", len(hosts))
				hosts = append(hosts, h)
			}
		}
		f, err := New(hosts, policy.Policy{}, Weights{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 12 {
			spec := drawSpec(t, fmt.Sprintf("vm%d", i))
			d, err := f.Decide(Request{Spec: spec})
			normal, _ := spec.Normalize()
			asked := likely{shape: shapeOf(&normal)}
			c, weights := f.classes[asked.shape], f.scarcity()
			for k, h := range f.hosts {
				want, got := f.price(h, &asked, weights), c.on[k]
				if got.cells != want.cells || got.sharing != want.sharing || got.overloaded != want.overloaded ||
					got.room == want.room && math.Abs(got.cost-want.cost) > 1e-9 || got.cost < want.cost-1e-9 &&
					got.cells == 1 {
					t.Fatalf("host %s: %+v; want %+v", h.Name, got, want)
				}
			}
			if err == nil {
				if err := f.Add(d); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
