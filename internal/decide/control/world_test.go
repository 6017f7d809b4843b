package control_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// vm is a guest of a transcript.
type vm struct {
	inventory.Guest
	cpu, wait  float64 // CPUs that it uses and waits for
	near, far  bool    // its accesses are measured, and all are local, or remote
	unmeasured bool    // its first sample: only the second one has a load
}

// world is what a controller sees of its host in a transcript, and what it
// wants done there. Jobs and settings end when the transcript says so;
// observations end at once.
type world struct {
	t        *testing.T
	c        *control.Controller
	began    time.Time
	now      time.Time
	last     time.Time // of the last sample
	topology topology.Topology
	kernel   inventory.Kernel
	guests   map[string]*vm
	policy   policy.Policy
	journal  []journal.Entry
	alarms   alarm.State
	full     bool          // the journal cannot be written
	away     string        // why the host cannot be observed
	took     time.Duration // by each observation
	slow     bool          // the test answers a reading of mappings
	read     *control.ReadClosely
	job      *control.Job
	remedy   *plan.Remedy
	state    control.State
	orders   control.OrderID
	brings   int           // MiB a second that kernel balancing moves
	sampleIn time.Duration // of the last event
	out      strings.Builder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	noon := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC) // a Monday
	return &world{t: t, began: noon, now: noon, guests: map[string]*vm{}}
}

// squareHost is a host of four nodes, two of which are far from each other.
const squareHost = "nodes:4 cores:8 memory:16G square distances:10,16,28"

// worldOf returns a world with a machine, in the form of topology.Synthetic, and the controller of its host.
func worldOf(t *testing.T, machine, rules string, o control.Options) *world {
	t.Helper()
	w := newWorld(t)
	var err error
	if w.topology, err = topology.Synthetic(machine); err != nil {
		t.Fatal(err)
	}
	if w.policy, err = policy.Parse(strings.NewReader(rules)); err != nil {
		t.Fatal(err)
	}
	o.Policy, o.SaveAlarms = w.policy, time.Hour
	w.c = control.New(o)
	return w
}

// print adds a line to the transcript, with the time since it began.
func (w *world) print(format string, args ...any) {
	fmt.Fprintf(&w.out, "%-7s "+format+"\n", append([]any{"+" + w.now.Sub(w.began).String()}, args...)...)
}

// step feeds an event to the controller, prints what comes out, and answers
// what can be answered at once.
func (w *world) step(e control.Event) {
	for events := []control.Event{e}; len(events) > 0; events = events[1:] {
		r := w.c.Step(w.now, events[0])
		events = append(events, w.carryOut(&r)...)
		if s := w.c.State(); s != w.state {
			w.print("state    %s -> %s", cmp.Or(w.state, "new"), s)
			w.state = s
		}
	}
}

func (w *world) carryOut(r *control.Ready) (events []control.Event) {
	if r.StopJob != "" {
		w.print("stop     %s", r.StopJob)
	}
	for _, a := range r.Entries {
		err := w.append(a)
		if a.Order != 0 {
			events = append(events, control.Appended{Order: a.Order, Err: err})
		}
	}
	if r.ReadJournal {
		w.print("read     journal")
		events = append(events, control.JournalRead{Entries: slices.Clone(w.journal)})
	}
	if r.SaveAlarms != nil {
		w.alarms = r.SaveAlarms.State
	}
	if r.Observe {
		w.print("observe  %s", cmp.Or(w.away, "host"))
		events = append(events, w.observed())
	}
	if r.ReadClosely != nil {
		w.print("read     %s closely", strings.Join(r.ReadClosely.Guests, " "))
		if w.read = r.ReadClosely; !w.slow {
			events = append(events, w.readClosely(r.ReadClosely))
		}
	}
	if r.Remedy != nil {
		w.remedy = r.Remedy
		w.print("remedy   %s value=%q guest=%q pid=%d", r.Remedy.Kind, r.Remedy.Value, r.Remedy.Guest, r.Remedy.PID)
	}
	if r.StartJob != nil {
		w.job = r.StartJob
		w.print("start    %s", jobText(r.StartJob))
	}
	for _, f := range r.Facts {
		if f.Level != control.Debug {
			w.print("log      %s: %s %v", f.Level, f.What, f.About)
		}
	}
	w.sampleIn = r.SampleIn
	for _, reply := range r.Replies {
		w.print("reply    %s", replyText(reply.Err))
	}
	if r.Stopped {
		w.print("stopped")
	}
	return events
}

func jobText(j *control.Job) string {
	text := strings.TrimSpace(string(j.Kind) + " " + j.ID)
	if j.Kind == control.MoveJob {
		text += ": " + j.Move.String()
	}
	if j.By != "" {
		text += " (" + string(j.By) + ")"
	}
	if known := closelyKnown(j); known != "" {
		text += ", read closely: " + known
	}
	if j.Drifts {
		text += ", memory drifts"
	}
	if j.Held != nil {
		text += ", takes kernel balancing over"
	}
	if len(j.Served) > 0 {
		text += ", the kernel has served " + strings.Join(j.Served, " ")
	}
	return text
}

// closelyKnown lists the guests of which a job need not read the mappings.
func closelyKnown(j *control.Job) string {
	if j.Known == nil {
		return ""
	}
	var names []string
	for i := range j.Known.Guests {
		if g := &j.Known.Guests[i]; g.ReadClosely() {
			names = append(names, g.Name)
		}
	}
	return strings.Join(names, " ")
}

func replyText(err error) string {
	if err == nil {
		return "done"
	}
	reasons := []error{control.ErrMalformed, control.ErrUnknown, control.ErrConflict, control.ErrNotPersistent}
	for _, reason := range reasons {
		if errors.Is(err, reason) {
			return fmt.Sprintf("error %v", err)
		}
	}
	return fmt.Sprintf("error without a reason: %v", err)
}

// append puts an entry into the journal, if that can be written.
func (w *world) append(a control.Append) error {
	order := ""
	if a.Order != 0 {
		order = " [order]"
	}
	e := a.Entry
	if !e.At.Equal(w.now) {
		w.t.Errorf("an entry of %v is dated %v", w.now, e.At)
	}
	text := string(e.Kind) + order
	for _, part := range []string{strings.Join(e.Guests, ","), e.What, e.Why} {
		if part != "" {
			text += " | " + part
		}
	}
	if w.full {
		w.print("journal  FULL: %s", text)
		return errors.New("no space left on device")
	}
	w.print("journal  %s", text)
	w.journal = append(w.journal, e)
	return nil
}

// observed is an observation that ends at once.
func (w *world) observed() control.Event {
	if w.away != "" {
		return control.Observed{Err: errors.New(w.away)}
	}
	h := inventory.Host{Version: inventory.Version, Name: "host", Taken: w.now, Topology: w.topology, Kernel: w.kernel}
	h.Topology.Nodes = slices.Clone(h.Topology.Nodes)
	for i := range h.Topology.Nodes {
		h.Topology.Nodes[i].Free = w.free(&h.Topology.Nodes[i])
	}
	for _, name := range slices.Sorted(maps.Keys(w.guests)) {
		h.Guests = append(h.Guests, w.guests[name].Guest)
	}
	return control.Observed{Host: h, Took: w.took}
}

// readClosely is a reading that ends at once.
func (w *world) readClosely(r *control.ReadClosely) control.Event {
	var e control.CloselyRead
	for _, name := range r.Guests {
		if g := w.guests[name]; g != nil && w.away == "" {
			read := g.Guest
			read.Seen.Ranges = []inventory.MemoryRange{{Backing: "memfd", ByNode: maps.Clone(g.Seen.MemoryByNode)}}
			e.Guests = append(e.Guests, read)
		}
	}
	return e
}

func (w *world) free(n *topology.Node) topology.Bytes {
	free := n.Memory
	for _, g := range w.guests {
		free -= g.Seen.MemoryByNode[n.ID]
	}
	return free
}

// turn is one turn of the daemon's loop.
func (w *world) turn() {
	w.step(control.Tick{})
	s := inventory.Sample{Taken: w.now}
	if !w.last.IsZero() {
		s.Window = w.now.Sub(w.last)
	}
	w.last = w.now
	s.Moves.Balancing = topology.Bytes(float64(w.brings) * s.Window.Seconds() * float64(topology.MiB))
	used := map[topology.NodeID]float64{}
	for _, name := range slices.Sorted(maps.Keys(w.guests)) {
		s.Guests = append(s.Guests, w.sample(w.guests[name], s.Window, used))
	}
	for i := range w.topology.Nodes {
		n := &w.topology.Nodes[i]
		load := inventory.NodeLoad{Node: n.ID, CPU: min(used[n.ID], float64(n.CPUs.Len()))}
		s.Nodes = append(s.Nodes,
			inventory.NodeSample{NodeLoad: load, CPUs: n.CPUs.Len(), Memory: n.Memory, Free: w.free(n)})
	}
	w.step(control.Sampled{Sample: s})
}

func (w *world) sample(g *vm, window time.Duration, used map[topology.NodeID]float64) inventory.GuestSample {
	s := inventory.GuestSample{
		Name: g.Name, PID: g.PID, Load: inventory.GuestLoad{Window: window, CPU: g.cpu, Wait: g.wait},
		MemoryByNode: maps.Clone(g.Seen.MemoryByNode), CPUByNode: map[topology.NodeID]float64{},
	}
	if g.unmeasured {
		s.Load = inventory.GuestLoad{}
	}
	if g.near || g.far {
		s.Load.Remote = &inventory.Remote{Source: inventory.AccessCounter}
	}
	if g.far {
		s.Load.Remote.Share = 1
	}
	for _, t := range g.Seen.Threads {
		on := w.topology.NodesOf(t.Affinity)
		for n := range on.All() {
			share := g.cpu / float64(len(g.Seen.Threads)*on.Len())
			s.CPUByNode[n] += share
			used[n] += share
		}
	}
	return s
}

// add adds an unmanaged guest: memory on one node, vCPUs on another.
func (w *world) add(name string, vcpus int, memory topology.Bytes, on, runs topology.NodeID) *vm {
	g := &vm{Guest: inventory.Guest{
		Name: name, Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU), State: "running",
		PID:    1000 + len(w.guests),
		Config: inventory.Config{VCPUs: vcpus, Memory: memory, Source: "memfd"},
	}}
	for i := range vcpus {
		id := guest.VCPUID(i)
		g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id})
	}
	w.guests[name] = g
	w.lay(g, memory, on)
	w.runOn(g, runs)
	return g
}

func (w *world) lay(g *vm, memory topology.Bytes, on topology.NodeID) {
	g.Seen.MemoryByNode = topology.MemoryByNode{on: memory}
}

func (w *world) runOn(g *vm, node topology.NodeID) {
	g.Seen.Threads = slices.Clone(g.Seen.Threads) // the controller may hold the old ones
	for i := range g.Seen.Threads {
		g.Seen.Threads[i].Affinity = w.topology.CPUsOf(topology.SetOf(node))
	}
}

// place makes a guest managed, with a placement on a node.
func (w *world) place(g *vm, node topology.NodeID) {
	s := adopt.Spec(g.Guest)
	nodes := topology.SetOf(node)
	p := guest.Placement{
		Guest: g.Name, CPUMode: guest.CPURange, MemoryMode: s.Binding.Mode, Movable: true, Nodes: nodes,
		Reservations: []guest.Reservation{{Node: node, Memory: s.Memory, VCPUs: s.VCPUs}},
		Cells:        []guest.Cell{{Memory: s.Memory, Nodes: nodes, VCPUs: topology.Range(0, guest.VCPUID(s.VCPUs-1))}},
	}
	for i := range s.VCPUs {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(i), CPUs: w.topology.CPUsOf(nodes)})
	}
	g.Managed, g.Spec, g.Placement = true, &s, &p
}

// dedicate gives each vCPU of a placed guest one of some CPUs for itself.
func (w *world) dedicate(g *vm, own topology.CPUSet) {
	g.Placement.CPUMode, g.Spec.CPU.Binding = guest.CPUExclusive, guest.CPUExclusive
	g.Placement.Reservations[0].Exclusive = own
	for i, cpu := range own.IDs() {
		g.Placement.VCPUs[i].CPUs = topology.SetOf(cpu)
	}
	w.settle(g)
}

// moved applies a move to its guests: vCPUs and, if the move copies it, memory.
func (w *world) moved(m plan.Move) {
	for _, gm := range m.Guests {
		g := w.guests[gm.Guest]
		s := adopt.Spec(g.Guest)
		p := gm.Placement
		g.Managed, g.Adopted, g.Spec, g.Placement = true, !g.Ours(), &s, &p
		w.settle(g)
	}
}

// settle brings a guest to its placement.
func (w *world) settle(g *vm) {
	g.Seen.Threads = slices.Clone(g.Seen.Threads)
	for i, v := range g.Placement.VCPUs {
		g.Seen.Threads[i].Affinity, g.Seen.Threads[i].Mems = v.CPUs, g.Placement.Nodes
	}
	g.Seen.MemoryByNode = topology.MemoryByNode{}
	for _, r := range g.Placement.Reservations {
		g.Seen.MemoryByNode[r.Node] += r.Memory
	}
	g.cpu, g.wait = g.cpu+g.wait, 0
}
