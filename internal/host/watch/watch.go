// Package watch measures a host and its running guests again and again, every
// second or two, at a cost that does not grow with the guests' memory: CPU use
// and waiting, free memory, pressure, memory by node, and the nodes of memory
// accesses, by the best source that the host has.
//
// Ideas that hold throughout:
//
//   - kernel files stay open, are read whole into one buffer, and parsed in
//     place: a sample allocates its own values and little else;
//   - rates are differences over the window; a counter that runs backwards
//     gives 0; a counter that is read for the first time has no rate yet;
//   - a guest that ends during a sample is left out without a message;
//     a figure of a running guest or the host that cannot be read is a gap of
//     the sample;
//   - samples share maps and slices with the next sample where nothing changed:
//     do not write to them.
package watch

import (
	"cmp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Options are the parameters of a Watcher.
type Options struct {
	// Root is the host; linux.Live if empty.
	Root linux.Root
	// Meters measure accesses to memory, the best first. Guests that none of
	// them can measure get the placement estimate.
	Meters []Meter
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// OpenFiles limits how many files stay open; further files are opened for
	// each reading. Default: three quarters of the process's limit, at most
	// 16384.
	OpenFiles int
}

// maxOpenFiles limits kernel memory: each open file of /proc takes some 5 KiB.
const maxOpenFiles = 16 << 10

// slowInterval is how often figures are read that change slowly, and take half of a sample's time: free memory and
// huge pages of the nodes, and guests' memory by node. A plan is made as often.
const slowInterval = 5 * time.Second

// muchMoved is how much memory kernel balancing may move before a sample reads these figures again: a plan that places
// guests near their memory must know where it is by then.
const muchMoved = 16 * topology.MiB

// Watcher takes samples of one host. It is safe for concurrent use.
type Watcher struct {
	mu    sync.Mutex
	root  linux.Root
	now   func() time.Time
	cache *linux.FileCache

	topology *topology.Topology
	nodeOf   []topology.NodeID // by CPU; topology.NoNode for unknown CPUs
	nodes    *nodes
	kernel   *kernel
	guests   []*guestSampler // ascending by name
	access   access
	gaps     gaps
	last     time.Time // of the last sample; zero before the first
	turn     uint64    // samples taken
	// slowly is when the figures that change slowly were last read, and slow says that this sample reads them. balanced
	// is how much memory kernel balancing has moved since then.
	slowly   time.Time
	slow     bool
	balanced topology.Bytes
	// mapsRead says that this sample has read a guest's numa_maps: one per
	// sample is the limit.
	mapsRead bool
}

// New makes a Watcher. Before the first Follow it has neither guests nor nodes.
func New(o Options) *Watcher {
	w := &Watcher{root: o.Root, now: o.Now, topology: &topology.Topology{}, access: access{meters: o.Meters}}
	if w.root == "" {
		w.root = linux.Live
	}
	if w.now == nil {
		w.now = time.Now
	}
	open := o.OpenFiles
	if open == 0 {
		limit, err := linux.OpenFiles()
		w.gaps.set(inventory.OtherGap, inventory.HostRef(), "its limit of open files", err)
		open = min(limit/4*3, maxOpenFiles)
	}
	w.cache = w.root.NewFileCache(open)
	w.kernel = newKernel(w.cache)
	w.nodes = newNodes(w.cache)
	return w
}

// Follow sets the guests that exist now, and their host: from now on each
// sample measures those with a PID, and no others. Guests that were followed
// before keep their files and rates. The next sample reads everything: what follows the guests has just observed them,
// and figures that were read before it would replace newer ones.
func (w *Watcher) Follow(guests []inventory.Guest, t *topology.Topology) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t != w.topology {
		w.topology, w.nodeOf = t, nodesOfCPUs(t)
		w.nodes.follow(w.cache, &w.gaps, t)
	}
	before := map[string]*guestSampler{}
	for _, e := range w.guests {
		before[e.guest.Name] = e
	}
	now := w.now()
	w.slowly = time.Time{}
	w.guests = w.guests[:0]
	for i, g := range guests {
		if g.PID <= 0 {
			continue
		}
		e := before[g.Name]
		delete(before, g.Name)
		if e != nil && e.guest.PID == g.PID {
			e.update(g)
		} else {
			if e != nil {
				w.drop(e) // first: the new guest's gaps have the same name
			}
			e = w.newSampler(g, now, float64(i)/float64(len(guests)))
		}
		w.guests = append(w.guests, e)
	}
	for _, e := range before {
		w.drop(e)
	}
	slices.SortFunc(w.guests, func(a, b *guestSampler) int { return strings.Compare(a.guest.Name, b.guest.Name) })
	w.dropEnded()
	w.assign(now)
}

// nodesOfCPUs returns the node of each CPU, by its number.
func nodesOfCPUs(t *topology.Topology) []topology.NodeID {
	var nodes []topology.NodeID
	for _, n := range t.Nodes {
		for c := range n.CPUs.All() {
			for len(nodes) <= int(c) {
				nodes = append(nodes, topology.NoNode)
			}
			nodes[c] = n.ID
		}
	}
	return nodes
}

// node returns the node of a CPU, or topology.NoNode.
func (w *Watcher) node(c topology.CPUID) topology.NodeID {
	if c < 0 || int(c) >= len(w.nodeOf) {
		return topology.NoNode
	}
	return w.nodeOf[c]
}

// Sample measures everything now. Rates are over the time since the previous
// sample.
func (w *Watcher) Sample() inventory.Sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	runtime.LockOSThread() // the CPU time counted is this thread's
	defer runtime.UnlockOSThread()
	began := threadTime()
	now := w.now()
	var window time.Duration
	if !w.last.IsZero() {
		window = max(0, now.Sub(w.last))
	}
	w.last, w.mapsRead = now, false
	moves := w.kernel.moves(&w.gaps)
	w.balanced += moves.Balancing
	w.slow = w.slowly.IsZero() || now.Sub(w.slowly) >= slowInterval || now.Before(w.slowly) || w.balanced >= muchMoved
	if w.slow {
		w.slowly, w.balanced = now, 0
	}
	w.turn++

	s := inventory.Sample{Taken: now.UTC(), Window: window, Guests: make([]inventory.GuestSample, 0, len(w.guests)),
		Moves: moves}
	changed := false
	for _, e := range w.guests {
		g, threadsChanged := e.sample(w, now)
		changed = changed || threadsChanged
		if !e.ended {
			s.Guests = append(s.Guests, g)
		}
	}
	if w.dropEnded() || changed || w.access.due(now) {
		w.assign(now)
	}
	s.Nodes = w.nodes.sample(w, window)
	s.Accesses = w.measureAccesses(&s, window)
	s.Pressure = w.kernel.pressure(&w.gaps)
	s.Gaps = w.gaps.all()
	s.Cost = threadTime() - began
	return s
}

// threadTime is the CPU time that the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0 // cannot happen on Linux: the clock exists and t is writable
	}
	return time.Duration(t.Nano())
}

// dropEnded drops guests that have ended, and reports whether there were any.
func (w *Watcher) dropEnded() bool {
	before := len(w.guests)
	w.guests = slices.DeleteFunc(w.guests, func(e *guestSampler) bool {
		if e.ended {
			w.drop(e)
		}
		return e.ended
	})
	return len(w.guests) < before
}

func (w *Watcher) drop(e *guestSampler) {
	e.Close()
	w.gaps.forget(e.object)
}

// Close closes all files and meters. Do not use the Watcher afterwards.
func (w *Watcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.guests {
		e.Close()
	}
	w.guests = nil
	w.nodes.Close()
	w.kernel.Close()
	return w.access.Close()
}

// gaps are the present gaps, one for each object and missing figure.
type gaps struct {
	current map[gapKey]string
	list    []inventory.Gap
	stale   bool // list is older than current
}

type gapKey struct {
	kind   inventory.GapKind
	object inventory.Ref
	what   string
}

// set records that a figure cannot be read, or with a nil error, that it can.
func (g *gaps) set(kind inventory.GapKind, object inventory.Ref, what string, err error) {
	if err == nil && len(g.current) == 0 {
		return
	}
	key := gapKey{kind, object, what}
	why, had := g.current[key]
	switch {
	case err == nil && had:
		delete(g.current, key)
	case err != nil && (!had || why != err.Error()):
		if g.current == nil {
			g.current = map[gapKey]string{}
		}
		g.current[key] = err.Error()
	default:
		return
	}
	g.stale = true
}

// forget drops all gaps of one object.
func (g *gaps) forget(object inventory.Ref) {
	for key := range g.current {
		if key.object == object {
			delete(g.current, key)
			g.stale = true
		}
	}
}

func (g *gaps) all() []inventory.Gap {
	if g.stale {
		g.list = nil // the old one was published
		for key, why := range g.current {
			g.list = append(g.list, inventory.Gap{Kind: key.kind, Object: key.object, What: key.what, Why: why})
		}
		slices.SortFunc(g.list, func(a, b inventory.Gap) int {
			return cmp.Or(a.Object.Compare(b.Object), strings.Compare(a.What, b.What))
		})
		g.stale = false
	}
	return g.list
}
