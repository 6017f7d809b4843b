package policy

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/topology"
)

func TestPolicy_ZeroIsValid(t *testing.T) {
	if err := (Policy{}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (Policy{}).WithDefaults().Validate(); err != nil {
		t.Errorf("defaults written out: %v", err)
	}
	if diff := cmp.Diff(Policy{}.WithDefaults(), Policy{}.WithDefaults().WithDefaults()); diff != "" {
		t.Errorf("defaults of defaults (-once +twice):\n%s", diff)
	}
}

func TestPolicy_WithDefaultsKeepsWhatIsSet(t *testing.T) {
	text := `{"keep_free_per_node":"512M","overcommit":1,"count":"threads","housekeeping":"0-1",` +
		`"grow_huge_pages_up_to":0,"prefer":"pack","weights":{"latency":1},"search_steps":7}`
	var got Policy
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	keep, never := 512*topology.MiB, topology.Bytes(0)
	want := Policy{
		KeepFree: &keep, Overcommit: 1, Count: CountThreads, Housekeeping: topology.Range[topology.CPUID](0, 1),
		GrowHugePagesUpTo: &never, Prefer: PreferPack, Weights: &Weights{Latency: 1}, SearchSteps: 7,
		Balance: Policy{}.WithDefaults().Balance, Movers: Policy{}.WithDefaults().Movers,
	}
	if diff := cmp.Diff(want, got.WithDefaults()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.MayGrow(2 * topology.MiB) {
		t.Error("2 MiB pools may grow although growth is forbidden")
	}
}

func TestPolicy_KeepFreeOn(t *testing.T) {
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
		t.Errorf("more than the node is reserved: %v", got)
	}
}

func TestPolicy_ValidateNamesTheField(t *testing.T) {
	for want, p := range map[string]Policy{
		"overcommit":        {Overcommit: 0.9},
		"overcommit is NaN": {Overcommit: math.NaN()},
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
