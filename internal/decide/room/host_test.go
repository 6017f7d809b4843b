package room

import (
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	gib = topology.GiB
	mib = topology.MiB
)

// machine is an idle host made from one line.
func machine(t testing.TB, description string) *inventory.Host {
	t.Helper()
	topo, err := topology.Synthetic(description)
	if err != nil {
		t.Fatal(err)
	}
	return &inventory.Host{Version: inventory.Version, Name: "host", Topology: topo}
}

// vm is a guest of a test.
type vm struct {
	name   string
	vcpus  int
	memory topology.Bytes
	on     []topology.NodeID
	// touched is the part of its memory that is resident; 0: all of it.
	touched float64
	load    float64 // CPUs that it uses; 0: not measured
	spec    func(*guest.Spec)
	change  func(*inventory.Guest)
}

func on(n ...topology.NodeID) []topology.NodeID { return n }

// normal is the spec of a guest, with the defaults written out.
func (v vm) normal(t fataler) guest.Spec {
	t.Helper()
	s := guest.Spec{Name: v.name, VCPUs: v.vcpus, Memory: v.memory, Topology: guest.TopologySpec{Mode: guest.TopologyOff}}
	if v.spec != nil {
		v.spec(&s)
	}
	s, err := s.Normalize()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return s
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// add places a guest on given nodes; false: it does not fit there.
func add(t fataler, h *inventory.Host, p policy.Policy, v vm) bool {
	t.Helper()
	s := v.normal(t)
	placed, err := place.On(place.Request{Host: h, Spec: s, Policy: p}, v.on)
	if err != nil {
		return false
	}
	g := inventory.Guest{Name: v.name, Hypervisor: guest.LibvirtQEMU, Can: inventory.CapabilitiesOf(guest.LibvirtQEMU),
		State: "running", Managed: true, Spec: &s, Placement: &placed,
		Config: inventory.Config{VCPUs: v.vcpus, Memory: v.memory, PageSize: s.PageSize, Source: "memfd"}}
	for i := range placed.VCPUs {
		id := placed.VCPUs[i].ID
		g.Seen.Threads = append(g.Seen.Threads,
			inventory.Thread{Role: inventory.RoleVCPU, VCPU: &id, Affinity: placed.VCPUs[i].CPUs})
	}
	g.Seen.MemoryByNode = topology.MemoryByNode{}
	for _, r := range placed.Reservations {
		bytes := r.Memory
		if v.touched > 0 {
			bytes = topology.Bytes(v.touched*float64(r.Memory)) / (2 * mib) * (2 * mib)
		}
		g.Seen.MemoryByNode[r.Node] = bytes
		n, _ := h.Topology.Node(r.Node)
		if s.PageSize == 0 {
			n.Free -= min(n.Free, bytes)
			continue
		}
		for k := range n.HugePages {
			pool := &n.HugePages[k]
			if pool.Size == s.PageSize {
				pool.Free -= min(pool.Free, uint64(bytes/pool.Size))
			}
		}
	}
	if v.load > 0 {
		g.Seen.Load = &inventory.GuestLoad{Window: time.Minute, CPU: v.load}
		for i, r := range placed.Reservations {
			for len(h.Load) < len(h.Topology.Nodes) {
				h.Load = append(h.Load, inventory.NodeLoad{Node: h.Topology.Nodes[len(h.Load)].ID})
			}
			part := float64(r.VCPUs) / float64(s.VCPUs)
			if s.CPU.Binding == guest.CPUExclusive && i == 0 && len(placed.Reservations) == 1 {
				part = 1
			}
			for k := range h.Load {
				if h.Load[k].Node == r.Node {
					h.Load[k].CPU += part * v.load
				}
			}
		}
	}
	if v.change != nil {
		v.change(&g)
	}
	h.Guests = append(h.Guests, g)
	return true
}

func mustAdd(t testing.TB, h *inventory.Host, v vm) {
	t.Helper()
	if !add(t, h, policy.Policy{}, v) {
		t.Fatalf("%s does not fit on nodes %v", v.name, v.on)
	}
}

// oneNode limits a guest to one node.
func oneNode(s *guest.Spec) { s.Limits.MaxNodes = 1 }
