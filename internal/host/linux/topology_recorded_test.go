package linux

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

// Output of `lscpu -a -p=CPU,CORE,SOCKET,NODE,CACHE,ONLINE` on the captured
// host itself.
func TestReadTopologyAgreesWithRecordedLscpu(t *testing.T) {
	for _, host := range topologytest.Hosts(t, "lscpu.txt") {
		t.Run(host, func(t *testing.T) {
			topo := readTopology(t, topologytest.Root(t, host))
			var online, offline topology.CPUSet
			cores, sockets, l3 := sharers{}, sharers{}, sharers{}
			for line := range strings.Lines(string(topologytest.File(t, host, "lscpu.txt"))) {
				if strings.HasPrefix(line, "#") {
					continue
				}
				f := strings.Split(strings.TrimSpace(line), ",")
				id, err := strconv.Atoi(f[0])
				cpu := topology.CPUID(id)
				if err == nil && f[len(f)-1] == "N" {
					offline = offline.With(cpu)
					continue
				}
				if err != nil || len(f) != 10 {
					t.Fatalf("lscpu.txt: cannot parse %q", line)
				}
				online = online.With(cpu)
				cores.add(f[1], cpu)
				sockets.add(f[2], cpu)
				l3.add(f[8], cpu)
				if c, ok := topo.CPU(cpu); !ok || fmt.Sprint(int(c.Node)) != f[3] {
					t.Errorf("CPU %d: lscpu says node %s, read %+v", cpu, f[3], c)
				}
			}
			if !online.Equal(topo.CPUSet()) || !offline.Equal(topo.Offline) {
				t.Errorf("lscpu: online %q offline %q; read %q, %q", online, offline, topo.CPUSet(), topo.Offline)
			}
			check := func(what string, want sharers, key func(topology.CPU) int) {
				got := sharers{}
				for _, c := range topo.CPUs {
					got.add(strconv.Itoa(key(c)), c.ID)
				}
				if got.String() != want.String() {
					t.Errorf("%s: read %v, lscpu says %v", what, got, want)
				}
			}
			check("cores", cores, func(c topology.CPU) int { return int(c.Core) })
			check("sockets", sockets, func(c topology.CPU) int { return int(c.Socket) })
			check("L3", l3, func(c topology.CPU) int { return int(c.L3) })
		})
	}
}

// sharers are CPUs by what they share; each tool numbers the shared units in
// its own way, so the number does not count.
type sharers map[string]topology.CPUSet

func (s sharers) add(key string, cpu topology.CPUID) { s[key] = s[key].With(cpu) }

func (s sharers) String() string {
	var groups []string
	for set := range maps.Values(s) {
		groups = append(groups, set.String())
	}
	slices.Sort(groups)
	return strings.Join(groups, " ")
}

// Output of `numactl -H` on the captured host itself.
func TestReadTopologyAgreesWithRecordedNumactl(t *testing.T) {
	for _, host := range topologytest.Hosts(t, "numactl.txt") {
		t.Run(host, func(t *testing.T) {
			topo := readTopology(t, topologytest.Root(t, host))
			var numactl strings.Builder
			for line := range strings.Lines(string(topologytest.File(t, host, "numactl.txt"))) {
				if !strings.Contains(line, " free: ") { // later than the capture
					numactl.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
				}
			}
			if got := asNumactl(topo); got != numactl.String() {
				t.Errorf("read\n%s\nnumactl says\n%s", got, numactl.String())
			}
		})
	}
}

// asNumactl writes a topology as numactl -H does, runs of spaces reduced to one.
func asNumactl(topo topology.Topology) string {
	var b strings.Builder
	fmt.Fprintf(&b, "available: %d nodes (%s)\n", len(topo.Nodes), topo.NodeSet())
	matrix := "node"
	for _, n := range topo.Nodes {
		cpus := fmt.Sprintf("node %d cpus:", n.ID)
		for c := range n.CPUs.All() {
			cpus += fmt.Sprintf(" %d", c)
		}
		fmt.Fprintf(&b, "%s\nnode %d size: %d MB\n", cpus, n.ID, n.Memory/topology.MiB)
		matrix += fmt.Sprintf(" %d", n.ID)
	}
	b.WriteString("node distances:\n" + matrix + "\n")
	for _, n := range topo.Nodes {
		fmt.Fprintf(&b, "%d:", n.ID)
		for _, to := range topo.Nodes {
			fmt.Fprintf(&b, " %d", n.Distances[to.ID])
		}
		b.WriteString("\n")
	}
	return b.String()
}
