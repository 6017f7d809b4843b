package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/server/store"
)

// stored makes stored results, written at some times.
func storedRepeats(t *testing.T, written ...time.Time) (all []store.Record) {
	t.Helper()
	for i, at := range written {
		value, err := json.Marshal(repeat{Body: "b", VM: "web", At: at})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, store.Record{Key: fmt.Sprint(store.Repeats, i), Value: value})
	}
	return all
}

// A result is deleted a day after the leader first saw it, whatever the clocks say of the servers that write and
// delete.
func TestSeenRepeats_AgeCountsFromTheFirstSight(t *testing.T) {
	now := time.Unix(1e9, 0)
	all := storedRepeats(t, now.Add(-48*time.Hour), now, now.Add(48*time.Hour))
	seen := seenRepeats{}
	for hour := range 24 {
		if keys := seen.expired(all, now.Add(time.Duration(hour)*time.Hour), 10); len(keys) > 0 {
			t.Fatalf("deleted after %d hours: %q", hour, keys)
		}
	}
	if keys := seen.expired(all, now.Add(repeatTime), 10); len(keys) != 3 || len(seen) > 0 {
		t.Errorf("after %v: %q, still seen %v", repeatTime, keys, seen)
	}
}

// Of too many results the oldest are deleted, and what cannot be read. One that is written again is a new one.
func TestSeenRepeats_AreBounded(t *testing.T) {
	now := time.Unix(1e9, 0)
	all := storedRepeats(t, now, now.Add(-time.Hour), now.Add(time.Hour))
	bad := store.Record{Key: store.Repeats + "bad", Value: []byte("{")}
	seen := seenRepeats{}
	keys := seen.expired(append(slices.Clone(all), bad), now, 2)
	if !slices.Equal(keys, []string{bad.Key, all[1].Key}) {
		t.Errorf("deleted are %q", keys)
	}
	seen.expired(nil, now.Add(time.Hour), 2)
	if keys = seen.expired(all[:1], now.Add(repeatTime), 2); len(keys) > 0 {
		t.Errorf("deleted are %q, seen for the first time", keys)
	}
}
