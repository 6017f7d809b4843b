package local

import (
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/host/watch"
)

// Watch opens the meters of this host and returns a watcher that samples its
// guests. The caller closes it.
func (h *Host) Watch() *watch.Watcher {
	return watch.New(watch.Options{Root: h.root, Meters: []watch.Meter{
		// The first meter that can measure a guest gets it. A meter that this
		// host does not have reports that itself.
		watch.NewResctrl(h.root), watch.NewPMU(h.root), labcounter.NewMeter(labcounter.Path, h.root),
	}})
}

// DaemonOptions returns the daemon's options for this host, with w as its
// watcher. The caller sets Log and the intervals.
func (h *Host) DaemonOptions(w daemon.Watcher) daemon.Options {
	return daemon.Options{
		Host: h.Host, Watcher: w, Journal: h.Journal, Records: h.Journal.Folder,
		Roster: h.root.GuestRoster, Self: OwnCost,
	}
}
