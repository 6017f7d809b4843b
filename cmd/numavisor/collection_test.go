package main

import "testing"

// A small heap may grow to a fixed size, a large one by a fifth.
func TestCollectLater_GrowthOfTheHeap(t *testing.T) {
	for live, want := range map[float64]int{0: 200, 1 << 20: 200, 4 << 20: 100, 5 << 20: 60, 8 << 20: 20, 24 << 20: 20, 1 << 30: 20} {
		if got := growth(live); got != want {
			t.Errorf("%v bytes live: may grow by %d %%, want %d", live, got, want)
		}
	}
}
