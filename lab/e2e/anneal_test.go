package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/cputime"
)

// annealShape is a host as in the experiment that the test repeats (a paper on scheduling vCPUs by the host's NUMA
// topology, University of Tokyo): two nodes of six CPUs, and one more in each for the host itself. Everything takes a
// thousand times as long as on hardware (sharedShape says why). A node's memory serves 100 misses in a millisecond: six
// threads that wait for each miss take 70 of them, and three that read in order take all that are left. Then a miss
// takes one and a half times as long, which is what loaded memory of servers takes.
const annealShape = `name: anneal
nodes: [{cpus: 7, memory: 2G, misses_per_ms: 100}, {cpus: 7, memory: 2G, misses_per_ms: 100}]
distances: [[10, 16], [16, 10]]
latency_ns: [[85, 140], [140, 85]]
delay_local: true
delay_scale: 1000
marked: true
prefetch: true
`

const (
	annealPolicy = "handoff:\n  cpus: 1-6,8-13\n"
	annealHost   = "0,7"
	// annealSwaps are those of one thread: some 10 s of delays.
	annealSwaps   = 60_000
	annealThreads = 6
)

// annealed is how long the program took, in ms, by the way in which its VM had CPUs, and by the threads that loaded the
// memory of node 1.
type annealed map[string]map[int][]float64

// A program like PARSEC's canneal runs with six threads in a mirrored VM: on six vCPUs of node 0, on three of each
// node, and on those that it is given when its load rises. Another VM loads the memory of node 1. 'make bench-anneal'
// prints the figures.
func TestLabAnneal(t *testing.T) {
	repeats, err := strconv.Atoi(os.Getenv("NUMAVISOR_ANNEAL_REPEATS"))
	if err != nil {
		t.Skip("a measurement: 'make bench-anneal' runs it")
	}
	l := bootAnneal(t)
	clock := cputime.Start()
	ways, loads, all := []string{"3 + 3", "6 of node 0", "hand-over"}, []int{0, 1, 3}, annealed{}
	for _, way := range ways {
		all[way] = map[int][]float64{}
		l.divideForAnneal(t, way)
		for i := range repeats {
			for j := range loads {
				load := loads[(i+j)%len(loads)]
				took := l.anneal(t, load)
				t.Logf("%s, %d threads of the other VM: %.0f ms", way, load, took)
				all[way][load] = append(all[way][load], took)
			}
		}
	}
	t.Logf("other programs used %.0f %% of the machine\n%s", 100*clock.Others(), all.table(ways, loads))
}

func bootAnneal(t *testing.T) *labHost {
	t.Helper()
	shape := filepath.Join(t.TempDir(), "anneal.yaml")
	if err := os.WriteFile(shape, []byte(annealShape), 0o600); err != nil {
		t.Fatal(err)
	}
	l := bootHandoff(t, shape, annealPolicy, annealHost)
	for node, name := range []string{"anneals", "loads"} {
		l.must(t, "create", "--policy", "/run/policy.yaml", "--name", name, "--sharing", "handoff", "--memory", "256M",
			"--home", strconv.Itoa(node), "--min-vcpus", "3", "--kernel", lab.GuestKernel, "--initrd", lab.MirrorInitrd,
			// The kernel in the VM moves no memory meanwhile.
			"--append", lab.GuestCommandLine+" numa_balancing=disable")
	}
	l.awaitGuests(t, "anneals", "loads")
	counter, err := l.Scope()
	if err != nil {
		t.Fatal(err)
	}
	if err := counter.Set(t.Context(), labcounter.Felt); err != nil {
		t.Fatal(err)
	}
	return l
}

// divideForAnneal gives the VMs their CPUs: by hand, the VM that loads memory has three of node 1 that the other one
// does not have; or by hand-over.
func (l *labHost) divideForAnneal(t *testing.T, way string) {
	t.Helper()
	names := []string{"anneals", "loads"}
	if way == "hand-over" {
		l.startHandOver(t, names, annealHost)
		return
	}
	l.endHandOver(t, names)
	parts := map[string]map[topology.NodeID]int{"loads": {1: 3}, "anneals": {0: 6}}
	if way == "3 + 3" {
		parts["anneals"] = map[topology.NodeID]int{0: 3, 1: 3}
	}
	taken := map[topology.CPUID]bool{}
	for _, name := range names {
		var parked, script []string
		for v, cpu := range mirrorOf(t, l, name) {
			script = append(script, fmt.Sprintf("virsh -q vcpupin %s %d %d --live", name, v, cpu))
			if node := topology.NodeID(cpu / 7); parts[name][node] > 0 && !taken[cpu] {
				parts[name][node]--
				taken[cpu] = true
				continue
			}
			parked = append(parked, strconv.Itoa(v))
		}
		l.sh(t, strings.Join(script, " && "))
		l.types(t, name, "park "+strings.Join(parked, ","))
	}
}

// anneal runs the program once, while this number of threads of the other VM loads their node's memory, and returns
// how long it took, in ms.
func (l *labHost) anneal(t *testing.T, load int) float64 {
	t.Helper()
	dones, before := len(l.said(t, "loads", "DONE")), len(l.said(t, "anneals", "ANNEAL"))
	if load > 0 {
		l.types(t, "loads", fmt.Sprintf("run %d 3600 0 %d", sharedLines, load))
		runs := len(l.said(t, "loads", "RUN"))
		l.await(t, "the load runs", func() bool { return len(l.said(t, "loads", "RUN")) > runs+1 })
	}
	l.types(t, "anneals", fmt.Sprintf("anneal %d %d", annealSwaps, annealThreads))
	l.await(t, "the program ends", func() bool { return len(l.said(t, "anneals", "ANNEAL")) > before })
	if load > 0 {
		l.types(t, "loads", "stop")
		l.awaitSaid(t, []string{"loads"}, "DONE", dones+1)
	}
	said := l.said(t, "anneals", "ANNEAL")[before]
	took, err := strconv.ParseFloat(said[1], 64)
	if err != nil || took < 1 {
		t.Fatalf("the VM said %v: %v", said, err)
	}
	return took
}

// table writes the times for docs/benchmarks.
func (a annealed) table(ways []string, loads []int) string {
	var b strings.Builder
	b.WriteString("| the other VM's threads | vCPUs | mean, s | least, s | most, s | shorter than 3 + 3 |\n|---|---|---|---|---|---|\n")
	mean := func(times []float64) (sum float64) {
		for _, ms := range times {
			sum += ms
		}
		return sum / float64(len(times))
	}
	for _, load := range loads {
		apart := mean(a[ways[0]][load])
		for _, way := range ways {
			times := a[way][load]
			fmt.Fprintf(&b, "| %d | %s | %.1f | %.1f | %.1f | %.1f %% |\n", load, way, mean(times)/1000,
				slices.Min(times)/1000, slices.Max(times)/1000, 100*(1-mean(times)/apart))
		}
	}
	return b.String()
}
