package handoff_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	words "github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// boundThreads are those of a VM without an agent. The kernel can refuse to bind one of them.
type boundThreads struct {
	threads

	lock   sync.Mutex
	cpus   map[words.VCPUID]topology.CPUSet
	refuse map[words.VCPUID]bool
}

func (b *boundThreads) ConfineVCPU(_, tid int, v words.VCPUID, cpus topology.CPUSet) error {
	b.lock.Lock()
	defer b.lock.Unlock()
	if tid != 100+int(v) || b.refuse[v] {
		return fmt.Errorf("thread %d refuses", tid)
	}
	b.cpus[v] = cpus
	return nil
}

func (b *boundThreads) now() map[words.VCPUID]string {
	b.lock.Lock()
	defer b.lock.Unlock()
	all := map[words.VCPUID]string{}
	for v, cpus := range b.cpus {
		all[v] = cpus.String()
	}
	return all
}

// observed is a VM of two vCPUs that may run on both nodes, as the kernel binds its threads.
func (b *boundThreads) observed(all topology.CPUSet) inventory.Guest {
	p := &words.Placement{CPUMode: words.CPURange, Scale: &words.Scale{Min: 1, Weight: 100}, Cells: []words.Cell{
		{VCPUs: topology.Range[words.VCPUID](0, 1), Nodes: topology.SetOf[topology.NodeID](0, 1)}}}
	g := inventory.Guest{Name: "w", PID: 1, State: "running", Placement: p}
	b.lock.Lock()
	defer b.lock.Unlock()
	for v := range words.VCPUID(2) {
		p.VCPUs = append(p.VCPUs, words.VCPU{ID: v, CPUs: all})
		g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{TID: 100 + int(v), VCPU: &v, Affinity: b.cpus[v]})
	}
	return g
}

// Two vCPUs run far from what they access. The sizer binds each to its node, although the VM has no agent, tries again
// where the kernel refuses, continues with the division of a program before it, and lets go of it as it ends.
func TestSizerDividesVCPUsByTheirAccesses(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:2")
	if err != nil {
		t.Fatal(err)
	}
	b := &boundThreads{cpus: map[words.VCPUID]topology.CPUSet{0: topo.CPUSet(), 1: topo.CPUSet()},
		refuse: map[words.VCPUID]bool{1: true}}
	accesses := []inventory.VCPUAccess{
		{VCPU: 0, On: 0, ByNode: map[topology.NodeID]float64{0: 1000, 1: 9000}},
		{VCPU: 1, On: 1, ByNode: map[topology.NodeID]float64{0: 9000, 1: 1000}},
	}
	far := inventory.Sample{Window: time.Second, Guests: []inventory.GuestSample{{Name: "w", VCPUAccesses: accesses}}}
	var informed []string
	start := func(t *testing.T) (z *handoff.Sizer, end func()) {
		t.Helper()
		z = &handoff.Sizer{Threads: b, Log: t.Logf, File: filepath.Join(t.TempDir(), "scale.json"),
			Inform: func(format string, args ...any) { informed = append(informed, fmt.Sprintf(format, args...)) },
			Shared: func(t *topology.Topology) topology.CPUSet { return t.CPUSet() }}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- z.Run(ctx) }()
		z.Follow([]inventory.Guest{b.observed(topo.CPUSet())}, &topo)
		return z, func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	await := func(z *handoff.Sizer, want map[words.VCPUID]string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !maps.Equal(b.now(), want); time.Sleep(10 * time.Millisecond) {
			if z.Sampled(far); time.Now().After(end) {
				t.Fatalf("bound to %v, want %v", b.now(), want)
			}
		}
	}
	z, end := start(t)
	await(z, map[words.VCPUID]string{0: "2-3", 1: "0-3"})
	b.lock.Lock()
	b.refuse = nil
	b.lock.Unlock()
	await(z, map[words.VCPUID]string{0: "2-3", 1: "0-1"})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s := z.States()["w"]
		if s.DividedText() == "1 on node 0, 0 on node 1" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the state is %+v", s)
		}
	}
	end()
	if got := b.now(); got[0] != "0-3" || got[1] != "0-3" {
		t.Errorf("after the end: %v", got)
	}
	if want := []string{"VM w: by what they access, vCPUs 1 on node 0, 0 on node 1"}; !slices.Equal(informed, want) {
		t.Errorf("it said %q", informed)
	}

	b.cpus = map[words.VCPUID]topology.CPUSet{0: topology.Range[topology.CPUID](2, 3), 1: topo.CPUSet()}
	z, end = start(t)
	for limit := time.Now().Add(10 * time.Second); z.States()["w"].Divided == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the division of the program before is not known")
		}
	}
	if got := b.now()[0]; got != "2-3" {
		t.Errorf("vCPU 0 runs on %s", got)
	}
	end()
	if got := b.now(); got[0] != "0-3" {
		t.Errorf("after the second end: %v", got)
	}
}
