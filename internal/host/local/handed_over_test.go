package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/handoff"
	"github.com/numavisor/numavisor/internal/guest"
	hands "github.com/numavisor/numavisor/internal/host/handoff"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// mirroredHost has a running mirrored VM m, one that does not run, and an ordinary one.
func mirroredHost() inventory.Host {
	p := &guest.Placement{Handoff: &guest.Handoff{Min: 2, Weight: 30}}
	return inventory.Host{Guests: []inventory.Guest{
		{Name: "m", PID: 1, Placement: p}, {Name: "off", Placement: p}, {Name: "o", PID: 2, Placement: &guest.Placement{}},
	}}
}

// An observation shows what the daemon records of running mirrored VMs.
func TestAnObservationShowsTheRecordOfGrants(t *testing.T) {
	h, err := Open(Options{Claims: t.TempDir(), Records: t.TempDir(), WithoutLibvirt: true})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	inv := mirroredHost()
	h.addHandedOver(&inv)
	if g := inv.Guests[0].Seen.HandedOver; g != nil || len(inv.Gaps) > 0 {
		t.Errorf("without a record: %+v, gaps %v", g, inv.Gaps)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(h.Ledger.Folder, "handoff.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"grants": [{"cpu": 4, "guest": "m"}, {"cpu": 5, "guest": "x"}, {"cpu": 6, "guest": "m", "leaving": true}],
		"guests": {"m": {"means": "flip", "silent": true, "taken": 3, "misbehaved": 1}}}`)
	h.addHandedOver(&inv)
	want := &inventory.HandedOver{CPUs: topology.SetOf[topology.CPUID](4, 6), Min: 2, Weight: 30, Means: "flip",
		Silent: true, Taken: 3, Misbehaved: 1}
	if diff := cmp.Diff(want, inv.Guests[0].Seen.HandedOver); diff != "" {
		t.Errorf("m (-want +got):\n%s", diff)
	}
	if inv.Guests[1].Seen.HandedOver != nil || inv.Guests[2].Seen.HandedOver != nil {
		t.Error("a VM that does not run, or hands nothing over, has a record")
	}
	write("{")
	inv = mirroredHost()
	if h.addHandedOver(&inv); len(inv.Gaps) != 1 || inv.Guests[0].Seen.HandedOver != nil {
		t.Errorf("a damaged record: gaps %v", inv.Gaps)
	}
	inv.Guests, inv.Gaps = inv.Guests[1:], nil
	if h.addHandedOver(&inv); len(inv.Gaps) != 0 {
		t.Errorf("without mirrored VMs nothing is missing: %v", inv.Gaps)
	}
}

// noThreads are those of VMs without an agent.
type noThreads struct{}

func (noThreads) ConfineVCPU(int, int, guest.VCPUID, topology.CPUSet) error { return nil }
func (noThreads) RunTimeOf(int, int) (time.Duration, error)                 { return 0, nil }
func (noThreads) ConnectAgent(int, string, uint32) (*os.File, error) {
	return nil, errors.New("no agent")
}

// crowded samples a VM m with four busy vCPUs on one CPU.
type crowded struct{}

func (crowded) Follow([]inventory.Guest, *topology.Topology) {}

func (crowded) Sample() inventory.Sample {
	return inventory.Sample{Guests: []inventory.GuestSample{{Name: "m", Load: inventory.GuestLoad{CPU: 1, Wait: 3}}}}
}

// The daemon's samples have what its hand-over knows, and no wait of vCPUs without a CPU.
func TestTheDaemonsSamplesKnowTheHandOver(t *testing.T) {
	topo, err := topology.Synthetic("nodes:1 cores:4")
	if err != nil {
		t.Fatal(err)
	}
	r := &hands.Runner{Rules: handoff.Rules{CPUs: topo.CPUSet()}, Threads: noThreads{}, Log: t.Logf,
		File: filepath.Join(t.TempDir(), "handoff.json")}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- r.Run(ctx) }()
	p := &guest.Placement{Handoff: &guest.Handoff{Min: 1, Weight: 5, First: topology.SetOf[topology.CPUID](0)}}
	g := inventory.Guest{Name: "m", PID: 1, State: "running", Placement: p}
	for v := range 4 {
		id := guest.VCPUID(v)
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: id, CPUs: topology.SetOf(topology.CPUID(v))})
		g.Seen.Threads = append(g.Seen.Threads, inventory.Thread{TID: 100 + v, VCPU: &id})
	}
	w := handedOver{crowded{}, r}
	w.Follow([]inventory.Guest{g}, &topo)
	deadline := time.Now().Add(time.Minute)
	for {
		s := w.Sample().Guests[0]
		if h := s.HandedOver; h != nil && h.CPUs.Len() == 1 && s.Load.Wait < 1e-9 && s.Load.Ungranted > 3-1e-9 {
			if h.Weight != 5 || h.Means != "" {
				t.Errorf("it is shown as %+v", h)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the sample is %+v", s)
		}
		runtime.Gosched()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
