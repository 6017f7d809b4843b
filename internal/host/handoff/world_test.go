package handoff_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
	decide "github.com/numavisor/numavisor/internal/decide/handoff"
	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	millisecond = time.Millisecond
	period      = 50 * millisecond
)

// vm is a guest with an agent. A hostile one says and does anything.
type vm struct {
	decide.Guest

	hostile, paused, deaf bool
	// unobserved says that the daemon does not observe it.
	unobserved bool
	slow       bool // it reports, and has not carried out the last grants yet
	keeps      bool // it takes note of grants, and uses all vCPUs that it has used
	boot       int
	seq, epoch uint64
	used       guest.VCPUs
	want       int // busy threads
	ran        map[words.VCPUID]time.Duration
	pins       map[words.VCPUID]topology.CPUSet
	inbox      [][]byte
	outbox     [][]byte
	below      time.Duration
}

func (v *vm) all() guest.VCPUs {
	var s guest.VCPUs
	for i := range v.Mirror {
		s.Add(i)
	}
	return s
}

// world is a host with guests, a clock, and a channel that loses, repeats and reorders.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	topo   topology.Topology
	now    time.Time
	next   time.Time // of the daemon's next step
	vms    []*vm
	hands  *handoff.Hands
	saved  handoff.Record
	faults bool
	kills  int
}

var errKilled = errors.New("killed")

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 12))
	shape := []string{"nodes:2 cores:4", "nodes:2 cores:2 threads:2", "nodes:4 cores:2"}[r.IntN(3)]
	topo, err := topology.Synthetic(shape)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, rand: r, topo: topo, now: time.Unix(1_800_000_000, 0), faults: true}
	cpus := topo.CPUSet().IDs()
	for i := range 2 + r.IntN(2) {
		anchor := 2 * i
		mirror := slices.Concat(cpus[anchor:anchor+1], cpus[:anchor], cpus[anchor+1:])
		v := &vm{
			Guest: decide.Guest{
				Name: fmt.Sprintf("vm%d", i), Weight: 1 + r.IntN(3), Min: 1 + r.IntN(2), Mirror: mirror,
			},
			hostile: i == 0 && r.IntN(2) == 0, ran: map[words.VCPUID]time.Duration{},
			pins: map[words.VCPUID]topology.CPUSet{},
		}
		v.used = v.all()
		for id := range v.Mirror {
			v.pins[words.VCPUID(id)] = topology.SetOf(mirror[0])
		}
		w.vms = append(w.vms, v)
	}
	w.start()
	return w
}

// start is a start of the daemon with what it saved before.
func (w *world) start() {
	w.hands = handoff.New(handoff.Options{
		Topology: &w.topo, Rules: decide.Rules{CPUs: w.topo.CPUSet()}, Kernel: w, Save: w.save, Send: w.send,
		Log: func(string, ...any) {},
	}, w.saved)
	for _, v := range w.vms {
		w.hands.Guest(v.Guest, topology.SetOf(v.Mirror[0]), v.paused)
	}
}

func (w *world) vm(name string) *vm {
	return w.vms[slices.IndexFunc(w.vms, func(v *vm) bool { return v.Name == name })]
}

// maybeDie kills the daemon at any of its effects.
func (w *world) maybeDie() {
	if w.faults && w.rand.IntN(400) == 0 {
		panic(errKilled)
	}
}

func (w *world) save(r handoff.Record) error {
	w.maybeDie()
	if w.faults && w.rand.IntN(200) == 0 {
		return errors.New("no space")
	}
	w.saved = handoff.Record{Grants: slices.Clone(r.Grants), Epochs: map[string]decide.Epoch{}}
	for name, e := range r.Epochs {
		w.saved.Epochs[name] = e
	}
	w.maybeDie()
	return nil
}

func (w *world) send(name string, message []byte) {
	w.maybeDie()
	v := w.vm(name)
	v.inbox = append(v.inbox, message)
}

func (w *world) Confine(name string, id words.VCPUID, cpus topology.CPUSet) error {
	w.maybeDie()
	v := w.vm(name)
	v.pins[id] = cpus
	w.check()
	w.maybeDie()
	return nil
}

func (w *world) RunTime(name string, id words.VCPUID) (time.Duration, error) {
	return w.vm(name).ran[id], nil
}

// check: no CPU is open to vCPUs of two guests.
func (w *world) check() {
	w.t.Helper()
	owners := map[topology.CPUID]string{}
	for _, v := range w.vms {
		for id, cpus := range v.pins {
			for cpu := range cpus.All() {
				if owner := owners[cpu]; owner != "" && owner != v.Name {
					w.t.Fatalf("CPU %d is open to %s and to vCPU %d of %s", cpu, owner, id, v.Name)
				}
				owners[cpu] = v.Name
			}
		}
	}
}

// advance lets a millisecond pass.
func (w *world) advance() {
	w.now = w.now.Add(millisecond)
	for _, v := range w.vms {
		w.channel(v)
		w.runGuest(v)
	}
	if !w.now.Before(w.next) {
		w.step()
	}
	for _, v := range w.vms {
		held := 0
		for _, g := range w.hands.Record().Grants {
			if g.Guest == v.Name {
				held++
			}
		}
		if v.below += millisecond; held >= v.Min {
			v.below = 0
		}
		if v.below > 2*period {
			w.t.Fatalf("%v: %s has %d CPUs, less than its minimum %d, for %v", w.now, v.Name, held, v.Min, v.below)
		}
	}
}

// step is one of the daemon, which may be killed in it.
func (w *world) step() {
	defer func() {
		if r := recover(); r != nil {
			if r != errKilled {
				panic(r)
			}
			w.kills++
			w.start()
			w.next = w.now
		}
	}()
	for _, v := range w.vms {
		if !v.unobserved {
			w.hands.Guest(v.Guest, topology.SetOf(v.Mirror[0]), v.paused)
		}
	}
	w.next, _ = w.hands.Step(w.now) // the error is that of a save that failed
}

// channel delivers messages, or not, or twice, or in another order.
func (w *world) channel(v *vm) {
	deliver := func(queue [][]byte, each func([]byte)) {
		if w.faults && w.rand.IntN(4) == 0 {
			w.rand.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
		}
		for _, m := range queue {
			copies := 1
			if w.faults {
				copies = []int{0, 1, 1, 1, 2}[w.rand.IntN(5)]
			}
			for range copies {
				each(m)
			}
		}
	}
	in, out := v.inbox, v.outbox
	v.inbox, v.outbox = nil, nil
	deliver(in, func(m []byte) { w.grant(v, m) })
	deliver(out, func(m []byte) {
		w.next = w.now
		err := w.hands.Report(v.Name, bytes.TrimSuffix(m, []byte("\n")), w.now)
		if err != nil && !v.hostile {
			w.t.Fatal(err)
		}
	})
}

// grant is the agent's part.
func (w *world) grant(v *vm, message []byte) {
	g, err := guest.DecodeGrant(bytes.TrimSuffix(message, []byte("\n")))
	if err != nil {
		w.t.Fatal(err)
	}
	if g.Epoch < v.epoch || v.paused || v.deaf || v.slow {
		return
	}
	v.epoch = g.Epoch
	if !v.hostile && !v.keeps {
		v.used = v.all().And(g.VCPUs)
	}
	w.report(v)
}

func (w *world) report(v *vm) {
	v.seq++
	busy := int64(1000 * min(v.want, v.used.Len()))
	r := guest.Report{
		V: guest.Version, Seq: v.seq, Boot: fmt.Sprintf("%08x", v.boot), Epoch: v.epoch, Present: v.all(), Used: v.used,
		Means: guest.Partition, Running: busy, Waiting: int64(1000*v.want) - busy,
	}
	if v.hostile {
		switch w.rand.IntN(6) {
		case 0:
			r.Epoch = []uint64{guest.MaxEpoch, guest.MaxEpoch - 1, min(guest.MaxEpoch, v.epoch+1000)}[w.rand.IntN(3)]
		case 1:
			r.Used = guest.Of(0)
		case 2:
			r.Running, r.Seq = 4194304000, guest.MaxEpoch
		case 3:
			v.outbox = append(v.outbox, []byte("}{\x00"))
		case 4:
			r.Boot = fmt.Sprintf("%08x", w.rand.Uint32())
		}
	}
	line, err := guest.Encode(&r)
	if err != nil {
		w.t.Fatal(err)
	}
	v.outbox = append(v.outbox, line)
}

// runGuest lets the guest's vCPUs run and its demand change.
func (w *world) runGuest(v *vm) {
	if w.faults {
		switch w.rand.IntN(3000) {
		case 0: // it boots
			v.boot, v.seq, v.epoch, v.used = v.boot+1, 0, 0, v.all()
		case 1:
			v.paused = !v.paused
		case 2: // the agent ends, and starts
			v.deaf, v.seq = !v.deaf, 0
		}
	}
	if w.faults && w.rand.IntN(200) == 0 {
		v.want = w.rand.IntN(len(v.Mirror) + 3)
		w.report(v)
	}
	if v.paused {
		return
	}
	for id := range v.Mirror {
		if v.hostile || v.used.Has(id) && id < v.want {
			v.ran[words.VCPUID(id)] += millisecond
		}
	}
	if w.now.UnixMilli()%250 == 0 && !v.deaf {
		w.report(v)
	}
}
