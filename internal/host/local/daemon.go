package local

import (
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/host/watch"
)

// Watch opens the meters of this host and returns what samples its guests. The
// caller closes it.
func (h *Host) Watch() *watch.Watcher {
	return watch.New(watch.Options{Root: h.root, Meters: []watch.Meter{
		// Guests are given to the first meter that can measure them. A meter
		// that this host does not have reports that by itself.
		watch.NewResctrl(h.root), watch.NewPMU(h.root), labcounter.NewMeter(labcounter.Path, h.root),
	}})
}

// DaemonOptions returns what a daemon needs of this host, with w as its
// watcher. Log and the intervals are the caller's to set.
func (h *Host) DaemonOptions(w daemon.Watcher) daemon.Options {
	return daemon.Options{
		Host: h.Host, Watcher: w, Journal: h.Journal, Records: h.Journal.Folder,
		Roster: h.root.GuestRoster, Self: OwnCost,
	}
}
