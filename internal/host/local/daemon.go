package local

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/daemon"
	hands "github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/host/watch"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
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

// HandOver returns what hands CPUs over between mirrored guests while the daemon with
// these options runs. It does nothing if the policy names no CPUs for that.
func (h *Host) HandOver(o *daemon.Options) (run func(context.Context) error) {
	rules := handoff.RulesOf(h.Policy)
	if rules.CPUs.IsEmpty() {
		return func(context.Context) error { return nil }
	}
	r := &hands.Runner{
		Rules: rules, Threads: h.root, File: h.granted(), Claims: h.Ledger.Claims,
		Log: func(format string, args ...any) { o.Log.Warn(fmt.Sprintf(format, args...)) },
	}
	o.Watcher = handedOver{o.Watcher, r}
	return r.Run
}

// granted is the file with the record of granted CPUs.
func (h *Host) granted() string { return filepath.Join(h.Ledger.Folder, "handoff.json") }

// Granted is what a mirrored VM has at present.
type Granted struct {
	CPUs topology.CPUSet `json:"cpus"`
	Min  int             `json:"min_vcpus"`
	hands.State
}

// GrantedTo returns what a mirrored VM has, as the daemon records it; nil: it hands no CPUs over.
func (h *Host) GrantedTo(name string, p *guest.Placement) (*Granted, error) {
	if p == nil || p.Handoff == nil {
		return nil, nil //nolint:nilnil // documented
	}
	record, err := hands.ReadRecord(h.granted())
	if err != nil {
		return nil, err
	}
	g := Granted{Min: p.Handoff.Min, State: record.Guests[name]}
	for _, grant := range record.Grants {
		if grant.Guest == name {
			g.CPUs = g.CPUs.With(grant.CPU)
		}
	}
	return &g, nil
}

// awaitStart waits until the CPUs with which a mirrored VM starts serve no running VM.
func (h *Host) awaitStart(ctx context.Context, name string, first topology.CPUSet) error {
	inv, err := h.Observe(ctx)
	if err != nil {
		return err
	}
	return hands.AwaitStart(ctx, h.granted(), name, first, func(vm string) bool {
		g, ok := inv.Guest(vm)
		return ok && g.PID != 0
	})
}

// handedOver passes what the daemon observes on to the hand-over of CPUs as well.
type handedOver struct {
	daemon.Watcher

	runner *hands.Runner
}

func (w handedOver) Follow(guests []inventory.Guest, t *topology.Topology) {
	w.Watcher.Follow(guests, t)
	w.runner.Follow(guests, t)
}
