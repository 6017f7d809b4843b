package daemon_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
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

// world is a fake host under a daemon, with files in a folder of the test's
// and a clock of its own (testing/synctest).
type world struct {
	*fake.Host
	t         *testing.T
	folder    string
	policy    policy.Policy
	settings  *settings
	full      atomic.Bool                     // the disk of the journal
	blind     atomic.Bool                     // for faults of a test's
	idle      atomic.Bool                     // the guests do nothing
	asleep    sync.Map                        // names of guests that do nothing
	takes     func(samples int) time.Duration // how long each sample takes; nil: no time
	works     func(samples int) float64       // the part of their CPUs that guests want; nil: all
	log       *slog.Logger
	roster    func() string
	rosterMu  sync.Mutex
	rosterNow string
	d         *daemon.Daemon
	stop      func()
	ended     chan error
}

// eyes watch the fake: every vCPU uses its CPU fully, and waits where its node has too few.
type eyes struct {
	h      *fake.Host
	idle   *atomic.Bool
	asleep *sync.Map
	takes  func(int) time.Duration
	works  func(int) float64
	mu     sync.Mutex
	guests []inventory.Guest
	last   time.Time
	taken  int
}

func (e *eyes) Follow(guests []inventory.Guest, _ *topology.Topology) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.guests = slices.Clone(guests)
}

func (e *eyes) Sample() inventory.Sample {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken++ // the kernel moves a page more each time
	if e.takes != nil {
		time.Sleep(e.takes(e.taken))
	}
	s := inventory.Sample{Taken: time.Now(), Moves: inventory.KernelMoves{Balancing: topology.Bytes(e.taken) * 4096}}
	if !e.last.IsZero() {
		s.Window = s.Taken.Sub(e.last)
	}
	e.last = s.Taken
	t := e.h.Nodes()
	asked := map[topology.NodeID]float64{}
	on := map[string]map[topology.NodeID]float64{}
	for _, g := range e.guests {
		now, ok := e.h.Guest(g.Name)
		if !ok || now.PID != g.PID || now.State != "running" {
			continue
		}
		on[g.Name] = map[topology.NodeID]float64{}
		for _, thread := range now.Seen.Threads {
			if thread.VCPU == nil {
				continue
			}
			for id := range t.NodesOf(thread.Affinity).All() {
				share := 1 / float64(t.NodesOf(thread.Affinity).Len())
				on[g.Name][id] += share
				asked[id] += share
			}
		}
		s.Guests = append(s.Guests, inventory.GuestSample{Name: g.Name, PID: g.PID, CPUByNode: on[g.Name], MemoryByNode: memory(now)})
	}
	slices.SortFunc(s.Guests, func(a, b inventory.GuestSample) int { return int(a.Name[0]) - int(b.Name[0]) })
	for i := range s.Guests {
		g := &s.Guests[i]
		g.Load.Window = s.Window
		for id, wants := range g.CPUByNode {
			node, _ := t.Node(id)
			got := min(1, float64(node.CPUs.Len())/asked[id])
			if _, asleep := e.asleep.Load(g.Name); asleep || e.idle.Load() {
				wants = 0
			} else if e.works != nil {
				wants *= e.works(e.taken)
			}
			g.Load.CPU += wants * got
			g.Load.Wait += wants * (1 - got)
		}
	}
	for _, n := range t.Nodes {
		s.Nodes = append(s.Nodes, inventory.NodeSample{NodeLoad: inventory.NodeLoad{Node: n.ID, CPU: min(asked[n.ID], float64(n.CPUs.Len()))}, CPUs: n.CPUs.Len(), Memory: n.Memory, Free: n.Free})
	}
	return s
}

func memory(g inventory.Guest) map[topology.NodeID]topology.Bytes {
	sum := map[topology.NodeID]topology.Bytes{}
	for _, r := range g.Seen.Ranges {
		for id, b := range r.ByNode {
			sum[id] += b
		}
	}
	return sum
}

// settings is what others do on the fake host: what the kernel says of it, and
// what the daemon has changed.
type settings struct {
	mu     sync.Mutex
	kernel inventory.Kernel
	took   time.Duration // each change takes so long,
	fails  error         // and fails so
	began  []string      // changes
	ended  []string
}

// say changes what the kernel says, or how it takes changes.
func (s *settings) say(how func(*settings)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(s)
}

func (s *settings) did() (began, ended []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.began), slices.Clone(s.ended)
}

// change takes its time, unless it is cut short, and then is made.
func (s *settings) change(ctx context.Context, what string, make func()) error {
	s.mu.Lock()
	s.began = append(s.began, what)
	took, fails := s.took, s.fails
	s.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, what)
	if fails == nil {
		make()
	}
	return fails
}

func (s *settings) ReadSetting(path string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if path == plan.KSMAcrossNodesPath {
		return s.kernel.KSMAcrossNodes, nil
	}
	return s.kernel.NUMABalancing, nil
}

func (s *settings) WriteSetting(path, v string) error {
	if path == plan.KSMAcrossNodesPath {
		return s.change(context.Background(), "ksm", func() { s.kernel.KSMAcrossNodes = v })
	}
	return s.change(context.Background(), "balancing "+v, func() { s.kernel.NUMABalancing = v })
}

func (s *settings) ExcludeFromNumad(ctx context.Context, pid int) error {
	return s.change(ctx, fmt.Sprint("numad -x ", pid), func() {})
}

// kernel is the fake's kernel, with settings that change.
type kernel struct {
	*fake.Host
	settings *settings
}

func (k kernel) Settings() (inventory.Kernel, []inventory.Gap) {
	k.settings.mu.Lock()
	defer k.settings.mu.Unlock()
	return k.settings.kernel, nil
}

// pages is a journal in a folder that can be full.
type pages struct {
	record.Journal
	full *atomic.Bool
}

func (p pages) Append(e journal.Entry) error {
	if p.full.Load() {
		return unix.ENOSPC
	}
	return p.Journal.Append(e)
}

// within runs a test on a machine, with all time its own.
func within(t *testing.T, machine string, p policy.Policy, test func(t *testing.T, w *world)) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := fake.MustNew(machine)
		quiet, _ := h.Settings()
		test(t, &world{Host: h, t: t, folder: folder, policy: p, settings: &settings{kernel: quiet}})
	})
}

// start runs a daemon; end stops it, as SIGTERM does.
func (w *world) start() {
	w.t.Helper()
	ledger := claim.Ledger{Folder: w.folder + "/run", Alive: func(p claim.Process) bool { return p.PID == 77 || w.Runs(p.PID, p.StartTicks) }}
	h := &operate.Host{
		Sources: observe.Sources{Kernel: kernel{w.Host, w.settings}, Hypervisors: []observe.Hypervisor{w.Host}, Claims: ledger.Claims, Now: time.Now, HostName: func() (string, error) { return "fake", nil }},
		Kernel:  w.Host, Control: w.Host, Domains: w.Host, Settings: w.settings, Ledger: ledger, Self: claim.Process{PID: 77, StartTicks: 777}, Clock: time.Now, Policy: w.policy,
	}
	w.d = daemon.New(daemon.Options{Host: h, Watcher: &eyes{h: w.Host, idle: &w.idle, asleep: &w.asleep, takes: w.takes, works: w.works}, Journal: pages{record.Journal{Folder: w.folder}, &w.full}, Records: w.folder, Log: w.log, Roster: w.roster})
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

// lies adds a guest of others whose memory lies on one node and whose vCPUs are pinned to CPUs.
func (w *world) lies(name string, vcpus int, size topology.Bytes, on, pinned string) {
	w.t.Helper()
	c := inventory.Config{VCPUs: vcpus, Memory: size, Source: "anonymous", Immediate: true, Pins: map[guestVCPU]topology.CPUSet{}, EmulatorPin: cpus(pinned),
		NUMATune: &inventory.NUMATune{Mode: "restrictive", Nodes: nodes(on)}}
	for v := range vcpus {
		c.Pins[guestVCPU(v)] = cpus(pinned)
	}
	if err := w.Add(fake.Definition{Name: name, Config: c}); err != nil {
		w.t.Fatal(err)
	}
	for v := range vcpus { // memory is there: now the vCPUs may go
		if err := w.PinVCPU(w.t.Context(), name, guestVCPU(v), cpus(pinned)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// busy adds a guest of others that keeps all CPUs of a node busy, and is well where it is.
func (w *world) busy(name, node, pinned string) {
	w.t.Helper()
	w.lies(name, cpus(pinned).Len(), 256*mib, node, pinned)
}

// on returns the share of a guest's memory on nodes.
func (w *world) share(name, on string) float64 {
	w.t.Helper()
	g, ok := w.Guest(name)
	if !ok {
		w.t.Fatalf("guest %s is gone", name)
	}
	var here, all float64
	for id, b := range memory(g) {
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

// entries returns what the journal has of some kinds; all without any.
func (w *world) entries(kinds ...journal.Kind) []journal.Entry {
	w.t.Helper()
	all, err := record.Journal{Folder: w.folder}.Entries()
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(e journal.Entry) bool { return len(kinds) > 0 && !slices.Contains(kinds, e.Kind) })
}
