package peers

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
)

// windowOf is five seconds of one guest.
func windowOf(lines, local, neighbour, remote, moved uint64) Window {
	return Window{
		Seconds:    []float64{5},
		Lines:      []uint64{lines},
		Accesses:   Accesses{local, neighbour, remote},
		PagesMoved: moved,
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestScoreAddsUpByEachGuestsOwnClock(t *testing.T) {
	s := ScoreOf([]Window{
		{Seconds: []float64{5, 4}, Lines: []uint64{50, 80}, Accesses: Accesses{Local: 6, Remote: 2}},
		{Seconds: []float64{5, 6}, Lines: []uint64{150, 20}, Accesses: Accesses{Local: 1, Neighbour: 1}},
	})
	if !near(s.Guests[0], 20) || !near(s.Guests[1], 10) || !near(s.Work, 30) || s.Seconds != 10 {
		t.Errorf("200 lines in 10 s and 100 in 10 s: %+v", s)
	}
	local, neighbour, remote := s.Shares()
	if !near(local, 0.7) || !near(neighbour, 0.1) || !near(remote, 0.2) {
		t.Errorf("shares %v %v %v", local, neighbour, remote)
	}
	if want := 0.7*85 + 0.1*140 + 0.2*240; !near(s.MeanNanos(), want) {
		t.Errorf("mean access %v ns, want %v", s.MeanNanos(), want)
	}
	if none := ScoreOf(nil); none.Work != 0 || none.MeanNanos() != 0 {
		t.Errorf("no windows have the score %+v", none)
	}
}

func TestClassifyFollowsTheSquare(t *testing.T) {
	s, err := Layout{Nodes: 4, NodeCPUs: 1, NodeRoom: 256 << 20, DelayScale: 1}.shape()
	if err != nil {
		t.Fatal(err)
	}
	m := labcounter.Misses{
		Nodes: topology.Range[topology.NodeID](0, 3).IDs(),
		CPUs:  [][]uint64{{1, 10, 10, 100}, {10, 1, 100, 10}, {10, 100, 1, 10}, {100, 10, 10, 1}},
	}
	if diff := cmp.Diff(Accesses{4, 80, 400}, classify(s, m)); diff != "" {
		t.Errorf("accesses (-want +got):\n%s", diff)
	}
	if d := s.ExtraNanos(1, 1); d != 85 {
		t.Errorf("a local access is delayed by %d ns, want all of its 85", d)
	}
}

func TestSettled(t *testing.T) {
	quiet, busy := windowOf(1, 1, 0, 0, quietPages), windowOf(1, 1, 0, 0, quietPages+1)
	for _, c := range []struct {
		name       string
		windows    []Window
		lastChange int
		first      int
		seconds    float64
	}{
		{"no moves ever", []Window{quiet, quiet}, 0, 0, 0},
		{"moves until five seconds before the end", []Window{quiet, busy, quiet}, 0, 3, 15},
		{"moves with a pause between", []Window{quiet, busy, quiet, busy, quiet, quiet}, 0, 4, 20},
		{"moves to the end", []Window{quiet, busy}, 0, 2, 10},
		{"a change after the last move", []Window{busy, quiet, quiet, quiet}, 10, 2, 10},
		{"a change before the last move", []Window{quiet, quiet, busy, quiet, quiet}, 5, 3, 15},
	} {
		r := Run{Windows: c.windows}
		if first := r.settled(c.lastChange); first != c.first || r.seconds(first) != c.seconds {
			t.Errorf("%s: window %d after %v s, want %d after %v", c.name, first, r.seconds(first), c.first, c.seconds)
		}
	}
}

func TestGood_LastsToTheEnd(t *testing.T) {
	good, bad := windowOf(1, 96, 4, 0, 0), windowOf(1, 94, 6, 0, 0)
	for _, c := range []struct {
		name    string
		windows []Window
		seconds float64
		ok      bool
	}{
		{"at once", []Window{good, good}, 0, true},
		{"good, then bad, then good", []Window{bad, good, bad, good}, 15, true},
		{"not good at the end", []Window{good, bad}, 10, false},
		{"nothing measured", nil, 0, false},
		{"just good", []Window{windowOf(1, 95, 0, 5, 0)}, 0, true},
	} {
		if seconds, ok := (Run{Windows: c.windows}).Good(); seconds != c.seconds || ok != c.ok {
			t.Errorf("%s: from %v s, %v; want %v, %v", c.name, seconds, ok, c.seconds, c.ok)
		}
	}
}
