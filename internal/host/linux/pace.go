package linux

import (
	"context"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// AtMost paces a Mover to a rate in bytes a second: each chunk waits until the
// one before it has used up its time. 0 is no limit.
func AtMost(perSecond topology.Bytes) func(context.Context, topology.Bytes) error {
	if perSecond == 0 {
		return nil
	}
	var next time.Time
	return func(ctx context.Context, bytes topology.Bytes) error {
		wait := time.Until(next)
		if wait > 0 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-timer.C:
			}
		}
		next = time.Now().Add(time.Duration(float64(bytes) / float64(perSecond) * float64(time.Second)))
		return nil
	}
}
