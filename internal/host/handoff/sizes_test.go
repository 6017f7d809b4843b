package handoff_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/api/guest"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// wide is a placement of a guest whose number of vCPUs follows its demand, with a cell on each of some nodes.
func wide(least int, vcpus ...int) *words.Placement {
	p := &words.Placement{CPUMode: words.CPURange, Scale: &words.Scale{Min: least, Weight: 100}}
	for node, n := range vcpus {
		c := words.Cell{ID: words.CellID(node), Nodes: topology.SetOf(topology.NodeID(node))}
		for range n {
			c.VCPUs = c.VCPUs.With(words.VCPUID(len(p.VCPUs)))
			p.VCPUs = append(p.VCPUs, words.VCPU{ID: words.VCPUID(len(p.VCPUs))})
		}
		p.Cells = append(p.Cells, c)
	}
	return p
}

// wideWorld is a host with such guests and their agents, and a channel that may lose messages.
type wideWorld struct {
	*testing.T

	sizes  handoff.Sizes
	now    time.Time
	guests map[string]*wideGuest
	room   map[topology.NodeID]int
	lossy  *rand.Rand // nil: nothing is lost
}

type wideGuest struct {
	all, used  guest.VCPUs
	boot       int
	seq, epoch uint64
	threads    int
	least      int
}

func newWideWorld(t *testing.T, room map[topology.NodeID]int, guests map[string]*words.Placement) *wideWorld {
	t.Helper()
	w := &wideWorld{T: t, now: time.Unix(1_800_000_000, 0), guests: map[string]*wideGuest{}, room: room}
	w.sizes = handoff.Sizes{Send: w.send}
	for name, p := range guests {
		g := &wideGuest{least: p.Scale.Min}
		for v := range p.VCPUs {
			g.all.Add(v)
		}
		g.used = g.all
		w.guests[name] = g
		w.sizes.Guest(name, p, nil)
	}
	return w
}

func (w *wideWorld) send(name string, message []byte) {
	g := w.guests[name]
	r, err := guest.DecodeGrant(bytes.TrimSuffix(message, []byte("\n")))
	if err != nil {
		w.Fatal(err)
	}
	if !r.VCPUs.Has(0) || r.VCPUs.Len() < g.least || r.VCPUs.Without(g.all).Len() > 0 {
		w.Fatalf("%s is granted vCPUs %v", name, r.VCPUs)
	}
	if r.Epoch >= g.epoch && (w.lossy == nil || w.lossy.IntN(3) > 0) {
		g.epoch, g.used = r.Epoch, r.VCPUs
	}
}

// pass lets time pass, in steps of 50 ms.
func (w *wideWorld) pass(d time.Duration) {
	w.Helper()
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(50 * time.Millisecond) {
		for name, g := range w.guests {
			if w.lossy != nil && w.lossy.IntN(3) == 0 {
				continue
			}
			g.seq++
			busy := min(g.threads, g.used.Len())
			line, err := guest.Encode(&guest.Report{V: guest.Version, Seq: g.seq, Boot: fmt.Sprintf("%08x", g.boot),
				Epoch: g.epoch, Present: g.all, Used: g.used, Means: guest.Partition, Running: int64(1000 * busy),
				Waiting: int64(1000 * (g.threads - busy))})
			if err != nil {
				w.Fatal(err)
			}
			if err := w.sizes.Report(name, bytes.TrimSuffix(line, []byte("\n")), w.now); err != nil {
				w.Fatal(err)
			}
		}
		if _, err := w.sizes.Step(w.room, w.now); err != nil {
			w.Fatal(err)
		}
	}
}

// The number of vCPUs follows the demand, by node: a guest gives up those whose CPUs another one needs, and gets them
// back when it needs them itself.
func TestVCPUsInUseFollowTheDemand(t *testing.T) {
	w := newWideWorld(t, map[topology.NodeID]int{0: 4, 1: 4},
		map[string]*words.Placement{"a": wide(1, 4, 4), "b": wide(2, 4)})
	a, b := w.guests["a"], w.guests["b"]
	a.threads = 8
	w.pass(time.Second)
	if a.used != guest.Of(0, 1, 4, 5, 6, 7) || b.used.Len() != 2 {
		t.Errorf("a uses %v, b %v; b wants its minimum of 2 on node 0", a.used, b.used)
	}
	b.threads = 4
	w.pass(time.Second)
	if a.used.Len() != 5 || b.used.Len() != 3 || a.used.And(guest.Of(4, 5, 6, 7)).Len() != 4 {
		t.Errorf("a uses %v, b %v; of node 0, b wants 4 of 4, and a, which has node 1 for itself, needs one for its vCPU 0",
			a.used, b.used)
	}
	a.threads = 2
	w.pass(time.Second)
	if b.used.Len() != 3 || a.used.Len() != 5 {
		t.Errorf("a uses %v, b %v; nobody needs what a gave up, except its anchor", a.used, b.used)
	}
	w.room[0] = 2 // others run there
	w.pass(time.Second)
	if b.used.Len() != 2 || !a.used.Has(0) {
		t.Errorf("a uses %v, b %v on a node with two CPUs for both", a.used, b.used)
	}
}

// A guest that boots gets its grant again; one whose agent is gone is left alone, and counts no more. Lost messages
// delay only.
func TestVCPUsInUseAfterFaults(t *testing.T) {
	for seed := range uint64(20) {
		w := newWideWorld(t, map[topology.NodeID]int{0: 4}, map[string]*words.Placement{"a": wide(1, 4), "b": wide(1, 4)})
		w.lossy = rand.New(rand.NewPCG(seed, 1))
		a, b := w.guests["a"], w.guests["b"]
		a.threads, b.threads = 4, 4
		w.pass(3 * time.Second)
		if a.used.Len() != 2 || b.used.Len() != 2 {
			t.Fatalf("seed %d: a uses %v, b %v", seed, a.used, b.used)
		}
		a.boot, a.seq, a.epoch, a.used = a.boot+1, 0, 0, a.all
		w.pass(3 * time.Second)
		if a.used.Len() != 2 {
			t.Fatalf("seed %d: after its boot a uses %v", seed, a.used)
		}
		w.sizes = handoff.Sizes{Send: w.send} // the daemon starts again
		w.sizes.Guest("a", wide(1, 4), nil)
		w.sizes.Guest("b", wide(1, 4), nil)
		a.threads = 1
		w.pass(3 * time.Second)
		if a.used.Len() > 2 || b.used.Len() != 3 {
			t.Fatalf("seed %d: after the daemon's start a uses %v, b %v", seed, a.used, b.used)
		}
		delete(w.guests, "a") // its agent is gone
		w.pass(5 * time.Second)
		if b.used.Len() != 4 {
			t.Fatalf("seed %d: b uses %v, and a's agent does not answer", seed, b.used)
		}
	}
}

// Whatever an agent sends, no other guest gets less than its minimum, and nothing fails but that message.
func TestHostileAgentsOfScaledGuests(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	w := newWideWorld(t, map[topology.NodeID]int{0: 3}, map[string]*words.Placement{"a": wide(1, 4), "b": wide(2, 4)})
	w.guests["b"].threads = 4
	liar := w.guests["a"]
	for range 2000 {
		g := guest.Report{V: guest.Version, Seq: r.Uint64N(1 << 53), Boot: fmt.Sprintf("%08x", r.Uint32N(3)),
			Epoch: r.Uint64N(1 << 53), Present: liar.all, Used: guest.Of(0, r.IntN(4), r.IntN(4)), Means: guest.Partition,
			Running: r.Int64N(4194304000), Waiting: r.Int64N(4194304000)}
		line, err := guest.Encode(&g)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.sizes.Report("a", bytes.TrimSuffix(line, []byte("\n")), w.now); err != nil {
			t.Fatal(err)
		}
		if err := w.sizes.Report("a", []byte("}{"), w.now); err == nil {
			t.Fatal("nonsense is accepted")
		}
		liar.seq = g.Seq
		if _, err := w.sizes.Step(w.room, w.now); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(10 * time.Millisecond)
	}
	w.pass(3 * time.Second)
	if b := w.guests["b"]; b.used.Len() < b.least {
		t.Errorf("b uses %v", b.used)
	}
}

// The sizer connects to a guest's port and sends it what it decides, by what a sample says that others use.
func TestSizerTalksWithTheAgent(t *testing.T) {
	topo, err := topology.Synthetic("nodes:1 cores:4")
	if err != nil {
		t.Fatal(err)
	}
	th := &threads{socket: filepath.Join(t.TempDir(), "port")}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", th.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	file := filepath.Join(t.TempDir(), "scale.json")
	z := &handoff.Sizer{Threads: th, Log: t.Logf, File: file,
		Shared: func(t *topology.Topology) topology.CPUSet { return t.CPUSet() }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- z.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	z.Sampled(inventory.Sample{Window: time.Second,
		Nodes:  []inventory.NodeSample{{NodeLoad: inventory.NodeLoad{CPU: 2.6}}},
		Guests: []inventory.GuestSample{{Name: "w", CPUByNode: map[topology.NodeID]float64{0: 0.6}}}})
	z.Follow([]inventory.Guest{{Name: "w", PID: 1, Placement: wide(1, 4)}, {Name: "plain", PID: 2}}, &topo)
	a := &agent{T: t}
	if a.conn, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.conn.Close() }()
	a.wants(guest.Of(0, 1, 2, 3), 4000, 2)
	a.isKnown(z, file)
}

// isKnown requires that the program and its record say which vCPUs VM w uses.
func (a *agent) isKnown(z *handoff.Sizer, file string) {
	a.Helper()
	want := inventory.Scaled{Used: topology.SetOf[words.VCPUID](0, 1, 2, 3), Min: 1, Weight: 100, Means: "partition"}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		known := z.States()["w"]
		record, err := handoff.ReadScaled(file)
		if err != nil {
			a.Fatal(err)
		}
		demand := known.Demand
		known.Demand = nil
		if demand != nil && *demand == 4 && cmp.Equal(known, want) && cmp.Equal(record["w"].Scaled, want) &&
			record["w"].PID == 1 && len(record) == 1 {
			return
		}
		if time.Now().After(end) {
			a.Fatalf("known is %+v, the record has %+v, want %+v", known, record, want)
		}
	}
}
