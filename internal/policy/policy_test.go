package policy

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/topology"
)

func TestZeroPolicyMeansTheDefaults(t *testing.T) {
	p := Policy{}.WithDefaults()
	if p.Overcommit != 2 || p.Count != CountCores || p.Prefer != PreferSpread || *p.Weights != DefaultWeights || p.SearchSteps != DefaultSearchSteps {
		t.Errorf("defaults are %+v", p)
	}
	if err := (Policy{}).Validate(); err != nil {
		t.Error(err)
	}
	if again := p.WithDefaults(); !cmp.Equal(p, again) {
		t.Error("defaults change what is set")
	}
}

func TestSetFieldsAreKept(t *testing.T) {
	var p Policy
	text := `{"keep_free_per_node":"512M","overcommit":1,"count":"threads","housekeeping":"0-1","grow_huge_pages_up_to":0,"prefer":"pack","weights":{"latency":1},"search_steps":7}`
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	p = p.WithDefaults()
	if p.Overcommit != 1 || p.Count != CountThreads || p.Prefer != PreferPack || p.SearchSteps != 7 || p.Weights.Latency != 1 || p.Weights.Load != 0 {
		t.Errorf("%+v", p)
	}
	if p.MayGrow(2*topology.MiB) || p.KeepFreeOn(&topology.Node{Memory: topology.GiB}) != 512*topology.MiB {
		t.Error("zero growth or kept memory was replaced")
	}
	if p.Housekeeping.String() != "0-1" {
		t.Errorf("housekeeping %v", p.Housekeeping)
	}
}

func TestKeepFree(t *testing.T) {
	for memory, want := range map[topology.Bytes]topology.Bytes{
		0:                   0,
		100 * topology.MiB:  2 * topology.MiB,
		100 * topology.GiB:  topology.GiB,
		1000 * topology.GiB: topology.GiB,
	} {
		if got := (Policy{}).KeepFreeOn(&topology.Node{Memory: memory}); got != want {
			t.Errorf("of %v: %v, want %v", memory, got, want)
		}
	}
	lots := topology.TiB
	if got := (Policy{KeepFree: &lots}).KeepFreeOn(&topology.Node{Memory: topology.GiB}); got != topology.GiB {
		t.Errorf("more than the node is kept: %v", got)
	}
}

func TestMayGrow(t *testing.T) {
	p := Policy{}
	if !p.MayGrow(2*topology.MiB) || p.MayGrow(topology.GiB) || p.MayGrow(0) {
		t.Error("2 MiB pools grow by default, 1 GiB pools do not")
	}
}

func TestValidateNamesTheField(t *testing.T) {
	for want, p := range map[string]Policy{
		"overcommit":        {Overcommit: 0.9},
		"overcommit NaN":    {Overcommit: math.NaN()},
		"count":             {Count: "sockets"},
		"prefer":            {Prefer: "random"},
		"search_steps":      {SearchSteps: -1},
		"weights.bandwidth": {Weights: &Weights{Bandwidth: -1}},
		"weights.growth":    {Weights: &Weights{Growth: math.Inf(1)}},
	} {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error naming %q, got %v", want, err)
		}
	}
}
