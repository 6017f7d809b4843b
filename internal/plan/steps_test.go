package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }

// Every kind of step gives its action and its object in one line.
func TestStepsInWords(t *testing.T) {
	const mib = topology.MiB
	for want, s := range map[string]plan.Step{
		"record-intent": {Kind: plan.Record},
		"grow-huge-page-pool: 3 pages of 1 GiB on node 2": {Kind: plan.GrowPool, Pages: 3, PageSize: topology.GiB,
			Node: 2},
		"shrink-huge-page-pool: 3 pages of 2 MiB on node 0": {Kind: plan.ShrinkPool, Pages: 3, PageSize: 2 * mib},
		"allow-nodes 0-2": {Kind: plan.AllowNodes, Nodes: nodes("0-2")},
		"hold-to-nodes 2": {Kind: plan.HoldNodes, Nodes: nodes("2")},
		"numatune-live: mode restrictive, nodes 0,3": {Kind: plan.TuneLive, Mode: guest.MemoryRestrictive,
			Nodes: nodes("0,3")},
		"pin-vcpu 3 to CPUs 4-7":              {Kind: plan.PinVCPU, VCPU: 3, CPUs: cpus("4-7")},
		"pin-emulator to CPUs 4":              {Kind: plan.PinHelper, CPUs: cpus("4")},
		"pin-io-thread 1 to CPUs 5":           {Kind: plan.PinIO, IOThread: 1, CPUs: cpus("5")},
		"set-affinity of thread 99 to CPUs 5": {Kind: plan.Affinity, TID: 99, CPUs: cpus("5")},
		"set-policy of 128 MiB at 0x7f00: preferred on nodes " +
			"1": {Kind: plan.SetPolicy, Size: 128 * mib, Address: 0x7f00, Mode: guest.MemoryPreferred,
			Nodes: nodes("1")},
		"move-own-memory: 6 MiB in 2 mappings to nodes 1": {Kind: plan.MoveOwn, Bytes: 6 * mib,
			Parts: make([]plan.Part, 2), Nodes: nodes("1")},
		"move-memory: 64 MiB at 0x7f00 to nodes 1": {Kind: plan.MoveRange, Bytes: 64 * mib, Address: 0x7f00,
			Nodes: nodes("1"), Size: 128 * mib},
		"write-configuration": {Kind: plan.Configure},
		"what a later version may add, of which this one knows no more than that": {Kind: "what a later version " +
			"may add, of which this one knows no more than that"},
	} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTextNamesEveryStepReasonAndRefusal(t *testing.T) {
	p := plan.Steps{Guest: "web1", Placement: guest.Placement{Nodes: nodes("2-3")},
		Steps: []plan.Step{
			{Kind: plan.Record, Why: "the intent comes first"},
			{Kind: plan.PinVCPU, VCPU: 1, CPUs: cpus("8-11"), Why: "vCPUs before memory"},
		},
		Cannot: []plan.Refusal{{What: "memory policy of cell 1", Why: "anonymous memory takes none from outside"}}}
	want := `web1: 2 steps to nodes 2-3
  1. record-intent
     the intent comes first
  2. pin-vcpu 1 to CPUs 8-11
     vCPUs before memory
  cannot: memory policy of cell 1: anonymous memory takes none from outside
`
	if diff := cmp.Diff(want, p.Text()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A saved plan reads back as the same plan.
func TestPlansSurviveAFile(t *testing.T) {
	kinds := []plan.Kind{plan.Record, plan.GrowPool, plan.AllowNodes, plan.TuneLive, plan.PinVCPU, plan.PinHelper,
		plan.PinIO, plan.Affinity, plan.SetPolicy, plan.MoveOwn, plan.MoveRange, plan.HoldNodes, plan.ShrinkPool,
		plan.Configure}
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string) int { return rapid.IntRange(0, 1<<20).Draw(t, name) }
		p := plan.Steps{Guest: rapid.StringMatching(`[a-z][-a-z0-9 ]{0,12}`).Draw(t, "guest"), PID: number("pid"),
			Basis: plan.Basis{PID: number("pid"), StartTicks: rapid.Uint64().Draw(t, "ticks")}}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			p.Steps = append(
				p.Steps,
				plan.Step{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Why: rapid.String().Draw(t, "why"),
					VCPU: guest.VCPUID(number("vcpu")), IOThread: number("thread"), TID: number("tid"),
					CPUs: topology.SetOf(
						topology.CPUID(rapid.IntRange(0, 4000).Draw(t, "cpu")),
					), Nodes: topology.SetOf(topology.NodeID(rapid.IntRange(0, 200).Draw(t, "node"))),
					Mode: guest.MemoryStrict, Address: rapid.Uint64().Draw(t,
						"address"), Size: topology.Bytes(number("size")) * topology.KiB,
					PageSize: 4 * topology.KiB, Bytes: topology.Bytes(number("bytes")), Parts: []plan.Part{{Address: 1,
						Size: 2, PageSize: 3}},
					File: "/memfd:ram", Pages: rapid.Uint64().Draw(t, "pages"), Node: topology.NodeID(number("node"))},
			)
		}
		if rapid.Bool().Draw(t, "refused") {
			p.Cannot = []plan.Refusal{{What: "a", Why: "b"}}
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var read plan.Steps
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, read); diff != "" {
			t.Fatalf("(-made +read):\n%s", diff)
		}
	})
}

// The names in the file are part of the contract.
func TestPlanIsWrittenInSnakeCase(t *testing.T) {
	text, err := json.Marshal(
		plan.Steps{
			Guest: "g",
			Basis: plan.Basis{PID: 7, StartTicks: 8},
			Steps: []plan.Step{{Kind: plan.MoveRange, Why: "far", Nodes: nodes("0-1"), Bytes: 5, IOThread: 1}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"start_ticks":8`, `"kind":"move-memory"`, `"nodes":"0-1"`, `"misplaced_bytes":5`,
		`"io_thread":1`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
}

// The steps that copy memory form one contiguous part. Steps that narrow cpusets
// come after it, even if no step copies memory.
func TestParts(t *testing.T) {
	step := func(kinds ...plan.Kind) (all []plan.Step) {
		for _, k := range kinds {
			all = append(all, plan.Step{Kind: k})
		}
		return all
	}
	for _, c := range []struct{ before, copies, after []plan.Step }{
		{step(plan.Record, plan.TuneLive, plan.PinVCPU), step(plan.MoveRange, plan.MoveRange, plan.MoveOwn),
			step(plan.TuneLive, plan.Configure)},
		{step(plan.Record, plan.TuneLive, plan.PinVCPU), nil, step(plan.TuneLive, plan.Configure)},
		{step(plan.Record, plan.AllowNodes, plan.SetPolicy), nil, step(plan.HoldNodes)},
		{nil, step(plan.MoveOwn), nil},
		{nil, nil, nil},
	} {
		p := plan.Steps{Steps: append(append(append([]plan.Step(nil), c.before...), c.copies...), c.after...)}
		before, copies, after := p.Parts()
		for i, pair := range [][2][]plan.Step{{c.before, before}, {c.copies, copies}, {c.after, after}} {
			if len(pair[0]) != len(pair[1]) || len(pair[0]) > 0 && pair[0][0].Kind != pair[1][0].Kind {
				t.Errorf("part %d: %v, want %v", i, pair[1], pair[0])
			}
		}
	}
}

// What did not move is said by size and reason, the most frequent first.
func TestMoved_Shortfall(t *testing.T) {
	got := plan.Moved{Failed: 53 * topology.KiB, Why: map[string]uint64{"EBUSY": 1, "HIDDEN": 9, "EFAULT": 3}}.Shortfall()
	want := "53 KiB did not move (9 pages: NUMA balancing hides them from move_pages(2); 3 pages: EFAULT; " +
		"1 page: in use or pinned)"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
