package schedule

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// whole is a policy without overcommit: one vCPU for each CPU, all memory.
var whole = policy.Policy{Overcommit: 1, Count: policy.CountThreads, KeepFree: new(topology.Bytes)}

// demandedVM is a request of a trace: vCPUs and GiB in total, divided into cells.
type demandedVM struct {
	vcpus int
	gib   float64
	cells int
}

// freeNode is what is free on a node of a trace's host.
type freeNode struct {
	cpus int
	gib  float64
}

// trace is a fleet of hosts with two nodes and the requests that come.
type trace struct {
	hosts    [][2]freeNode
	requests []demandedVM
	leave    [][]int // VMs that leave before each request; nil: none leaves
}

// leaving returns the VMs that leave before a request.
func (tr trace) leaving(i int) []int {
	if i >= len(tr.leave) {
		return nil
	}
	return tr.leave[i]
}

// readTrace reads hosts.csv and requests-N.csv of the data set 'Dataset for
// topology-aware VM placement' (mdl1104, CC0).
func readTrace(tb testing.TB, folder string, n int) trace {
	tb.Helper()
	var tr trace
	for _, r := range readNumbers(tb, filepath.Join(folder, "hosts.csv"), 4) {
		tr.hosts = append(tr.hosts, [2]freeNode{{r[0], float64(r[1])}, {r[2], float64(r[3])}})
	}
	for _, r := range readNumbers(tb, filepath.Join(folder, fmt.Sprintf("requests-%d.csv", n)), 3) {
		tr.requests = append(tr.requests, demandedVM{r[0], float64(r[1]), r[2]})
	}
	return tr
}

func readNumbers(tb testing.TB, path string, columns int) (rows [][]int) {
	tb.Helper()
	file, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	lines, err := csv.NewReader(file).ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	for _, line := range lines[1:] {
		row := make([]int, columns)
		for i := range row {
			if row[i], err = strconv.Atoi(line[i]); err != nil {
				tb.Fatal(err)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// sample draws hosts from a trace, and its requests from a random one on.
func (tr trace) sample(hosts, requests int, seed uint64) trace {
	r := rand.New(rand.NewPCG(seed, 7))
	var out trace
	for _, i := range r.Perm(len(tr.hosts))[:hosts] {
		out.hosts = append(out.hosts, tr.hosts[i])
	}
	first := r.IntN(len(tr.requests))
	for i := range requests {
		out.requests = append(out.requests, tr.requests[(first+i)%len(tr.requests)])
	}
	return out
}

// fleet makes the trace's hosts. The CPUs by which the smaller node is short are
// housekeeping CPUs.
func (tr trace) fleet(tb testing.TB) *Fleet {
	tb.Helper()
	var hosts []Host
	for i, nodes := range tr.hosts {
		cores := max(nodes[0].cpus, nodes[1].cpus)
		text := fmt.Sprintf("nodes:2 cores:%d memory:%dM,%dM distances:10,20", cores,
			int(nodes[0].gib*1024), int(nodes[1].gib*1024))
		for n, node := range nodes {
			if short := cores - node.cpus; short > 0 {
				text += fmt.Sprintf(" housekeeping:%d-%d", n*cores, n*cores+short-1)
			}
		}
		hosts = append(hosts, Host{Name: fmt.Sprintf("h%04d", i), Inventory: machine(tb, text)})
	}
	f, err := New(hosts, whole, Weights{})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func machine(t interface{ Fatal(...any) }, description string) *inventory.Host {
	topo, err := topology.Synthetic(description)
	if err != nil {
		t.Fatal(err)
	}
	return &inventory.Host{Version: inventory.Version, Name: "host", Topology: topo}
}

func (v demandedVM) spec(name string) guest.Spec {
	s := guest.Spec{Name: name, VCPUs: v.vcpus, Memory: topology.Bytes(v.gib * float64(topology.GiB))}
	if v.cells > 1 {
		s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: v.cells}
	} else {
		s.Limits.MaxNodes = 1
	}
	return s
}

// result is the end of a replay. If no request was refused, first is their number.
type result struct {
	first, accepted int
	free            [][2]freeNode // at the first refusal, or after the last request
}

// before returns the trace without the requests from the n-th on.
func (tr trace) before(n int) trace {
	return trace{hosts: tr.hosts, requests: tr.requests[:n], leave: tr.leave}
}

// ours places the requests through a fleet.
func (tr trace) ours(tb testing.TB) result {
	tb.Helper()
	f := tr.fleet(tb)
	out := result{first: len(tr.requests)}
	on := map[int]*Decision{}
	for i, r := range tr.requests {
		for _, gone := range tr.leaving(i) {
			if d := on[gone]; d != nil {
				if err := f.Remove(d.Host, d.Spec.Name); err != nil {
					tb.Fatal(err)
				}
			}
		}
		d, err := f.Decide(Request{Spec: r.spec(fmt.Sprintf("vm%05d", i))})
		var none *NoHostError
		switch {
		case errors.As(err, &none):
			if out.first > i {
				out.first, out.free = i, f.free2()
			}
			if tr.leave != nil {
				return out
			}
			continue
		case err != nil:
			tb.Fatal(err)
		}
		if err := f.Add(d); err != nil {
			tb.Fatal(err)
		}
		on[i] = d
		out.accepted++
	}
	if out.free == nil {
		out.free = f.free2()
	}
	return out
}

// free2 returns what is free on hosts of two nodes.
func (f *Fleet) free2() (out [][2]freeNode) {
	for _, h := range f.hosts {
		var free [2]freeNode
		for n := range h.rooms {
			free[n] = freeNode{int(h.rooms[n].vcpus), float64(h.rooms[n].left) / float64(topology.GiB)}
		}
		out = append(out, free)
	}
	return out
}

// rule chooses between states of hosts after a placement: the smallest wins.
type packingRule struct {
	name  string
	score func(host int, before, after [2]freeNode) float64
}

var packingRules = []packingRule{
	{"first fit", func(host int, _, _ [2]freeNode) float64 { return float64(host) }},
	{"best fit", func(_ int, _, after [2]freeNode) float64 {
		return float64(after[0].cpus+after[1].cpus) + (after[0].gib+after[1].gib)/3
	}},
	// Nova's RAM weigher prefers the host with the most free memory; its NUMA filter
	// takes the first nodes that fit (nova/virt/hardware.py).
	{"Nova", func(_ int, before, _ [2]freeNode) float64 { return -(before[0].gib + before[1].gib) }},
	// libxl_get_numa_candidates prefers the node with the most free memory, of the host that
	// is asked; hosts are asked in turn.
	{"libxl", func(host int, before, after [2]freeNode) float64 {
		free := 0.0
		for n := range after {
			if after[n] != before[n] {
				free = max(free, before[n].gib)
			}
		}
		return float64(host)*1e6 - free
	}},
}

// by places the requests by a rule on plain figures.
func (tr trace) by(rule packingRule) result {
	hosts := append([][2]freeNode{}, tr.hosts...)
	out := result{first: len(tr.requests)}
	type taken struct {
		host int
		room [2]freeNode
	}
	on := map[int]taken{}
	for i, r := range tr.requests {
		for _, gone := range tr.leaving(i) {
			if t, placed := on[gone]; placed {
				for n := range t.room {
					hosts[t.host][n].cpus += t.room[n].cpus
					hosts[t.host][n].gib += t.room[n].gib
				}
			}
		}
		at, low := -1, 0.0
		var then [2]freeNode
		for h, before := range hosts {
			for _, after := range placements(before, r) {
				if score := rule.score(h, before, after); at < 0 || score < low {
					at, low, then = h, score, after
				}
			}
		}
		if at < 0 {
			if out.first > i {
				out.first, out.free = i, append([][2]freeNode{}, hosts...)
			}
			if tr.leave != nil {
				return out
			}
			continue
		}
		took := taken{host: at}
		for n := range then {
			took.room[n] = freeNode{hosts[at][n].cpus - then[n].cpus, hosts[at][n].gib - then[n].gib}
		}
		on[i] = took
		hosts[at] = then
		out.accepted++
	}
	if out.free == nil {
		out.free = hosts
	}
	return out
}

// wanted returns what the VMs that are there after the last request want, as shares of all vCPUs and memory.
func (tr trace) wanted() (cpus, memory float64) {
	var all freeNode
	for _, h := range tr.hosts {
		for _, n := range h {
			all = freeNode{all.cpus + n.cpus, all.gib + n.gib}
		}
	}
	for i, r := range tr.requests {
		for _, gone := range tr.leaving(i) {
			cpus, memory = cpus-float64(tr.requests[gone].vcpus), memory-tr.requests[gone].gib
		}
		cpus, memory = cpus+float64(r.vcpus), memory+r.gib
	}
	return cpus / float64(all.cpus), memory / all.gib
}

// stranded returns the free vCPUs and memory, and the parts of them on nodes where none of
// the shapes fits that need at least least vCPUs, as shares of all vCPUs and memory.
func (r result) stranded(tr trace, least int) (freeCPUs, freeMemory, cpus, memory float64) {
	var all freeNode
	for _, h := range tr.hosts {
		for _, n := range h {
			all = freeNode{all.cpus + n.cpus, all.gib + n.gib}
		}
	}
	for _, h := range r.free {
		for _, n := range h {
			useful := false
			for _, v := range tr.requests {
				if v.vcpus >= least && v.vcpus/v.cells <= n.cpus && v.gib/float64(v.cells) <= n.gib {
					useful = true
					break
				}
			}
			freeCPUs += float64(n.cpus)
			freeMemory += n.gib
			if !useful {
				cpus += float64(n.cpus)
				memory += n.gib
			}
		}
	}
	c := float64(all.cpus)
	return freeCPUs / c, freeMemory / all.gib, cpus / c, memory / all.gib
}

// placements returns the states of a host after each way to place a VM on it.
func placements(host [2]freeNode, v demandedVM) (out [][2]freeNode) {
	take := func(at ...int) {
		after := host
		for _, n := range at {
			after[n].cpus -= v.vcpus / len(at)
			after[n].gib -= v.gib / float64(len(at))
			if after[n].cpus < 0 || after[n].gib < 0 {
				return
			}
		}
		out = append(out, after)
	}
	if v.cells == 2 {
		take(0, 1)
	} else {
		take(0)
		take(1)
	}
	return out
}

// The table of docs/benchmarks.md: VMs placed before the first refusal.
// NUMAVISOR_TRACE names a folder with the data set that readTrace reads.
func BenchmarkPackingTrace(b *testing.B) {
	folder := os.Getenv("NUMAVISOR_TRACE")
	if folder == "" {
		b.Skip("NUMAVISOR_TRACE is not set: it names a folder with hosts.csv, requests-1.csv and requests-2.csv")
	}
	const rounds = 6
	for n := 1; n <= 2; n++ {
		all := readTrace(b, folder, n)
		for _, hosts := range []int{40, 200} {
			bounds := make([]int, rounds)
			for seed := range bounds {
				bounds[seed] = all.sample(hosts, 400+hosts*6, uint64(seed)).bound(b)
			}
			for _, rule := range append(packingRules, packingRule{name: "schedule"}) {
				b.Run(fmt.Sprintf("requests-%d/hosts=%d/%s", n, hosts, rule.name), func(b *testing.B) {
					var sum packed
					for range b.N {
						for seed := range rounds {
							tr := all.sample(hosts, 400+hosts*6, uint64(seed))
							r := tr.place(b, rule)
							sum.add(tr, r, bounds[seed])
							sum.pair(b, tr, r)
						}
					}
					sum.report(b)
				})
			}
		}
	}
}

// packed is the sum of some replays: VMs, and shares of all vCPUs and memory.
type packed struct {
	replays, first, accepted, bound int
	cpus, memory                    float64 // stranded
	ours                            struct{ cpus, memory float64 }
	wanted                          struct{ cpus, memory float64 } // by as many VMs as the bound
}

// add adds a replay, and the bound of its trace.
func (p *packed) add(tr trace, r result, bound int) {
	p.replays++
	p.first += r.first
	p.accepted += r.accepted
	p.bound += bound
	cpus, memory := tr.before(bound).wanted()
	p.wanted.cpus, p.wanted.memory = p.wanted.cpus+cpus, p.wanted.memory+memory
	_, _, cpus, memory = r.stranded(tr, strandedBelow)
	p.cpus, p.memory = p.cpus+cpus, p.memory+memory
}

// pair adds what schedule strands with the same VMs: those before the rule's first refusal.
func (p *packed) pair(tb testing.TB, tr trace, r result) {
	tb.Helper()
	_, _, cpus, memory := tr.before(r.first).ours(tb).stranded(tr, strandedBelow)
	p.ours.cpus, p.ours.memory = p.ours.cpus+cpus, p.ours.memory+memory
}

func (p *packed) report(b *testing.B) {
	b.Helper()
	n := float64(p.replays)
	b.ReportMetric(float64(p.first)/n, "VMs-before-refusal")
	b.ReportMetric(float64(p.bound)/n, "bound")
	b.ReportMetric(100*p.wanted.cpus/n, "%vCPUs-bound")
	b.ReportMetric(100*p.wanted.memory/n, "%memory-bound")
	b.ReportMetric(float64(p.accepted)/n, "VMs-accepted")
	b.ReportMetric(100*p.cpus/n, "%vCPUs-stranded")
	b.ReportMetric(100*p.memory/n, "%memory-stranded")
	if p.ours.cpus+p.ours.memory > 0 {
		b.ReportMetric(100*p.ours.cpus/n, "%vCPUs-schedule")
		b.ReportMetric(100*p.ours.memory/n, "%memory-schedule")
	}
}

func (tr trace) place(tb testing.TB, rule packingRule) result {
	tb.Helper()
	if rule.score == nil {
		return tr.ours(tb)
	}
	return tr.by(rule)
}

// drawTrace draws hosts of uneven free room, as hosts are that have run for some time, and
// requests of a few shapes that the scheduler does not know before.
func drawTrace(seed uint64, hosts, requests int) trace {
	r := rand.New(rand.NewPCG(seed, 11))
	var tr trace
	for range hosts {
		var h [2]freeNode
		for n := range h {
			h[n] = freeNode{cpus: 8 + 4*r.IntN(12), gib: float64(16 + 16*r.IntN(8))}
		}
		tr.hosts = append(tr.hosts, h)
	}
	shapes := []demandedVM{{2, 4, 1}, {2, 8, 1}, {4, 8, 1}, {4, 16, 1}, {8, 16, 1}, {8, 32, 1}, {16, 64, 1},
		{32, 64, 2}}
	r.Shuffle(len(shapes)-1, func(i, k int) { shapes[i], shapes[k] = shapes[k], shapes[i] })
	for range requests {
		tr.requests = append(tr.requests, shapes[int(float64(len(shapes))*r.Float64()*(0.3+0.7*r.Float64()))])
	}
	return tr
}

// On random fleets, no fewer VMs are placed before the first refusal than by each of the usual
// rules.
func TestNoRulePlacesMoreVMsBeforeTheFirstRefusal(t *testing.T) {
	const fleets = 12
	sums := map[string]int{}
	for seed := range uint64(fleets) {
		tr := drawTrace(seed, 40, 700)
		for _, rule := range append(packingRules, packingRule{name: "schedule"}) {
			sums[rule.name] += tr.place(t, rule).first
		}
	}
	t.Logf("VMs before the first refusal, mean of %d fleets:", fleets)
	for _, rule := range packingRules {
		t.Logf("  %-10s %d", rule.name, sums[rule.name]/fleets)
		if sums["schedule"] < sums[rule.name] {
			t.Errorf("%s places %d, schedule %d", rule.name, sums[rule.name]/fleets, sums["schedule"]/fleets)
		}
	}
	t.Logf("  %-10s %d", "schedule", sums["schedule"]/fleets)
}
