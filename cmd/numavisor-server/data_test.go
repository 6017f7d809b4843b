package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
)

// Servers that start together have no quorum for a moment: they wait for it, but not for ever.
func TestPrepare_WaitsForAQuorum(t *testing.T) {
	for _, c := range []struct {
		name   string
		outage time.Duration
		ok     bool
	}{{"a moment", 10 * time.Second, true}, {"an hour", time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.New(memory.Options{})
			s.LoseQuorum(true)
			back := time.AfterFunc(c.outage, func() { s.LoseQuorum(false) })
			defer back.Stop()
			err := prepare(t.Context(), s, t.TempDir())
			if c.ok && err != nil || !c.ok && !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s without a quorum: %v", c.name, err)
			}
		})
	}
}
