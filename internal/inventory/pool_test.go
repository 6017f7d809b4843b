package inventory_test

import (
	"errors"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestWithinPool(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:2 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	cpus := topology.MustParseSet[topology.CPUID]
	split := []inventory.Pool{{Name: "a", CPUs: cpus("0-1")}, {Name: "b", CPUs: cpus("2-3")}, {Name: "c"}}
	for name, c := range map[string]struct {
		pools []inventory.Pool
		pool  string
		limit string
		want  string
		fails bool
	}{
		"no pools":             {nil, "", "1-2", "1-2", false},
		"no pools, one named":  {nil, "a", "", "", true},
		"a pool with all CPUs": {[]inventory.Pool{{Name: "a", CPUs: cpus("0-3")}}, "", "", "", false},
		"the first by default": {split, "", "", "0-1", false},
		"the named one":        {split, "b", "", "2-3", false},
		"within other limits":  {split, "b", "0-2", "2", false},
		"outside the limits":   {split, "b", "0-1", "", true},
		"not there":            {split, "d", "", "", true},
		"without CPUs":         {split, "c", "", "", true},
	} {
		h := inventory.Host{Topology: topo, Pools: c.pools}
		limits := guest.Limits{Pool: c.pool, CPUs: cpus(c.limit)}
		got, err := h.WithinPool(limits)
		var bad *inventory.PoolError
		if errors.As(err, &bad) != c.fails || err == nil && !got.CPUs.Equal(cpus(c.want)) {
			t.Errorf("%s: CPUs %q, error %v; want %q, error %v", name, got.CPUs, err, c.want, c.fails)
		}
	}
}

func TestHomeNodes(t *testing.T) {
	g := inventory.Guest{Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{0: 900, 1: 99, 2: 1, 3: 0}}}
	if got := g.HomeNodes().String(); got != "0-1" {
		t.Errorf("home nodes are %q, want 0-1: node 2 has less than a twentieth", got)
	}
	if got := (&inventory.Guest{}).HomeNodes(); !got.IsEmpty() {
		t.Errorf("unknown memory has home nodes %q", got)
	}
}
