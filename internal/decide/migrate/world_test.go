package migrate

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

const gib = topology.GiB

type fataler interface{ Fatal(...any) }

// world is a fleet whose VMs have a constant demand. It is independent of the planner: loads follow
// from the demand for each node's CPUs.
type world struct {
	t      fataler
	policy policy.Policy
	hosts  []*inventory.Host // without VMs
	vms    []*vm
	now    time.Time
	past   []Migrated
	local  Request // its Local: what the last plan returned
}

type vm struct {
	spec      guest.Spec
	placement guest.Placement
	host      int
	demand    float64
	devices   []string
	paused    bool
}

func newWorld(t fataler, p policy.Policy, machines ...string) *world {
	w := &world{t: t, policy: p, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	for _, text := range machines {
		topo, err := topology.Synthetic(text)
		if err != nil {
			t.Fatal(err)
		}
		w.hosts = append(w.hosts,
			&inventory.Host{Version: inventory.Version, Name: hostName(len(w.hosts)), Topology: topo})
	}
	return w
}

func hostName(i int) string { return fmt.Sprintf("h%d", i) }

// run starts a VM on some nodes of a host; false: it does not fit there.
func (w *world) run(host int, spec guest.Spec, demand float64, nodes ...topology.NodeID) (*vm, bool) {
	limited := spec
	limited.Limits.Nodes = topology.SetOf(nodes...)
	r := place.Request{Host: w.inventory(host), Spec: limited, Policy: w.policy, WithoutAdvice: true}
	p, _, err := place.Place(r)
	if err != nil {
		return nil, false
	}
	v := &vm{spec: spec, placement: p, host: host, demand: demand}
	w.vms = append(w.vms, v)
	return v, true
}

// use returns the demand for a node's CPUs over its CPUs.
func (w *world) use(host int, node topology.NodeID) float64 {
	n, _ := w.hosts[host].Topology.Node(node)
	sum := 0.0
	for _, v := range w.vms {
		if v.host == host {
			for _, r := range v.placement.Reservations {
				if r.Node == node {
					sum += v.demand * float64(r.VCPUs) / float64(v.spec.VCPUs)
				}
			}
		}
	}
	return sum / float64(n.CPUs.Len())
}

// waits returns the share of a VM's demand that waits for CPUs.
func (w *world) waits(v *vm) float64 {
	wait := 0.0
	for _, r := range v.placement.Reservations {
		u := w.use(v.host, r.Node)
		wait += (1 - 1/math.Pow(1+math.Pow(u, 8), 0.125)) * float64(r.VCPUs) / float64(v.spec.VCPUs)
	}
	return wait
}

// lost returns the demand of all VMs that waits, in CPUs.
func (w *world) lost() (sum float64) {
	for _, v := range w.vms {
		sum += v.demand * w.waits(v)
	}
	return sum
}

func (w *world) inventory(host int) *inventory.Host {
	h := *w.hosts[host]
	h.Taken = w.now
	for _, v := range w.vms {
		if v.host != host {
			continue
		}
		wait := w.waits(v) * v.demand
		g := inventory.Guest{Name: v.spec.Name, State: "running", Managed: true, Spec: &v.spec, Placement: &v.placement,
			Can:    inventory.Capabilities{MoveMemory: true},
			Config: inventory.Config{VCPUs: v.spec.VCPUs, Memory: v.spec.Memory, Devices: v.devices}}
		if v.paused {
			g.State = "paused"
		}
		g.Seen.MemoryByNode = topology.MemoryByNode{}
		for _, r := range v.placement.Reservations {
			g.Seen.MemoryByNode[r.Node] = r.Memory
		}
		g.Seen.Load = &inventory.GuestLoad{Window: 30 * time.Second, CPU: v.demand - wait, Wait: wait}
		h.Guests = append(h.Guests, g)
	}
	slices.SortFunc(h.Guests, func(a, b inventory.Guest) int { return compareNames(a.Name, b.Name) })
	return &h
}

func compareNames(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func (w *world) fleet() *schedule.Fleet {
	var hosts []schedule.Host
	for i := range w.hosts {
		hosts = append(hosts, schedule.Host{Name: hostName(i), Inventory: w.inventory(i)})
	}
	f, err := schedule.New(hosts, w.policy, schedule.Weights{})
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

// request asks for a plan. All VMs have shared storage.
func (w *world) request() Request {
	r := Request{Fleet: w.fleet(), Now: w.now, Local: w.local.Local, History: w.past, VMs: map[string]VM{}}
	for _, v := range w.vms {
		r.VMs[v.spec.Name] = VM{SharedStorage: new(true)}
	}
	return r
}

// rebalance plans twice, so that degradation has lasted.
func (w *world) rebalance(limits Limits) Plan {
	var p Plan
	for range 2 {
		r := w.request()
		r.Limits = limits
		var err error
		if p, err = Rebalance(r); err != nil {
			w.t.Fatal(err)
		}
		w.local.Local = p.Local
		w.now = w.now.Add(5 * time.Minute)
	}
	w.now = w.now.Add(-5 * time.Minute)
	return p
}

// make makes a migration.
func (w *world) make(m Migration) {
	for _, v := range w.vms {
		if v.spec.Name == m.VM {
			if hostName(v.host) != m.From {
				w.t.Fatal(m.VM, " is not on ", m.From)
			}
			v.host = slices.IndexFunc(w.hosts, func(h *inventory.Host) bool { return h.Name == m.To })
			v.placement = m.Placement
		}
	}
	w.past = append(w.past, Migrated{VM: m.VM, From: m.From, To: m.To, At: w.now})
}

var (
	// whole is without overcommit: one vCPU for each CPU, all memory.
	whole = policy.Policy{Overcommit: 1, Count: policy.CountThreads, KeepFree: new(topology.Bytes)}
	// twice promises each CPU two times.
	twice = policy.Policy{Overcommit: 2, Count: policy.CountThreads, KeepFree: new(topology.Bytes)}
)

func oneNode(name string, vcpus, memory int) guest.Spec {
	s := guest.Spec{Name: name, VCPUs: vcpus, Memory: topology.Bytes(memory) * gib, Limits: guest.Limits{MaxNodes: 1}}
	s, err := s.Normalize()
	if err != nil {
		panic(err)
	}
	return s
}

// drawWorld draws hosts of two nodes and VMs of one node each.
func drawWorld(t *rapid.T, p policy.Policy, mostVMs int) *world {
	var machines []string
	for range rapid.IntRange(2, 3).Draw(t, "hosts") {
		machines = append(machines, rapid.SampledFrom([]string{"nodes:2 cores:4 memory:8G",
			"nodes:1 cores:4 memory:16G",
			"nodes:2 cores:8 memory:8G"}).Draw(t, "machine"))
	}
	w := newWorld(t, p, machines...)
	for i := range rapid.IntRange(1, mostVMs).Draw(t, "VMs") {
		host := rapid.IntRange(0, len(machines)-1).Draw(t, "host")
		node := rapid.IntRange(0, len(w.hosts[host].Topology.Nodes)-1).Draw(t, "node")
		vcpus := rapid.IntRange(1, 4).Draw(t, "vCPUs")
		w.run(host, oneNode(fmt.Sprintf("vm%d", i), vcpus, rapid.IntRange(1, 6).Draw(t, "memory")),
			float64(vcpus)*rapid.Float64Range(0, 1).Draw(t, "demand"), topology.NodeID(node))
	}
	return w
}

// drawCrowded draws a world whose first host has more demand than CPUs more often than not.
func drawCrowded(t *rapid.T) *world {
	machines := []string{"nodes:2 cores:4 memory:32G"}
	for range rapid.IntRange(1, 3).Draw(t, "others") {
		machines = append(machines, rapid.SampledFrom([]string{"nodes:2 cores:4 memory:16G",
			"nodes:1 cores:4 memory:16G",
			"nodes:2 cores:8 memory:8G"}).Draw(t, "machine"))
	}
	w := newWorld(t, twice, machines...)
	for i := range rapid.IntRange(6, 16).Draw(t, "VMs") {
		host, least := 0, 0.7
		if i >= 6 {
			host, least = rapid.IntRange(0, len(machines)-1).Draw(t, "host"), 0
		}
		vcpus := rapid.IntRange(1, 4).Draw(t, "vCPUs")
		w.run(host, oneNode(fmt.Sprintf("vm%d", i), vcpus, rapid.IntRange(1, 6).Draw(t, "memory")),
			float64(vcpus)*rapid.Float64Range(least, 1).Draw(t, "demand"),
			topology.NodeID(i%len(w.hosts[host].Topology.Nodes)))
	}
	return w
}

// crowded is a host with both nodes overloaded, and an idle host.
func crowded(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, twice, "nodes:2 cores:4 memory:16G", "nodes:2 cores:4 memory:16G")
	for i := range 6 {
		if _, ok := w.run(0, oneNode(fmt.Sprintf("vm%d", i), 2, 2), 2, topology.NodeID(i%2)); !ok {
			t.Fatal("does not fit")
		}
	}
	return w
}
