package main

import (
	"context"
	"errors"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/inventory"
)

// loadsTime is how long a daemon may take to say what it has measured.
const loadsTime = 10 * time.Second

// addLoads adds what this host's daemon has measured of loads. Loads need time
// to be measured: where no daemon does it, they are a gap.
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
