package xen

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/pools"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

func split(now plan.CPUPools, inv *inventory.Host) (plan.CPUPools, error) {
	return pools.Split(now, &inv.Topology)
}

func moveTo(vm, pool string) operate.PoolRequest {
	return operate.PoolRequest{What: "move " + vm, Change: func(now plan.CPUPools, _ *inventory.Host) (plan.CPUPools, error) {
		return pools.Move(now, vm, pool)
	}}
}

func (s *simulated) add(name string, node topology.NodeID, hard string, vcpus int) *simDomain {
	d := &simDomain{name: name, uuid: "00000001-0000-4000-8000-00000000000" + string(rune('0'+s.next)), memory: 512,
		node: node, pool: s.pools[0].Name}
	for range vcpus {
		d.hard = append(d.hard, topology.MustParseSet[topology.CPUID](hard))
		d.soft = append(d.soft, topology.CPUSet{})
	}
	s.domains[s.next] = d
	s.next++
	return d
}

func (s *simulated) layout() string {
	var all []string
	for _, p := range s.pools {
		names := []string{}
		for _, d := range s.in(p.Name) {
			names = append(names, d.name)
		}
		all = append(all, p.Name+" "+p.Scheduler+" "+p.CPUs.String()+" "+strings.Join(names, ","))
	}
	return strings.Join(all, "; ")
}

// The host is split by node, a VM moves to the pool of its memory's node and is bound there; undo takes each
// back.
func TestPools_SplitMoveBindUndo(t *testing.T) {
	h, s := joined(t)
	vm := s.add("vm", 1, "0-3", 2)
	if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"}); err != nil {
		t.Fatal(err)
	}
	before := s.layout()
	dry, err := h.ChangePools(t.Context(), operate.PoolRequest{Change: split, DryRun: true})
	if err != nil || len(dry.Steps) != 3 || s.layout() != before {
		t.Fatalf("dry run: %v, error %v, pools %s", dry.Steps, err, s.layout())
	}
	c, err := h.ChangePools(t.Context(), operate.PoolRequest{What: "split", Change: split})
	if err != nil || len(c.Rebind) != 1 {
		t.Fatalf("error %v, VMs to bind again %v", err, c.Rebind)
	}
	if want := "Pool-node0 credit2 0-3 Domain-0,vm; Pool-node1 credit2 4-7 "; s.layout() != want {
		t.Fatalf("pools are %q, want %q", s.layout(), want)
	}
	if _, err := h.ChangePools(t.Context(), moveTo("vm", "Pool-node1")); err != nil {
		t.Fatal(err)
	}
	b, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"})
	if err != nil || !b.Complete() || vm.hard[1].String() != "4-7" {
		t.Fatalf("bind in its new pool: error %v, shortfalls %v, hard affinity %s", err, b.Shortfalls(), vm.hard[1])
	}
	m := &move.Host{Host: *h}
	entries, err := h.Journal.Entries()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(entries) {
		if e.Kind != journal.EffectPools.Began() {
			continue
		}
		if _, err := m.Undo(t.Context(), move.UndoRequest{ID: e.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if s.layout() != before {
		t.Errorf("after the undo the pools are %q, want %q", s.layout(), before)
	}
}

// A VM bound to CPUs that its pool no longer has is bound to other CPUs of the pool; memory on a node without
// CPUs of the pool is reported.
func TestBind_AfterItsPoolChanged(t *testing.T) {
	h, s := joined(t)
	vm := s.add("vm", 1, "4-7", 2)
	if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"}); err != nil {
		t.Fatal(err)
	}
	s.pools[0].CPUs = topology.MustParseSet[topology.CPUID]("0-5")
	b, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"})
	if err != nil || !b.Complete() || vm.hard[0].String() != "4-5" {
		t.Errorf("with two CPUs left: error %v, shortfalls %v, hard affinity %s; want 4-5", err, b.Shortfalls(), vm.hard[0])
	}
	s.pools[0].CPUs = topology.MustParseSet[topology.CPUID]("0-3")
	b, err = h.Bind(t.Context(), operate.BindRequest{Name: "vm"})
	if err != nil || b.Complete() || vm.hard[0].String() != "0-3" {
		t.Errorf("without CPUs near its memory: error %v, complete %v, hard affinity %s; want 0-3 and a shortfall", err,
			b.Complete(), vm.hard[0])
	}
}

// In a pool whose scheduler ignores soft affinity, none is set.
func TestPin_SoftAffinityOnlyWhereItWorks(t *testing.T) {
	for scheduler, want := range map[string]string{"credit": "4-7", "credit2": "4-7", "null": "4-7", "rtds": "",
		"arinc653": ""} {
		h, s := joined(t)
		s.pools[0].Scheduler = scheduler
		vm := s.add("vm", 1, "", 1)
		if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"}); err != nil {
			t.Fatal(err)
		}
		if vm.hard[0].String() != "4-7" || vm.soft[0].String() != want {
			t.Errorf("%s: affinities %q and %q, want 4-7 and %q", scheduler, vm.hard[0], vm.soft[0], want)
		}
	}
}

// A step that fails leaves the pools as the journal says: in part. Undo restores them.
func TestPools_AStepFails(t *testing.T) {
	h, s := joined(t)
	before := s.layout()
	s.failing["xl cpupool-create"] = &FailedError{Command: "xl cpupool-create", Status: 1, Said: "no"}
	c, err := h.ChangePools(t.Context(), operate.PoolRequest{What: "split", Change: split})
	if !errors.Is(err, guest.ErrRefused) || c.Done != 2 || len(c.Steps) != 3 {
		t.Fatalf("error %v, %d steps done of %v", err, c.Done, c.Steps)
	}
	entries, err := h.Journal.Entries()
	if err != nil || entries[len(entries)-1].Kind != journal.EffectPools.Partial() {
		t.Fatalf("the journal ends with %+v, error %v", entries[len(entries)-1], err)
	}
	if _, err := (&move.Host{Host: *h}).Undo(t.Context(), move.UndoRequest{}); err != nil || s.layout() != before {
		t.Errorf("after the undo the pools are %q, error %v; want %q", s.layout(), err, before)
	}
}

// What cannot be done changes nothing; pools that were changed since are not undone without force.
func TestPools_Refused(t *testing.T) {
	h, s := joined(t)
	s.add("vm", 1, "", 1)
	if _, err := h.ChangePools(t.Context(), moveTo("vm", "nowhere")); !errors.Is(err, pools.ErrRefused) {
		t.Errorf("error %v, want ErrRefused", err)
	}
	if _, err := h.ChangePools(t.Context(), operate.PoolRequest{What: "split", Change: split}); err != nil {
		t.Fatal(err)
	}
	s.pools[0].CPUs = topology.MustParseSet[topology.CPUID]("0-2")
	m := &move.Host{Host: *h}
	if _, err := m.Undo(t.Context(), move.UndoRequest{}); !errors.Is(err, move.ErrChanged) {
		t.Errorf("undo after a change: error %v, want ErrChanged", err)
	}
	s.failing["xl list"] = ErrHangs
	count := len(s.calls)
	var hidden *operate.HiddenError
	if _, err := h.ChangePools(t.Context(), moveTo("vm", "Pool-node1")); !errors.As(err, &hidden) {
		t.Errorf("with a hanging xl: error %v, want a HiddenError", err)
	}
	for _, call := range s.calls[count:] {
		if strings.HasPrefix(call, "xl cpupool-") && !strings.HasPrefix(call, "xl cpupool-list") {
			t.Errorf("%s was run", call)
		}
	}
}
