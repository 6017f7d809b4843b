package local

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/daemon"
	hands "github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/watch"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Watcher samples the guests of this host.
type Watcher interface {
	daemon.Watcher
	io.Closer
}

// Watch opens the meters of this host and returns a watcher that samples its
// guests. The caller closes it.
func (h *Host) Watch() Watcher {
	if h.Xen != nil {
		return h.Xen.NewWatcher()
	}
	return watch.New(watch.Options{Root: h.root, Meters: []watch.Meter{
		// The first meter that can measure a guest gets it. A meter that this
		// host does not have reports that itself.
		watch.NewResctrl(h.root), watch.NewPMU(h.root), labcounter.NewMeter(labcounter.Path, h.root),
	}})
}

// DaemonOptions returns the daemon's options for this host, with w as its
// watcher. The caller sets Log and the intervals.
func (h *Host) DaemonOptions(w daemon.Watcher) daemon.Options {
	o := daemon.Options{
		Host: h.Host, Watcher: w, Journal: h.Journal, Records: h.Journal.Folder,
		Roster: h.root.GuestRoster, Self: OwnCost,
	}
	if lists, ok := w.(interface{ Roster() string }); ok {
		o.Roster = lists.Roster // the watcher itself sees which guests there are
	}
	if h.Xen != nil {
		o.Look = xenLook
	} else {
		o.CopyRate, o.Connect = h.copyRate, h.qemu.Connect
		o.Used = h.root.GuestCPUTime
	}
	return o
}

// copyRate measures how fast memory moves between the first two nodes that have room for the trial; 0: there are no
// two.
func (h *Host) copyRate(ctx context.Context) (topology.Bytes, error) {
	t, err := h.Sources.Kernel.Topology()
	if err != nil {
		return 0, err
	}
	var nodes []topology.NodeID
	for i := range t.Nodes {
		if t.Nodes[i].Free > roomForTrial {
			nodes = append(nodes, t.Nodes[i].ID)
		}
	}
	if len(nodes) < 2 {
		return 0, nil
	}
	return linux.CopyRate(ctx, nodes[0], nodes[1])
}

// roomForTrial is how much of a node must be free for a trial of copying: the trial reclaims nothing.
const roomForTrial = 256 * topology.MiB

// xenLook is the time between observations of a Xen host: each runs a dozen programs. Guests that come or go are
// observed at once.
const xenLook = time.Minute

// Agents returns what talks with the agents in guests while the daemon with these options runs: it hands CPUs over
// between mirrored guests, if the policy names CPUs for that, and makes the number of vCPUs of others follow their
// demands.
func (h *Host) Agents(o *daemon.Options) (run []func(context.Context) error) {
	if h.Xen != nil {
		return nil
	}
	rules := handoff.RulesOf(h.Policy)
	log := func(format string, args ...any) { o.Log.Warn(fmt.Sprintf(format, args...)) }
	others := h.Policy.NotShared() // as with hand-over, a policy that is read again counts from the next start on
	inform := func(format string, args ...any) { o.Log.Info(fmt.Sprintf(format, args...)) }
	threads := linux.NewVMThreads(h.root)
	z := &hands.Sizer{Threads: threads, Log: log, Inform: inform, File: h.scaled(),
		Shared: func(t *topology.Topology) topology.CPUSet {
			return t.CPUSet().Minus(t.Housekeeping.Union(others))
		}}
	o.Watcher = scaled{o.Watcher, z}
	run = append(run, z.Run)
	if rules.CPUs.IsEmpty() {
		return run
	}
	r := &hands.Runner{Rules: rules, Threads: threads, File: h.granted(), Claims: h.Ledger.Claims, Log: log}
	o.Watcher = handedOver{o.Watcher, r}
	return append(run, r.Run)
}

// granted is the file with the record of granted CPUs.
func (h *Host) granted() string { return filepath.Join(h.Ledger.Folder, "handoff.json") }

// scaled is the file that records which vCPUs guests use whose number of vCPUs follows their demand.
func (h *Host) scaled() string { return filepath.Join(h.Ledger.Folder, "scale.json") }

// addRecorded adds to the observed guests what the daemon records of them.
func (h *Host) addRecorded(inv *inventory.Host) {
	h.addHandedOver(inv)
	h.addScaled(inv)
}

// running returns the guests that run and whose placement is of a kind.
func running(inv *inventory.Host, is func(*guest.Placement) bool) (all []*inventory.Guest) {
	for i := range inv.Guests {
		if g := &inv.Guests[i]; g.PID != 0 && g.Placement != nil && is(g.Placement) {
			all = append(all, g)
		}
	}
	return all
}

// addScaled adds to the observed guests which vCPUs they use. A record of another process is of an earlier start.
func (h *Host) addScaled(inv *inventory.Host) {
	all := running(inv, func(p *guest.Placement) bool { return p.Scale != nil })
	if len(all) == 0 {
		return
	}
	record, err := hands.ReadScaled(h.scaled())
	if err != nil {
		inv.Gaps = append(inv.Gaps, inventory.Gap{Kind: inventory.OtherGap, Object: inventory.HostRef(),
			What: "which vCPUs VMs use whose number of vCPUs follows their demand", Why: err.Error()})
		return
	}
	for _, g := range all {
		if s, ok := record[g.Name]; ok && s.PID == g.PID {
			g.Seen.Scaled = &s.Scaled
		}
	}
}

// addHandedOver adds to the observed guests what the daemon records of the CPUs that they hand over.
func (h *Host) addHandedOver(inv *inventory.Host) {
	mirrored := running(inv, func(p *guest.Placement) bool { return p.Handoff != nil })
	if len(mirrored) == 0 {
		return
	}
	record, err := hands.ReadRecord(h.granted())
	if err != nil {
		inv.Gaps = append(inv.Gaps, inventory.Gap{Kind: inventory.OtherGap, Object: inventory.HostRef(),
			What: "which CPUs mirrored VMs are granted", Why: err.Error()})
		return
	}
	for _, g := range mirrored {
		state, cpus := record.Guests[g.Name], handoff.CPUsOf(record.Grants, g.Name)
		if cpus.IsEmpty() && state == (hands.State{}) {
			continue // no daemon has handed CPUs over since it started
		}
		g.Seen.HandedOver = &inventory.HandedOver{
			CPUs: cpus, Min: g.Placement.Handoff.Min, Weight: g.Placement.Handoff.Weight, Means: string(state.Means),
			Silent: state.Silent, Taken: state.Taken, Misbehaved: state.Misbehaved, MisbehavedAt: state.MisbehavedAt,
		}
	}
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

func (w handedOver) Sample() inventory.Sample {
	s := w.Watcher.Sample()
	handoff.Attribute(&s, w.runner.Holdings())
	return s
}

// scaled passes what the daemon observes and samples on to what decides on the numbers of guests' vCPUs.
type scaled struct {
	daemon.Watcher

	sizer *hands.Sizer
}

func (w scaled) Follow(guests []inventory.Guest, t *topology.Topology) {
	w.Watcher.Follow(guests, t)
	w.sizer.Follow(guests, t)
}

func (w scaled) Sample() inventory.Sample {
	s := w.Watcher.Sample()
	w.sizer.Sampled(s)
	states := w.sizer.States()
	for i := range s.Guests {
		if state, ok := states[s.Guests[i].Name]; ok {
			s.Guests[i].Scaled = &state
		}
	}
	return s
}
