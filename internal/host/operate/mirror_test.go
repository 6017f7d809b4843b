package operate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Two guests mirror the same CPUs. Each starts on CPUs of its own, has no drift, and a
// bind leaves the vCPUs where hand-overs have pinned them since.
func TestCreate_Mirror(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	all := topology.MustParseSet[topology.CPUID]("1-7")
	w.Joined.Policy.Handoff = policy.Handoff{CPUs: all}
	var started topology.CPUSet
	for _, name := range []string{"first", "second"} {
		asked := spec(t, guest.Spec{Name: name, Memory: 512 * mib,
			CPU: guest.CPUSpec{Sharing: guest.SharingHandoff, MinVCPUs: 3}})
		made, err := w.Create(asked)
		if err != nil || len(made.Shortfalls()) > 0 {
			t.Fatalf("%v, falls short: %v", err, made.Shortfalls())
		}
		h := made.Placement.Handoff
		if len(made.Placement.VCPUs) != 7 || h.First.Len() != 3 || h.First.Intersects(started) {
			t.Errorf("%s has %d vCPUs and starts with CPUs %s; taken are %s", name, len(made.Placement.VCPUs), h.First, started)
		}
		started = started.Union(h.First)
		inv, err := w.Joined.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen, _ := inv.Guest(name)
		for _, thread := range seen.Seen.Threads {
			if thread.VCPU != nil && !thread.Affinity.SubsetOf(h.First) {
				t.Errorf("vCPU %d of %s starts on CPUs %s, not within %s", *thread.VCPU, name, thread.Affinity, h.First)
			}
		}
	}
	bound, err := w.Bind("first")
	if err != nil || len(bound.Outcomes) > 0 {
		t.Errorf("bind of a VM that is in place: %+v, %v", bound.Outcomes, err)
	}
}

// A mirrored VM is not started on CPUs that others have, and its claim ends with that.
func TestCreate_MirrorWaitsForItsCPUs(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	w.Joined.Policy.Handoff = policy.Handoff{CPUs: topology.MustParseSet[topology.CPUID]("1-7")}
	asked := spec(t, guest.Spec{Name: "m", Memory: 512 * mib, CPU: guest.CPUSpec{Sharing: guest.SharingHandoff}})
	refused := errors.New("CPU 1 serves VM other")
	claimed := false
	w.Joined.AwaitStart = func(_ context.Context, name string, first topology.CPUSet) error {
		claims, err := w.Joined.Ledger.Claims()
		if err != nil {
			t.Error(err)
		}
		for _, c := range claims {
			claimed = claimed || c.Name == name && c.Placement.Handoff.First.Equal(first)
		}
		return refused
	}
	if _, err := w.Create(asked); !errors.Is(err, refused) {
		t.Errorf("created: %v", err)
	}
	inv, err := w.Joined.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, runs := inv.Guest("m"); runs || !claimed || len(inv.Claims) > 0 {
		t.Errorf("it runs: %t; it was claimed before: %t; claims left: %v", runs, claimed, inv.Claims)
	}
}
