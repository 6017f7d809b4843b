package main

import (
	"context"
	"errors"
	"io"
	"time"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

// loadsTime is how long a daemon may take to return its measurements.
const loadsTime = 10 * time.Second

// loadsOf returns the loads that the daemon at a socket has measured. A load takes
// time to measure, so no command measures any itself. If a daemon runs and its loads
// are not known, a note says so: the command may decide otherwise than the daemon.
func loadsOf(socket string, notes io.Writer) operate.Loads {
	return func(ctx context.Context) (inventory.Host, error) {
		ctx, cancel := context.WithTimeout(ctx, loadsTime)
		defer cancel()
		measured, err := hostapi.Dial(socket).Inventory(ctx)
		switch {
		case errors.Is(err, hostapi.ErrNotRunning):
			err = errors.New("no daemon measures them ('numavisor daemon')")
		case err != nil:
			printf(notes, "numavisor: note: the loads that the daemon measures are not known (%v): each vCPU counts "+
				"as busy\n", err)
		}
		return measured, err
	}
}
