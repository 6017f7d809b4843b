package operate_test

import (
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/topology"
)

// A fleet gives the CPUs that a VM shared before it was stopped. Since then, some were dedicated to another VM.
func TestStartGuest_SharesOnlyCPUsThatAreNotDedicated(t *testing.T) {
	w := operatetest.New(t, "nodes:2 cores:4 memory:4G", operatetest.Folder(t))
	on := func(name string, vcpus int, binding guest.CPUMode) operate.Created {
		t.Helper()
		s := guest.Spec{Name: name, VCPUs: vcpus, Memory: 128 * topology.MiB}
		s.CPU.Binding, s.Limits.Nodes = binding, operatetest.Nodes("1")
		made, err := w.Create(operatetest.Spec(t, s))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	before := on("shared", 1, guest.CPURange).Placement
	if err := w.Joined.StopGuest(t.Context(), operate.StopRequest{Name: "shared"}); err != nil {
		t.Fatal(err)
	}
	own := on("own", 2, guest.CPUExclusive).Placement
	dedicated := own.Exclusive()
	if !before.VCPUs[0].CPUs.Intersects(dedicated) {
		t.Fatalf("CPUs %v and %v: this tests nothing", before.VCPUs[0].CPUs, dedicated)
	}
	given := before
	for _, r := range []operate.StartRequest{{Name: "shared", Placement: &given}, {Name: "shared"}} {
		if _, err := w.Joined.StartGuest(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		w.CheckInPlace(t, "shared")
		if p := w.MustGuest(t, "shared").Placement; p.VCPUs[0].CPUs.Intersects(dedicated) ||
			p.Emulator.Intersects(dedicated) || !p.Nodes.Equal(before.Nodes) {
			t.Errorf("got %v, emulator %v, nodes %v; dedicated are %v", p.VCPUs, p.Emulator, p.Nodes, dedicated)
		}
		if !given.VCPUs[0].CPUs.Intersects(dedicated) {
			t.Error("the caller's placement was changed")
		}
		if err := w.Joined.StopGuest(t.Context(), operate.StopRequest{Name: "shared"}); err != nil {
			t.Fatal(err)
		}
	}
}

// A VM shared what another VM left of its node. Since then, that one has gone, and a third one got other CPUs for
// itself: the VM shares what is free now.
func TestStartGuest_SharesCPUsThatWereGivenBack(t *testing.T) {
	for _, vcpus := range []int{1, 2} {
		w := operatetest.New(t, "nodes:2 cores:6 memory:4G", operatetest.Folder(t))
		on := func(name string, vcpus int, binding guest.CPUMode, cpus string) guest.Placement {
			t.Helper()
			s := guest.Spec{Name: name, VCPUs: vcpus, Memory: 128 * topology.MiB}
			s.CPU.Binding, s.Limits.CPUs = binding, topology.MustParseSet[topology.CPUID](cpus)
			made, err := w.Create(operatetest.Spec(t, s))
			if err != nil {
				t.Fatal(err)
			}
			return made.Placement
		}
		first := on("first", 4, guest.CPUExclusive, "6-9")
		before := on("shared", vcpus, guest.CPURange, "6-11")
		if err := w.Joined.StopGuest(t.Context(), operate.StopRequest{Name: "shared"}); err != nil {
			t.Fatal(err)
		}
		if err := w.Joined.Delete(t.Context(), operate.DeleteRequest{Name: "first", Force: true}); err != nil {
			t.Fatal(err)
		}
		second := on("second", 2, guest.CPUExclusive, "10-11")
		dedicated := second.Exclusive()
		if left := before.VCPUs[0].CPUs.Minus(dedicated); left.Len() >= vcpus {
			t.Fatalf("%v are left: this tests nothing", left)
		}
		if _, err := w.Joined.StartGuest(t.Context(), operate.StartRequest{Name: "shared", Placement: &before}); err != nil {
			t.Fatal(err)
		}
		w.CheckInPlace(t, "shared")
		if p := w.MustGuest(t, "shared").Placement; !p.VCPUs[0].CPUs.Equal(first.Exclusive()) ||
			!p.Emulator.Equal(first.Exclusive()) {
			t.Errorf("vCPU 0 runs on CPUs %v, the emulator on %v; free are %v", p.VCPUs[0].CPUs, p.Emulator,
				first.Exclusive())
		}
	}
}

// All CPUs that the emulator thread of a stopped VM shared were dedicated to other VMs since. The VM has CPUs of its
// own, on which the thread runs then.
func TestStartGuest_EmulatorWithoutSharedCPUs(t *testing.T) {
	w := operatetest.New(t, "nodes:2 cores:4 memory:4G", operatetest.Folder(t))
	own := func(name string) guest.Placement {
		t.Helper()
		s := guest.Spec{Name: name, VCPUs: 2, Memory: 128 * topology.MiB}
		s.CPU.Binding, s.CPU.IOThreads, s.Limits.Nodes = guest.CPUExclusive, 1, operatetest.Nodes("1")
		made, err := w.Create(operatetest.Spec(t, s))
		if err != nil {
			t.Fatal(err)
		}
		return made.Placement
	}
	before := own("first")
	if err := w.Joined.StopGuest(t.Context(), operate.StopRequest{Name: "first"}); err != nil {
		t.Fatal(err)
	}
	second := own("second")
	if other := second.Exclusive(); !before.Emulator.SubsetOf(other) {
		t.Fatalf("CPUs %v and %v: this tests nothing", before.Emulator, other)
	}
	if _, err := w.Joined.StartGuest(t.Context(), operate.StartRequest{Name: "first", Placement: &before}); err != nil {
		t.Fatal(err)
	}
	w.CheckInPlace(t, "first")
	if p := w.MustGuest(t, "first").Placement; !p.Emulator.Equal(before.Exclusive()) ||
		!p.IOThread.Equal(before.Exclusive()) {
		t.Errorf("emulator %v, I/O threads %v; the VM's own CPUs are %v", p.Emulator, p.IOThread, before.Exclusive())
	}
}
