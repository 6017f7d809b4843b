package pace_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/pace"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestDisturbance(t *testing.T) {
	for _, c := range []struct {
		name           string
		before, during pace.Use
		want           float64
	}{
		{"none", pace.Use{Ran: 2}, pace.Use{Ran: 2}, 0},
		{"more than before", pace.Use{Ran: 1}, pace.Use{Ran: 2}, 0},
		{"half of its time lost to pages on their way", pace.Use{Ran: 2}, pace.Use{Ran: 1}, 0.5},
		{"a quarter lost to waiting", pace.Use{Ran: 2}, pace.Use{Ran: 2, Waited: 0.5}, 0.25},
		{"it waited before, too", pace.Use{Ran: 1, Waited: 1}, pace.Use{Ran: 1, Waited: 1}, 0},
		{"idle", pace.Use{}, pace.Use{Waited: 1}, 0},
	} {
		if got := pace.Disturbance(c.before, c.during); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A guest that loses time in proportion to the pace is copied about as fast as
// its limit allows, on average not beyond it, and never slower than the least.
func TestThePaceSettlesBelowTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bears := topology.Bytes(rapid.IntRange(20, 4000).Draw(t, "MiB/s that it bears")) * topology.MiB
		l := pace.Limits{Disturbance: 0.05}
		if rapid.Bool().Draw(t, "capped") {
			l.Most = topology.Bytes(rapid.IntRange(1, 5000).Draw(t, "most")) * topology.MiB
		}
		rate := pace.First(l)
		sum, turns := 0.0, 400
		for turn := range 2 * turns {
			if l.Most > 0 && rate > l.Most {
				t.Fatalf("%v is above the cap %v", rate, l.Most)
			}
			if rate < min(pace.Least, max(l.Most, 1)) && (l.Most == 0 || rate < l.Most) {
				t.Fatalf("%v is below the least", rate)
			}
			lost := l.Disturbance * float64(rate) / float64(bears)
			if turn >= turns {
				sum += lost
			}
			rate = pace.Next(rate, l, pace.Use{Ran: 2}, pace.Use{Ran: 2 * (1 - min(1, lost))})
		}
		mean := sum / float64(turns)
		if least := l.Disturbance * float64(pace.Least) / float64(bears); mean > max(1.1*l.Disturbance, least*2) {
			t.Fatalf("loses %.3f on average, the limit is %.3f", mean, l.Disturbance)
		}
		if (l.Most == 0 || l.Most > bears) && mean < 0.5*l.Disturbance {
			t.Fatalf("loses %.3f only: slower than need be", mean)
		}
	})
}
