package balance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// hasty is the shortest degraded_for.
const hasty = policy.Duration(1)

// run balances a host again and again: every period, drift changes what the
// guests ask for, and moves that are planned are made. It returns the moves.
func run(
	t *testing.T, h inventory.Host, p policy.Policy, length, period time.Duration,
	drift func(h *inventory.Host, now time.Time),
) []Moved {
	t.Helper()
	var past Past
	for now := noon; now.Before(noon.Add(length)); now = now.Add(period) {
		h.Guests = append([]inventory.Guest(nil), h.Guests...)
		for i := range h.Guests {
			load := *h.Guests[i].Seen.Load
			h.Guests[i].Seen.Load = &load
		}
		drift(&h, now)
		round, err := Plan(Request{Host: &h, Policy: p, Past: past, Now: now, Lasting: p.Balance.DegradedFor == hasty})
		if err != nil {
			t.Fatal(err)
		}
		past.Degraded, past.Waiting = round.Degraded, round.Waiting
		for _, m := range round.Moves {
			h = carriedOut(h, m)
			for _, g := range m.Guests {
				past.Moves = append(past.Moves, Moved{g.Guest, now, g.Undo.VCPUNodes, g.Placement.Nodes, g.Demand})
			}
		}
	}
	return past.Moves
}

// contend gives every guest what its node has: demand is shared out evenly.
func contend(h *inventory.Host, demand map[string]float64) {
	demanded := map[topology.NodeID]float64{}
	home := map[string]topology.NodeID{}
	for _, g := range h.Guests {
		n, _ := h.Topology.NodesOf(g.Seen.Threads[0].Affinity).First()
		home[g.Name] = n
		demanded[n] += demand[g.Name]
	}
	for i := range h.Guests {
		g := &h.Guests[i]
		n, _ := h.Topology.Node(home[g.Name])
		got := min(1, float64(n.CPUs.Len())/demanded[n.ID])
		g.Seen.Load.CPU, g.Seen.Load.Wait = demand[g.Name]*got, demand[g.Name]*(1-got)
	}
}

// ESXi was seen to exchange such guests every 5 seconds.
func TestTwoGuestsDoNotPingPong(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 3})
	add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 3})
	add(h, vm{name: "c", vcpus: 4, memory: 2 * gib, cpus: on(1), used: 3})
	// Three guests on two nodes, one of them idle in turn: every few minutes
	// the two that share a node are the busy ones, and one has a reason to go.
	changing := func(h *inventory.Host, now time.Time) {
		demand := map[string]float64{"a": 3.5, "b": 3.5, "c": 3.5}
		demand[[]string{"a", "b", "c"}[now.Minute()%3]] = 0.5
		contend(h, demand)
	}
	restless := policy.Policy{Balance: policy.Balance{DegradedFor: hasty, Cooldown: 1, NoReturn: 1}}
	// Without a cooldown, only the growing share that a move must save calms them.
	if moves := run(t, *h, restless, 2*time.Hour, 5*time.Second, changing); len(moves) < 3 {
		t.Errorf("only %d moves without rest: the test proves nothing", len(moves))
	}
	moves := run(t, *h, policy.Policy{}, 2*time.Hour, 5*time.Second, changing)
	perGuest := map[string]int{}
	for i, m := range moves {
		perGuest[m.Guest]++
		for _, earlier := range moves[:i] {
			if earlier.Guest == m.Guest && m.At.Sub(earlier.At) < time.Hour && m.To.Intersects(earlier.From) {
				t.Errorf("%s went back to %s after %v", m.Guest, m.To, m.At.Sub(earlier.At))
			}
		}
	}
	for name, n := range perGuest {
		if n > 2 {
			t.Errorf("%s moved %d times in two hours", name, n)
		}
	}
}

func TestNoiseMovesNothingIn24Hours(t *testing.T) {
	h := machine("nodes:4 cores:4 memory:16G distances:10,16,28 square")
	for i := range 8 {
		add(h, vm{name: fmt.Sprintf("g%d", i), vcpus: 4, memory: 2 * gib, cpus: on(topology.NodeID(i % 4)), used: 1.6})
	}
	noise := func() func(h *inventory.Host, _ time.Time) {
		r := rand.New(rand.NewPCG(7, 11))
		return func(h *inventory.Host, _ time.Time) {
			demand := map[string]float64{}
			for _, g := range h.Guests { // about 80 % of each node, and now and then far above
				demand[g.Name] = 1.6 + 0.3*r.NormFloat64()
				if r.IntN(200) == 0 {
					demand[g.Name] = 4
				}
			}
			contend(h, demand)
		}
	}
	lasts := 24 * time.Hour
	if testing.Short() {
		lasts = 4 * time.Hour
	}
	if moves := run(t, *h, policy.Policy{Overcommit: 4}, lasts, 2*time.Second, noise()); len(moves) > 0 {
		t.Errorf("%d moves, the first %+v", len(moves), moves[0])
	}
	if moves := run(t, *h, policy.Policy{Overcommit: 4, Balance: policy.Balance{DegradedFor: hasty}}, time.Hour,
		2*time.Second, noise()); len(
		moves,
	) == 0 {
		t.Error("not even without degraded_for does this noise move anything: the test proves nothing")
	}
}

func TestPlan_DegradedForAndHysteresis(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2})
	add(h, vm{name: "b", vcpus: 4, memory: 2 * gib, cpus: on(0), used: 2, wait: 2})
	at := func(now time.Time, past Past) plan.Plan {
		round, err := Plan(Request{Host: h, Past: past, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return round
	}
	first := at(noon, Past{})
	if len(first.Moves) != 0 || len(first.Degraded) != 2 || len(first.Blocked) != 2 {
		t.Fatalf("nothing moves at first sight\n%s", first.Text())
	}
	if r := at(noon.Add(9*time.Second), Past{Degraded: first.Degraded}); len(r.Moves) != 0 ||
		!r.Degraded[0].Since.Equal(noon) {
		t.Errorf("too early\n%s", r.Text())
	}
	if r := at(noon.Add(10*time.Second), Past{Degraded: first.Degraded}); len(r.Moves) != 1 {
		t.Errorf("it is time\n%s", r.Text())
	}
	for i := range h.Guests { // 8 % of waiting: too little to begin, too much to end
		h.Guests[i].Seen.Load = &inventory.GuestLoad{CPU: 2.3, Wait: 0.2}
	}
	if r := at(noon, Past{}); len(r.Degraded) != 0 {
		t.Errorf("began below the threshold: %+v", r.Degraded)
	}
	if r := at(noon.Add(10*time.Second), Past{Degraded: first.Degraded}); len(r.Degraded) != 2 {
		t.Errorf("ended just below the threshold: %+v", r.Degraded)
	}
}

// A load that has just begun may be a short one. A copy that takes long must save its time within 30 times as long as
// the VM has been degraded.
func TestPlan_SlowCopiesWaitForALoadThatLasts(t *testing.T) {
	h := machine("nodes:2 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 2, memory: 4 * gib, cpus: on(0), memOn: bytesOn(1, 4*gib), used: 0.6})
	add(h, vm{name: "b", vcpus: 4, memory: gib, cpus: on(1), memOn: bytesOn(1, gib), used: 4})
	at := func(rate topology.Bytes, degraded time.Duration, lasting bool) []plan.Move {
		h.MoverBytesPerSecond = rate
		past := Past{Degraded: []plan.Degraded{{Guest: "a", Since: noon.Add(-degraded)}}}
		p := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{"a": policy.ModeAuto}}}
		round, err := Plan(Request{Host: h, Policy: p, Past: past, Now: noon, Lasting: lasting})
		if err != nil {
			t.Fatal(err)
		}
		return round.Moves
	}
	copies := func(moves []plan.Move) bool { return len(moves) > 0 && moves[0].Cost.Bytes > 0 }
	// At 32 MiB a second its memory takes 128 s, and the VM loses some tenths of a CPU.
	for _, c := range []struct {
		rate     topology.Bytes
		degraded time.Duration
		lasting  bool
		copies   bool
	}{
		{gib, 10 * time.Second, false, true},
		{32 * topology.MiB, 10 * time.Second, false, false},
		{32 * topology.MiB, time.Minute, false, true},
		{32 * topology.MiB, 10 * time.Second, true, true},
	} {
		if moves := at(c.rate, c.degraded, c.lasting); copies(moves) != c.copies {
			t.Errorf("%v a second, degraded for %v, lasting %v: moves %v, want a copy: %v", c.rate, c.degraded, c.lasting,
				moves, c.copies)
		}
	}
}

func TestPlan_CooldownGrowsWithEachMove(t *testing.T) {
	h := machine("nodes:4 cores:4 memory:16G")
	add(h, vm{name: "a", vcpus: 2, memory: 2 * gib, cpus: on(0), memOn: bytesOn(1, 2*gib), used: 2})
	moved := func(ago time.Duration, from topology.NodeID) Moved {
		return Moved{"a", noon.Add(-ago), topology.SetOf(from), topology.SetOf[topology.NodeID](0), 2}
	}
	grown := func(ago time.Duration, from float64) Moved {
		m := moved(ago, 2)
		m.Demand = from
		return m
	}
	for _, c := range []struct {
		name  string
		past  []Moved
		moves int
	}{
		{"never moved", nil, 1},
		{"moved just now", []Moved{moved(4*time.Minute, 2)}, 0},
		{"rested", []Moved{moved(6*time.Minute, 2)}, 1},
		{"not long enough for the second time", []Moved{moved(20*time.Minute, 2), moved(6*time.Minute, 3)}, 0},
		{"long enough", []Moved{moved(20*time.Minute, 2), moved(11*time.Minute, 3)}, 1},
		{"planned for half of the load", []Moved{grown(4*time.Minute, 1)}, 1},
		{"planned for almost that load", []Moved{grown(4*time.Minute, 1.5)}, 0},
		{"the last one was planned for that load", []Moved{grown(20*time.Minute, 1), grown(6*time.Minute, 2)}, 0},
		{"planned for a load that is not known", []Moved{grown(4*time.Minute, 0)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			round, err := Plan(Request{Host: h, Past: Past{Moves: c.past}, Now: noon, Lasting: true})
			if err != nil || len(round.Moves) != c.moves {
				t.Errorf("%s%v", round.Text(), err)
			}
		})
	}
	// It left node 1 half an hour ago: it stays away, and its memory comes instead.
	round, err := Plan(Request{Host: h, Past: Past{Moves: []Moved{moved(30*time.Minute, 1)}}, Now: noon, Lasting: true})
	if err != nil || goesTo(round, "a").Contains(1) {
		t.Errorf("went back: %s%v", round.Text(), err)
	}
}
