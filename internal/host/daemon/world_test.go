package daemon_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	mib    = topology.MiB
	gib    = topology.GiB
	square = "nodes:4 cores:4 memory:4G square distances:10,16,28"
)

func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }

// world is a fake host under a daemon, with files in the test's folder and a
// clock of its own (testing/synctest).
type world struct {
	*fake.Host
	t            *testing.T
	folder       string
	policy       policy.Policy
	settings     *fake.Settings
	load         fake.Load
	hostID       string      // the id of this host
	full         atomic.Bool // the disk of the journal
	unobservable atomic.Bool // for a test's faults
	log          *slog.Logger
	roster       func() string
	used         func() (time.Duration, error)
	connect      func(context.Context) error
	watcher      func(daemon.Watcher) daemon.Watcher // wraps the sampler; nil: as it is
	supervisor   daemon.Supervisor
	rosterMu     sync.Mutex
	rosterNow    string
	d            *daemon.Daemon
	stop         func()
	ended        chan error
}

// within runs a test on a host with a clock of its own.
func within(t *testing.T, machine string, p policy.Policy, test func(t *testing.T, w *world)) {
	t.Helper()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := fake.MustNew(machine)
		quiet, _ := h.Settings()
		test(t, &world{Host: h, t: t, folder: folder, policy: p, settings: &fake.Settings{Kernel: quiet}})
	})
}

// start runs a daemon; end stops it, as SIGTERM does.
func (w *world) start() {
	w.t.Helper()
	h := hosttest.Join(w.Host, w.folder+"/run", time.Now)
	h.Sources.Kernel, h.Settings, h.Policy = w.settings.On(w.Host), w.settings, w.policy
	h.Sources.HostID = func() (string, error) { return w.hostID, nil }
	var watcher daemon.Watcher = w.load.Sampler(w.Host)
	if w.watcher != nil {
		watcher = w.watcher(watcher)
	}
	w.d = daemon.New(daemon.Options{
		Host: h, Watcher: watcher, Journal: hosttest.Journal{Journal: record.Journal{Folder: w.folder},
			Full: &w.full},
		Records: w.folder, Log: w.log, Roster: w.roster, Used: w.used, Connect: w.connect, Supervisor: w.supervisor,
	})
	ctx, stop := context.WithCancel(w.t.Context())
	w.stop, w.ended = stop, make(chan error, 1)
	go func() { w.ended <- w.d.Run(ctx) }()
	synctest.Wait()
}

func (w *world) end() {
	w.t.Helper()
	w.stop()
	if err := <-w.ended; err != nil {
		w.t.Errorf("the daemon ended by %v", err)
	}
}

// misplaced adds an unmanaged guest whose memory is on one node and whose vCPUs
// are pinned to CPUs.
func (w *world) misplaced(name string, vcpus int, size topology.Bytes, on, pinned string) {
	w.t.Helper()
	c := inventory.Config{
		VCPUs:       vcpus,
		Memory:      size,
		Source:      "anonymous",
		Immediate:   true,
		Pins:        map[guestVCPU]topology.CPUSet{},
		EmulatorPin: cpus(pinned),
		NUMATune:    &inventory.NUMATune{Mode: "restrictive", Nodes: nodes(on)},
	}
	for v := range vcpus {
		c.Pins[guestVCPU(v)] = cpus(pinned)
	}
	if err := w.Add(fake.Definition{Name: name, Config: c}); err != nil {
		w.t.Fatal(err)
	}
	for v := range vcpus { // memory is allocated: now the vCPUs may be pinned
		if err := w.PinVCPU(w.t.Context(), name, guestVCPU(v), cpus(pinned)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// busy adds an unmanaged guest that uses all CPUs of a node, and is well
// placed.
func (w *world) busy(name, node, pinned string) {
	w.t.Helper()
	w.misplaced(name, cpus(pinned).Len(), 256*mib, node, pinned)
}

// on returns the share of a guest's memory on nodes.
func (w *world) share(name, on string) float64 {
	w.t.Helper()
	g, ok := w.Guest(name)
	if !ok {
		w.t.Fatalf("guest %s is gone", name)
	}
	var here, all float64
	for id, b := range fake.MemoryOf(g) {
		all += float64(b)
		if nodes(on).Contains(id) {
			here += float64(b)
		}
	}
	return here / all
}

func (w *world) status() status.Status {
	w.t.Helper()
	s, err := w.d.Status(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// entries returns the journal's entries of some kinds; all without any.
func (w *world) entries(kinds ...journal.Kind) []journal.Entry {
	w.t.Helper()
	all, err := record.Journal{Folder: w.folder}.Entries()
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(all,
		func(e journal.Entry) bool { return len(kinds) > 0 && !slices.Contains(kinds, e.Kind) })
}
