package balance

import (
	"math"
	"math/rand/v2"
	"testing"
)

// What guests lose by a change is the same, whether all guests and nodes are counted or those that it touches.
func TestAround_HasAllThatAChangeAlters(t *testing.T) {
	m := newModel(Request{Host: crowded(8, 100)})
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		i := r.IntN(len(m.guests))
		group := []change{{i, r.IntN(len(m.guests[i].layouts))}}
		part := m.around(group)
		before, near := m.lost(), m.lostIn(part)
		m.apply(group...)
		after, nearAfter := m.lost(), m.lostIn(part)
		all, some := before.saved(after), near.saved(nearAfter)
		if math.Abs(all-some) > 1e-6 || len(part.guests) == 0 {
			t.Fatalf("change %v saves %v CPUs, and %v on its %d nodes", group, all, some, len(part.nodes))
		}
	}
}
