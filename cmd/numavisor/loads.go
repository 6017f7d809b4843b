package main

import (
	"context"
	"errors"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

// loadsTime is how long a daemon may take to return its measurements.
const loadsTime = 10 * time.Second

// loadsOf returns the loads that the daemon at a socket has measured. A load takes
// time to measure, so no command measures any itself.
func loadsOf(socket string) operate.Loads {
	return func(ctx context.Context) (inventory.Host, error) {
		ctx, cancel := context.WithTimeout(ctx, loadsTime)
		defer cancel()
		measured, err := hostapi.Dial(socket).Inventory(ctx)
		if errors.Is(err, hostapi.ErrNotRunning) {
			err = errors.New("no daemon measures them ('numavisor daemon')")
		}
		return measured, err
	}
}
