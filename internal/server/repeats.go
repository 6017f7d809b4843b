package server

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/numavisor/numavisor/internal/server/store"
)

const (
	// repeatTime is how long the result of a request with an Idempotency-Key is stored at least.
	repeatTime = 24 * time.Hour
	// mostRepeats bounds the results that are stored.
	mostRepeats = 100_000
)

// repeat is the stored result of a request with an Idempotency-Key.
type repeat struct {
	Body string    `json:"body"` // hash
	VM   string    `json:"vm"`
	At   time.Time `json:"at"`
}

// seenRepeats is when a server first saw each stored result. Their age counts from then, not from when they were
// written: the clock of this server, or of the one that wrote them, may be wrong by days.
type seenRepeats map[string]time.Time

// expired returns the keys of results that are old enough to be deleted, of those that are stored now: those that this
// server has seen for repeatTime, and the oldest of more than most.
func (s seenRepeats) expired(stored []store.Record, now time.Time, most int) (keys []string) {
	type result struct {
		key string
		at  time.Time
	}
	var rest []result
	before := map[string]time.Time{}
	for _, r := range stored {
		var value repeat
		first, seen := s[r.Key]
		switch {
		case json.Unmarshal(r.Value, &value) != nil, seen && now.Sub(first) >= repeatTime:
			keys = append(keys, r.Key)
			continue
		case !seen:
			first = now
		}
		before[r.Key] = first
		rest = append(rest, result{r.Key, value.At})
	}
	slices.SortFunc(rest, func(a, b result) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.key, b.key)) })
	for i := range max(0, len(rest)-most) {
		keys = append(keys, rest[i].key)
		delete(before, rest[i].key)
	}
	clear(s)
	for key, first := range before {
		s[key] = first
	}
	return keys
}
