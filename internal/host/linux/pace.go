package linux

import (
	"context"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// AtMost limits Movers to a rate in bytes a second, which all that share it
// divide: each chunk waits until the one before it has used up its time. 0 is
// no limit.
func AtMost(perSecond topology.Bytes) func(context.Context, topology.Bytes) error {
	if perSecond == 0 {
		return nil
	}
	var mu sync.Mutex
	var next time.Time // when the next chunk may begin
	return func(ctx context.Context, bytes topology.Bytes) error {
		mu.Lock()
		now := time.Now()
		begin := now
		if next.After(now) {
			begin = next
		}
		next = begin.Add(time.Duration(float64(bytes) / float64(perSecond) * float64(time.Second)))
		mu.Unlock()
		timer := time.NewTimer(begin.Sub(now))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		}
	}
}
