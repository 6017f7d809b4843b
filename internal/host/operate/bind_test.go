package operate_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/topology"
)

// drawn is a host with one guest of a kind that somebody started somewhere.
func drawn(t *rapid.T, folder string) (world, kind) {
	w := newWorld(t, square, folder)
	k := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]
	ids := rapid.Permutation([]topology.NodeID{0, 1, 2, 3}).Draw(t, "nodes")
	size := topology.Bytes(rapid.IntRange(8, 30).Draw(t, "pages of 2 MiB in a cell")) * 2 * mib
	top := w.Nodes()
	w.add(t, k.guest("g", size, ids, top.CPUsOf(topology.SetOf(ids[2]))))
	if !k.huge && rapid.Bool().Draw(t, "smeared") {
		if err := w.Smear("g", top.NodeSet()); err != nil {
			t.Fatal(err)
		}
	}
	return w, k
}

// Without faults a bind ends with every page and thread where the placement
// wants it, whatever kind of guest it was; a second one finds nothing to do.
func TestBindBringsEveryKindOfGuestInPlace(t *testing.T) {
	folder := folderOf(t)
	rapid.Check(t, func(t *rapid.T) {
		w, k := drawn(t, folder)
		b, err := w.bind("g")
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		if len(b.Truth.Differences) > 0 {
			t.Errorf("%s: differs after the bind: %v", k.name, b.Truth.Differences)
		}
		for _, o := range b.Outcomes {
			if o.Status != "done" {
				t.Errorf("%s: %s: %s %s", k.name, o.Step, o.Status, o.Detail)
			}
		}
		w.inPlace(t, "g")
		w.settled(t)
		again, err := w.bind("g")
		if err != nil || len(again.Plan.Steps) > 0 {
			t.Errorf("%s: a guest in place gets a plan: %v\n%s", k.name, err, again.Plan.Text())
		}
	})
}
