package xen

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// dom0 is the kernel of the control domain: no guest has a process there.
type dom0 struct {
	observe.Kernel
	driver *Driver
	topo   topology.Topology
}

func (k dom0) Topology() (topology.Topology, error)               { return k.topo, nil }
func (dom0) Settings() (k inventory.Kernel, gaps []inventory.Gap) { return k, gaps }

// joined makes a host to act on from a simulated Xen, as host/local joins the real drivers.
func joined(t *testing.T) (*operate.Host, *simulated) {
	t.Helper()
	topo := synthetic(t)
	for i := range topo.Nodes {
		topo.Nodes[i].Free = topo.Nodes[i].Memory
	}
	s := newSimulated(topo)
	d := New(s.run)
	d.listPrograms = s.runs
	folder := t.TempDir()
	self := claim.Process{PID: 77, StartTicks: 7}
	ledger := claim.Ledger{Folder: folder, Alive: func(p claim.Process) bool { return p == self }}
	return &operate.Host{
		Sources: observe.Sources{Kernel: dom0{driver: d, topo: topo}, Hypervisors: []observe.Hypervisor{d},
			Pools: d.Pools, ControlDomain: d.ControlDomain, Claims: ledger.Claims, Now: time.Now,
			HostName: func() (string, error) { return "xenhost", nil },
			Complete: func(inv *inventory.Host) { inv.NearMemoryOnly = true }},
		Control: d, Domains: d, CPUPools: d, Journal: record.Journal{Folder: t.TempDir()}, By: "test", Ledger: ledger, Self: self,
		Clock: time.Now,
	}, s
}

func request(t *testing.T, h *operate.Host, text string) operate.CreateRequest {
	t.Helper()
	c, err := ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	topo, err := h.Sources.Kernel.Topology()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := c.Spec(&topo)
	if err != nil {
		t.Fatal(err)
	}
	if spec, err = spec.Normalize(); err != nil {
		t.Fatal(err)
	}
	return operate.CreateRequest{Spec: spec, Transient: true, Render: func(i guest.Intent) (operate.Rendered, error) {
		return operate.Rendered{Definition: guest.Definition{Name: spec.Name, Text: c.Rewrite(&i.Placement), Intent: &i}}, nil
	}}
}

// Xen allocates memory only on nodes of a guest's CPUs. A guest of which a part is memory alone may run there, too.
func TestCreate_MayRunWhereItsMemoryIs(t *testing.T) {
	h, s := joined(t)
	used := func(nodes ...topology.Bytes) {
		k := h.Sources.Kernel.(dom0)
		for i := range nodes {
			k.topo.Nodes[i].Free = nodes[i]
		}
		h.Sources.Kernel = k
	}
	used(3*topology.GiB/4, 3*topology.GiB/4)
	made, err := h.Create(t.Context(), request(t, h, "name = 'web'\nvcpus = 1\nmemory = 1024\n"))
	if err != nil {
		t.Fatal(err)
	}
	both := topology.MustParseSet[topology.NodeID]("0-1")
	if p := made.Placement; !p.Nodes.Equal(both) || p.Visible {
		t.Fatalf("its memory is to be on nodes %s", p.Nodes)
	}
	if cpus := s.domain("web").hard[0]; !cpus.Equal(s.topology.CPUSet()) {
		t.Errorf("it may run on CPUs %s, so Xen allocates no memory elsewhere", cpus)
	}
}

// A guest is created on the node of its CPUs, is as intended, and is deleted with its intent.
func TestCreateAndDelete(t *testing.T) {
	h, s := joined(t)
	made, err := h.Create(t.Context(), request(t, h, "name = 'web'\nvcpus = 2\nmemory = 512\ncpus = 'nodes:1'\n"))
	if err != nil {
		t.Fatal(err)
	}
	if made.Placement.Nodes.String() != "1" || len(made.Shortfalls()) > 0 || made.Truth.LocalShare == nil ||
		*made.Truth.LocalShare != 1 {
		t.Errorf("placed on nodes %s, shortfalls %v, truth %+v; want node 1, as its configuration says", made.Placement.Nodes,
			made.Shortfalls(), made.Truth)
	}
	if made.Truth.WaitShare != nil {
		t.Error("Xen does not report waiting, and a share of it is shown")
	}
	if _, err := h.Create(t.Context(), request(t, h, "name = 'web'\n")); !errors.Is(err, operate.ErrExists) {
		t.Errorf("a second VM of the name: error %v, want ErrExists", err)
	}
	if err := h.Delete(t.Context(), operate.DeleteRequest{Name: "web"}); err != nil {
		t.Fatal(err)
	}
	if len(s.domains) != 1 || len(s.store) != 0 {
		t.Errorf("after the deletion %d domains and %d values in xenstore, want the control domain only", len(s.domains),
			len(s.store))
	}
}

// libxl puts memory on a node other than that of the CPUs: bind follows the memory. Other nodes are possible, and
// the memory that stays is a shortfall.
func TestBind_FollowsTheMemory(t *testing.T) {
	h, s := joined(t)
	s.domains[1] = &simDomain{name: "vm", uuid: "00000001-0000-4000-8000-000000000001", memory: 512, node: 1, pool: "Pool-0",
		hard: []topology.CPUSet{s.topology.Nodes[0].CPUs}, soft: make([]topology.CPUSet, 1)}
	b, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"})
	if err != nil || !b.Complete() {
		t.Fatalf("error %v, shortfalls %v", err, b.Shortfalls())
	}
	if got := s.domains[1]; got.hard[0].String() != "4-7" || got.soft[0].String() != "4-7" {
		t.Errorf("affinities are %s and %s, want 4-7, the CPUs of its memory's node", got.hard[0], got.soft[0])
	}
	b, err = h.Bind(t.Context(), operate.BindRequest{Name: "vm", Change: func(s guest.Spec) (guest.Spec, error) {
		s.Limits.Nodes = topology.SetOf[topology.NodeID](0)
		return s, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if b.Complete() || !strings.Contains(strings.Join(b.Shortfalls(), "\n"), "512 MiB") ||
		s.domains[1].hard[0].String() != "0-3" {
		t.Errorf("shortfalls %v, hard affinity %s; want the memory on node 1 reported", b.Shortfalls(), s.domains[1].hard[0])
	}
}

// An xl that does not answer hides the guests: nothing is placed, and nothing is changed.
func TestCreate_WithoutAnAnswerOfXL(t *testing.T) {
	h, s := joined(t)
	s.failing["xl list"] = ErrHangs
	_, err := h.Create(t.Context(), request(t, h, "name = 'web'\n"))
	var hidden *operate.HiddenError
	if !errors.As(err, &hidden) {
		t.Errorf("error is %v, want a HiddenError", err)
	}
	for _, c := range s.calls {
		if strings.HasPrefix(c, "xl create") {
			t.Errorf("%s was run", c)
		}
	}
}

// A VM that ends or restarts while it is bound is noticed: the new one is not pinned, and no success is reported. The
// effect on the former one is not undone on the new one.
func TestBind_OfAVMThatRestartsMeanwhile(t *testing.T) {
	for name, restarts := range map[string]bool{"restarts": true, "ends": false} {
		h, s := joined(t)
		s.add("vm", 1, "0-3", 2)
		var pinned, replaced bool
		s.before = func(line string) { // after the first pin and before the second one
			if !pinned || replaced {
				pinned = pinned || strings.HasPrefix(line, "xl vcpu-pin")
				return
			}
			replaced = true
			again := *s.domains[1]
			again.hard, again.soft = make([]topology.CPUSet, 2), make([]topology.CPUSet, 2)
			delete(s.domains, 1)
			if restarts {
				s.domains[s.next] = &again
				s.next++
			}
		}
		_, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"})
		if !errors.Is(err, apply.ErrGone) || !replaced {
			t.Errorf("%s: replaced %v, error %v; want ErrGone", name, replaced, err)
		}
		if restarts && s.domains[2].hard[1].String() != "" {
			t.Errorf("%s: the new VM is pinned to CPUs %s", name, s.domains[2].hard[1])
		}
	}
}

// An undo of a bind leaves a VM alone that was restarted since.
func TestUndo_OfAVMThatWasRestarted(t *testing.T) {
	h, s := joined(t)
	s.add("vm", 1, "0-3", 1)
	if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"}); err != nil {
		t.Fatal(err)
	}
	s.domains[s.next] = s.domains[1]
	delete(s.domains, 1)
	m := &move.Host{Host: *h}
	if _, err := m.Undo(t.Context(), move.UndoRequest{Force: true}); !errors.Is(err, move.ErrChanged) {
		t.Errorf("error %v, want ErrChanged", err)
	}
}

// An undo of a bind restores hard and soft affinities as they were, also where they differ from each other.
func TestUndo_RestoresBothAffinities(t *testing.T) {
	for name, c := range map[string]struct{ hard, soft, wantHard, wantSoft string }{
		"both":          {"0-7", "4-5", "0-7", "4-5"},
		"no preference": {"0-3", "", "0-3", "0-7"},
		"soft alone":    {"4-7", "6", "4-7", "6"}, // bind changes no hard affinity
	} {
		t.Run(name, func(t *testing.T) {
			h, s := joined(t)
			d := s.add("vm", 1, c.hard, 2)
			for v := range d.soft {
				d.soft[v] = topology.CPUSet{}
				if c.soft != "" {
					d.soft[v] = topology.MustParseSet[topology.CPUID](c.soft)
				}
			}
			if _, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"}); err != nil {
				t.Fatal(err)
			}
			m := &move.Host{Host: *h}
			if _, err := m.Undo(t.Context(), move.UndoRequest{}); err != nil {
				t.Fatal(err)
			}
			for v := range d.hard {
				if d.hard[v].String() != c.wantHard || d.soft[v].String() != c.wantSoft {
					t.Errorf("vCPU %d has the affinities %s / %s, want %s / %s", v, d.hard[v], d.soft[v], c.wantHard, c.wantSoft)
				}
			}
		})
	}
}

// A VM that reboots while it starts is verified once xl has made it again.
func TestCreate_WaitsForAVMThatReboots(t *testing.T) {
	h, s := joined(t)
	s.before = func(line string) {
		if line == "xl list -c -n" && len(s.domains) == 2 {
			s.reboots("web", 3)
		}
	}
	c, err := h.Create(t.Context(), request(t, h, "name = \"web\"\nmemory = 192\nvcpus = 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.programs) != 1 || len(c.Truth.VCPUsByNode) == 0 {
		t.Errorf("%d reboots, truth %+v: want one reboot and the vCPUs by node", len(s.programs), c.Truth)
	}
}

// show, bind and delete wait until xl has made a VM that reboots again.
func TestOperate_WaitsForAVMThatReboots(t *testing.T) {
	for name, do := range map[string]func(h *operate.Host) error{
		"show": func(h *operate.Host) error { _, _, err := h.Show(t.Context(), "vm"); return err },
		"bind": func(h *operate.Host) error {
			_, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"})
			return err
		},
		"delete": func(h *operate.Host) error {
			return h.Delete(t.Context(), operate.DeleteRequest{Name: "vm", Force: true})
		},
		"dry run of delete": func(h *operate.Host) error {
			_, err := h.WouldDelete(t.Context(), operate.DeleteRequest{Name: "vm", Force: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := joined(t)
			s.add("vm", 1, "0-7", 2)
			s.reboots("vm", 3)
			again := s.before
			s.before = func(line string) {
				again(line)
				s.monitorEndsAfter(line)
			}
			if err := do(h); err != nil {
				t.Error(err)
			}
		})
	}
}
