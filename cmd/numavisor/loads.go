package main

import (
	"context"
	"errors"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/inventory"
)

// loadsTime is how long a daemon may take to return its measurements.
const loadsTime = 10 * time.Second

// addLoads adds the loads that this host's daemon has measured. Loads take time
// to measure: without a daemon, they are a gap.
func addLoads(ctx context.Context, socket string, inv *inventory.Host) {
	ctx, cancel := context.WithTimeout(ctx, loadsTime)
	defer cancel()
	measured, err := hostapi.Dial(socket).Inventory(ctx)
	if err != nil {
		why := err.Error()
		if errors.Is(err, hostapi.ErrNotRunning) {
			why = "no daemon measures them ('numavisor daemon')"
		}
		inv.Gaps = append(inv.Gaps, inventory.LoadsGap(why))
		return
	}
	inv.TakeLoads(measured)
}

// measuredLoads returns the inventory of this host's daemon, which has loads; nil
// without a daemon.
func measuredLoads(ctx context.Context, socket string) *inventory.Host {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	measured, err := hostapi.Dial(socket).Inventory(ctx)
	if err != nil {
		return nil
	}
	return &measured
}
