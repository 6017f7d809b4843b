package plan_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

func oneMove() plan.Plan {
	to := topology.MustParseSet[topology.NodeID]("1")
	return plan.Plan{
		Host: "h", Taken: time.Unix(1700000000, 0).UTC(), Before: 2, After: 1,
		Moves: []plan.Move{{
			Kind: plan.MoveGuest, Why: "db: far",
			Guests: []plan.GuestMove{
				{
					Guest:     "db",
					Placement: guest.Placement{Guest: "db", Nodes: to},
					Bytes:     topology.GiB,
					Undo: plan.Undo{
						VCPUNodes: topology.MustParseSet[topology.NodeID]("0"),
						Memory:    topology.MemoryByNode{0: topology.GiB},
					},
				},
			},
			Benefit: plan.Benefit{
				Cost:       1,
				AccessCPUs: 0.5,
				Horizon:    time.Minute,
			}, Cost: plan.Price{Bytes: topology.GiB, Took: time.Second, BytesPerSecond: topology.GiB},
		}},
		Blocked: []plan.Blocked{{Guest: "web", Kind: plan.BlockedCooldown, Why: "in cooldown"}},
	}
}

func TestRoundInWords(t *testing.T) {
	r := oneMove()
	want := "h: 1 move; cost 2 now, 1 after\n  1. move: db to nodes 1 (1 GiB to copy)\n     db: far\n  blocked: " +
		"web: in cooldown\n"
	if got := r.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r.Moves[0].Advised = true
	r.Moves[0].Guests = append(r.Moves[0].Guests, plan.GuestMove{Guest: "web"})
	if got := strings.Join(r.Moves[0].Names(), ", "); got != "db, web" {
		t.Errorf("names %q", got)
	}
	if got, want := r.Moves[0].String(), "move: db to nodes 1 (1 GiB to copy), web to nodes  (0 B to copy) "+
		"[advised only]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (plan.Plan{Host: "h"}).Text(); got != "h: nothing to move\n" {
		t.Errorf("got %q", got)
	}
}

// A duration appears only if this host has shown it. The source of the rate
// (RateFrom) is for people; no decision uses it.
func TestPrice_GivesNoTimeThatNothingHasShown(t *testing.T) {
	price := plan.Price{Bytes: 265 * topology.MiB, Took: 300 * time.Millisecond, BytesPerSecond: topology.GiB}
	measured := price
	measured.RateMeasured, measured.RateFrom = true, "measured here"
	named := price
	named.RateFrom = "measured here"
	const unknown = "265 MiB to copy (time unknown: nothing copied on this host yet)"
	for _, c := range []struct {
		price plan.Price
		text  string
		known bool
	}{
		{price, unknown, false},
		{named, unknown, false},
		{measured, "copies 265 MiB in 300ms at 1 GiB a second (measured here)", true},
		{plan.Price{}, "copies no memory", true},
	} {
		if _, known := c.price.Time(); c.price.String() != c.text || known != c.known {
			t.Errorf("%+v: %q, time known %t, want %q, %t", c.price, c.price.String(), known, c.text, c.known)
		}
	}
}

// Another process may execute a plan than the one that made it: the file preserves all of the plan.
func TestRoundSurvivesItsFile(t *testing.T) {
	text, err := json.Marshal(oneMove())
	if err != nil {
		t.Fatal(err)
	}
	var back plan.Plan
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	same := cmp.Comparer(func(a, b topology.NodeSet) bool { return a.Equal(b) })
	cpus := cmp.Comparer(func(a, b topology.CPUSet) bool { return a.Equal(b) })
	if diff := cmp.Diff(oneMove(), back, same, cpus); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}
