package throttle_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/throttle"
	"github.com/numavisor/numavisor/internal/topology"
)

func learned(all ...throttle.Copy) throttle.Copies {
	var c throttle.Copies
	for _, one := range all {
		c = c.With(one)
	}
	return c
}

func TestWhatMovesTellOfTheRate(t *testing.T) {
	const mib, gib = topology.MiB, topology.GiB
	at := func(rate topology.Bytes) throttle.Copy { return throttle.Copy{Bytes: 2 * rate, Took: 2 * time.Second} }
	for _, c := range []struct {
		name  string
		moves []throttle.Copy
		want  topology.Bytes
	}{
		{"none", nil, 0},
		{"one", []throttle.Copy{at(300 * mib)}, 300 * mib},
		{"of two the slower", []throttle.Copy{at(300 * mib), at(200 * mib)}, 200 * mib},
		{"one at a bad time", []throttle.Copy{at(gib), at(32 * mib), at(gib)}, gib},
		{"one that is too good", []throttle.Copy{at(gib), at(64 * gib), at(gib), at(gib)}, gib},
		{"the last five count", []throttle.Copy{at(100 * mib), at(100 * mib), at(100 * mib), at(gib), at(gib), at(gib),
			at(100 * mib), at(100 * mib)}, gib},
		{"too little to tell", []throttle.Copy{{Bytes: 64*mib - 1, Took: time.Second}}, 0},
		{"just enough", []throttle.Copy{{Bytes: 64 * mib, Took: time.Second}}, 64 * mib},
		{"no time is no figure", []throttle.Copy{{Bytes: gib}, {Bytes: gib, Took: -time.Second}}, 0},
		{"little does not push out much", []throttle.Copy{at(gib), {mib, 1}, {mib, 1}, {mib, 1}, {mib, 1}, {mib, 1}},
			gib},
		{"slower than a byte a second is not unknown", []throttle.Copy{{Bytes: 64 * mib, Took: 1 << 62}}, 1},
		{"as fast as can be", []throttle.Copy{{Bytes: 1 << 62, Took: 1}}, 1<<63 - 1},
	} {
		if got := learned(c.moves...).BytesPerSecond(); max(got, c.want)-min(got, c.want) > c.want/1e9 {
			t.Errorf("%s: %d bytes a second, want %d", c.name, got, c.want)
		}
	}
}

// For any moves: the rate is that of one of the last five. It is not the slowest or
// fastest of three or more unless others are as slow or fast. Their order does not
// matter, and a Copies that a caller already has does not change.
func TestTheLearnedRateIsInTheMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		moves := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) throttle.Copy {
			return throttle.Copy{
				Bytes: topology.Bytes(rapid.Uint64Range(0, 1<<40).Draw(t, "bytes")),
				Took:  time.Duration(rapid.Int64Range(-1, int64(time.Hour)).Draw(t, "took")),
			}
		}), 0, 12).Draw(t, "moves")
		var all throttle.Copies
		var telling []topology.Bytes
		var counted []throttle.Copy
		for _, one := range moves {
			before, rate := all, all.BytesPerSecond()
			all = all.With(one)
			if before.BytesPerSecond() != rate {
				t.Fatal("another move changed what was known before it")
			}
			if one.Bytes >= throttle.LeastCopy && one.Took > 0 {
				counted = append(counted, one)
			}
		}
		counted = counted[max(len(counted)-5, 0):]
		for _, one := range counted {
			telling = append(telling, learned(one).BytesPerSecond())
		}
		got := all.BytesPerSecond()
		if len(telling) == 0 {
			if got != 0 {
				t.Fatalf("%d bytes a second of no move", got)
			}
			return
		}
		slower, faster := 0, 0
		for _, rate := range telling {
			if rate < got {
				slower++
			}
			if rate > got {
				faster++
			}
		}
		if !slices.Contains(telling, got) || slower > len(telling)/2 || faster > len(telling)/2 {
			t.Fatalf("%d of %v", got, telling)
		}
		slices.Reverse(counted)
		if other := learned(counted...).BytesPerSecond(); other != got {
			t.Fatalf("%d in one order, %d in the other", got, other)
		}
	})
}
