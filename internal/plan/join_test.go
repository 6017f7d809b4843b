package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestJoin(t *testing.T) {
	small := func(guest string, bytes topology.Bytes) plan.Move {
		return plan.Move{Kind: plan.Consolidate, Guests: []plan.GuestMove{{Guest: guest, Bytes: bytes}},
			Why: "why " + guest,
			Benefit: plan.Benefit{
				Cost:       1,
				AccessCPUs: 0.5,
				Horizon:    time.Minute,
			}, Cost: plan.Price{Bytes: bytes, Took: time.Second, BytesPerSecond: topology.GiB}}
	}
	advised := small("x", 1)
	advised.Advised = true
	for _, c := range []struct {
		name  string
		moves []plan.Move
		want  string // guests of each move
	}{
		{"none", nil, ""},
		{"one", []plan.Move{small("a", 9)}, "a"},
		{"all fit", []plan.Move{small("a", 3), small("b", 3), small("c", 4)}, "a, b, c"},
		{"in the order of the plan", []plan.Move{small("a", 6), small("b", 6), small("c", 4)}, "a | b, c"},
		{"a large one stays alone", []plan.Move{small("a", 1), small("b", 99), small("c", 1)}, "a | b | c"},
		{"advised ones are not joined", []plan.Move{advised, small("a", 1), small("b", 1)}, "x | a, b"},
		{"no guest twice", []plan.Move{small("a", 1), small("b", 1), small("a", 1)}, "a, b | a"},
	} {
		var got []string
		for _, m := range plan.Join(c.moves, 10) {
			got = append(got, strings.Join(m.Names(), ", "))
		}
		if text := strings.Join(got, " | "); text != c.want {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
	}
	repin := small("a", 0)
	repin.Kind = plan.Repin
	mixed := plan.Join([]plan.Move{repin, small("b", 1), small("c", 1)}, 10)[0]
	for i, want := range []plan.MoveKind{plan.Repin, plan.Consolidate, plan.Consolidate} {
		if got, _ := mixed.Way(mixed.Guests[i]); got != want {
			t.Errorf("part %d of a batch is a %s, want %s", i, got, want)
		}
	}
	if repin.Guests[0].Kind != "" {
		t.Error("joining changed a move that was given")
	}
	if text := mixed.String(); !strings.Contains(text, "batch: repin a to nodes") {
		t.Errorf("a batch is described as %q", text)
	}
	all := plan.Join([]plan.Move{small("a", 3), small("b", 4)}, 10)[0]
	if all.Kind != plan.Batch || all.Cost.Bytes != 7 || all.Cost.Took != 2*time.Second ||
		all.Benefit.AccessCPUs != 1 ||
		!strings.Contains(all.Why, "why a") ||
		!strings.Contains(all.Why, "why b") {
		t.Errorf("%+v", all)
	}
}
