package linux

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

func readTopology(t testing.TB, root string) topology.Topology {
	t.Helper()
	topo, err := ReadTopology(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := topo.Validate(); err != nil {
		t.Fatal(err)
	}
	return topo
}

func TestReadTopologyOfCapturedHosts(t *testing.T) {
	for _, host := range topologytest.Hosts(t, "sys/") {
		t.Run(host, func(t *testing.T) {
			topo := readTopology(t, topologytest.Root(t, host))
			topologytest.Expect(t, host, "sysfs", topo)
		})
	}
}

// Whatever one file contains, reading goes on and the rest is complete.
func TestReadTopologySurvivesEachBrokenFile(t *testing.T) {
	const host = "16cpu-4n-scattered"
	root := topologytest.Root(t, host)
	whole := len(readTopology(t, root).CPUs)
	var files []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(path, "/sys/") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	junk := []string{"", "\x00\xff garbage", "-7", "99999999999999999999", "0-65535",
		strings.Repeat("0-65535,", maxTopologyFile/8), strings.Repeat("7", maxTopologyFile+1)}
	for i, file := range files {
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(junk[i%len(junk)]), 0o644); err != nil {
			t.Fatal(err)
		}
		topo, err := ReadTopology(root)
		if err == nil {
			err = topo.Validate()
		}
		if err != nil && !strings.HasSuffix(file, "cpu/online") {
			t.Errorf("%s: %v", file, err)
		}
		if strings.HasSuffix(file, "meminfo") && len(topo.CPUs) != whole {
			t.Errorf("%s: %d CPUs left of %d", file, len(topo.CPUs), whole)
		}
		if err := os.WriteFile(file, good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A link out of the captured tree, a named pipe and a folder in place of a file
// are gaps; ReadTopology neither follows, waits for nor reads them.
func TestReadTopologyStaysInTheRoot(t *testing.T) {
	root := topologytest.Root(t, "16cpu-4n-scattered")
	outside := filepath.Join(t.TempDir(), "meminfo")
	if err := os.WriteFile(outside, []byte("Node 0 MemTotal: 999999 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	node := func(n int) string { return filepath.Join(root, nodeFolder, "node"+strconv.Itoa(n), "meminfo") }
	for n := range 4 {
		if err := os.Remove(node(n)); err != nil {
			t.Fatal(err)
		}
	}
	relative, err := filepath.Rel(filepath.Dir(node(1)), outside)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Symlink(outside, node(0)), os.Symlink(relative, node(1)),
		syscall.Mkfifo(node(2), 0o644), os.Mkdir(node(3), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	topo := readTopology(t, root)
	gaps := strings.Join(topo.Gaps, "\n")
	for n := range 4 {
		if topo.Nodes[n].Memory != 0 {
			t.Errorf("node %d has %v from a file that must not be read", n, topo.Nodes[n].Memory)
		}
		if !strings.Contains(gaps, fmt.Sprintf("reading %s/node%d/meminfo: ", nodeFolder, n)) {
			t.Errorf("node %d: no gap gives the reason; gaps:\n%s", n, gaps)
		}
	}
}

func TestReadTopology_ErrorsGiveARemedy(t *testing.T) {
	for name, root := range map[string]string{"missing": filepath.Join(t.TempDir(), "none"), "empty": t.TempDir()} {
		_, err := ReadTopology(root)
		if err == nil || !strings.Contains(err.Error(), "name the folder that contains the host's sys and proc") ||
			!strings.Contains(err.Error(), root) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadTopologyOfThisHost(t *testing.T) {
	topo := readTopology(t, "/")
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(online)); topo.CPUSet().String() != want {
		t.Errorf("CPUs %s, the kernel says %s", topo.CPUSet(), want)
	}
	var memory topology.Bytes
	for _, n := range topo.Nodes {
		memory += n.Memory
	}
	if memory == 0 {
		t.Error("no memory")
	}
}

// compareLscpu compares CPUs and nodes by number, and sockets and cores by the
// CPUs that share them: lscpu numbers those itself.
func compareLscpu(t *testing.T, topo topology.Topology, out []byte) {
	t.Helper()
	var table struct {
		CPUs []struct {
			CPU    json.Number `json:"cpu"`
			Socket json.Number `json:"socket"`
			Node   json.Number `json:"node"`
			Core   json.Number `json:"core"`
		} `json:"cpus"`
	}
	if err := json.Unmarshal(out, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.CPUs) != len(topo.CPUs) {
		t.Fatalf("%d CPUs, lscpu says %d", len(topo.CPUs), len(table.CPUs))
	}
	sockets, cores := map[string]topology.SocketID{}, map[string]topology.CoreID{}
	for i, row := range table.CPUs {
		c := topo.CPUs[i]
		if row.CPU.String() != strconv.Itoa(int(c.ID)) || row.Node.String() != strconv.Itoa(int(c.Node)) {
			t.Errorf("CPU %d on node %d; lscpu: CPU %s on node %s", c.ID, c.Node, row.CPU, row.Node)
		}
		if s, ok := sockets[row.Socket.String()]; ok && s != c.Socket {
			t.Errorf("CPU %d: socket %d; others of lscpu's socket %s: %d", c.ID, c.Socket, row.Socket, s)
		}
		if k, ok := cores[row.Core.String()]; ok && k != c.Core {
			t.Errorf("CPU %d: core %d; others of lscpu's core %s: %d", c.ID, c.Core, row.Core, k)
		}
		sockets[row.Socket.String()], cores[row.Core.String()] = c.Socket, c.Core
	}
	if n := distinct(topo.CPUs, func(c topology.CPU) int { return int(c.Socket) }); n != len(sockets) {
		t.Errorf("%d sockets, lscpu says %d", n, len(sockets))
	}
	if n := distinct(topo.CPUs, func(c topology.CPU) int { return int(c.Core) }); n != len(cores) {
		t.Errorf("%d cores, lscpu says %d", n, len(cores))
	}
}

func distinct(cpus []topology.CPU, key func(topology.CPU) int) int {
	seen := map[int]bool{}
	for _, c := range cpus {
		seen[key(c)] = true
	}
	return len(seen)
}

// The captures of hwloc's own tests: as lscpu reads them, and as their files
// state.
func TestReadTopologyOfHwlocCaptures(t *testing.T) {
	type shape struct {
		cpus, nodes, sockets, cores, l3, devices int
		memory                                   topology.Bytes // of all nodes, in whole GiB
		row                                      []int          // distances of node 0
	}
	for name, want := range map[string]shape{
		"128arm-2pa2n8cluster4co": {128, 4, 2, 128, 4, 0, 502, []int{10, 16, 32, 33}},
		"32amd64-4s2n4c-cgroup2":  {32, 8, 4, 32, 8, 0, 127, []int{10, 16, 16, 22, 16, 22, 16, 22}},
		"40intel64-2g2n4c+pciloc": {40, 4, 4, 40, 4, 21, 511, []int{10, 20, 20, 20}},
		"64amd64-4s2n4ca2co":      {64, 8, 4, 32, 8, 0, 119, []int{10, 16, 16, 22, 16, 22, 16, 22}},
		"memorysidecaches":        {80, 4, 2, 40, 2, 0, 1486, []int{10, 21, 11, 21}},
	} {
		t.Run(name, func(t *testing.T) {
			all := topologytest.Captures(t)
			i := slices.IndexFunc(all, func(p string) bool { return strings.HasPrefix(filepath.Base(p), name) })
			if i < 0 {
				t.Fatalf("no capture %s* next to %q", name, all)
			}
			root := topologytest.Unpack(t, all[i])
			topo := readTopology(t, root)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, "lscpu", "--sysroot", root, "-J", "-e=CPU,SOCKET,NODE,CORE").Output()
			if err != nil {
				t.Fatalf("lscpu: %v", err)
			}
			compareLscpu(t, topo, out)
			got := shape{cpus: len(topo.CPUs), nodes: len(topo.Nodes), devices: len(topo.Devices),
				sockets: distinct(topo.CPUs, func(c topology.CPU) int { return int(c.Socket) }),
				cores:   distinct(topo.CPUs, func(c topology.CPU) int { return int(c.Core) }),
				l3:      distinct(topo.CPUs, func(c topology.CPU) int { return int(c.L3) })}
			for _, n := range topo.Nodes {
				got.memory += n.Memory
				got.row = append(got.row, topo.Nodes[0].Distances[n.ID])
			}
			got.memory /= topology.GiB
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("read    %+v\nwritten %+v", got, want)
			}
			if len(topo.Gaps) > 0 {
				t.Errorf("gaps %q", topo.Gaps)
			}
		})
	}
}

// wideHost writes a host of nodes with CPUs of two threads.
func wideHost(t testing.TB, nodes, cpus int) string {
	t.Helper()
	root := t.TempDir()
	write := func(text string, elements ...string) {
		path := filepath.Join(append([]string{root}, elements...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	each := cpus / nodes
	for n := range nodes {
		folder := filepath.Join(nodeFolder, "node"+strconv.Itoa(n))
		row := strings.Fields(strings.Repeat("22 ", nodes))
		row[n], row[n^1] = "10", "16"
		write(fmt.Sprintf("%d-%d", n*each, (n+1)*each-1), folder, "cpulist")
		write(strings.Join(row, " "), folder, "distance")
		write(fmt.Sprintf("Node %d MemTotal: 16777216 kB\nNode %d MemFree: 8388608 kB", n, n), folder, "meminfo")
	}
	for c := range cpus {
		folder := filepath.Join(cpuFolder, "cpu"+strconv.Itoa(c))
		write(strconv.Itoa(c/each), folder, "topology/physical_package_id")
		write("0", folder, "topology/die_id")
		write(strconv.Itoa(c%each/2), folder, "topology/core_id")
		write(fmt.Sprintf("%d-%d", c&^1, c|1), folder, "topology/core_cpus_list")
		write("3", folder, "cache/index3/level")
		write(fmt.Sprintf("%d-%d", c/each*each, (c/each+1)*each-1), folder, "cache/index3/shared_cpu_list")
	}
	write(fmt.Sprintf("0-%d", cpus-1), cpuFolder, "online")
	return root
}

func TestReadTopologyOfWideHost(t *testing.T) {
	topo := readTopology(t, wideHost(t, 128, 2048))
	if len(topo.Nodes) != 128 || len(topo.CPUs) != 2048 || len(topo.Gaps) != 0 {
		t.Fatalf("%d nodes, %d CPUs, gaps %q", len(topo.Nodes), len(topo.CPUs), topo.Gaps)
	}
	last := topo.Nodes[127]
	if last.CPUs.String() != "2032-2047" || last.Distances[126] != 16 || last.Classes[126] != topology.Neighbour ||
		last.Classes[0] != topology.Remote {
		t.Errorf("node 127: %+v", last)
	}
	if c := topo.CPUs[2047]; c.Core != 2046 || c.L3 != 2032 || c.Node != 127 {
		t.Errorf("CPU 2047: %+v", c)
	}
}

func BenchmarkReadTopology(b *testing.B) {
	for _, size := range []struct{ nodes, cpus int }{{8, 256}, {64, 1024}, {128, 2048}} {
		root := wideHost(b, size.nodes, size.cpus)
		b.Run(fmt.Sprintf("%dnodes-%dcpus", size.nodes, size.cpus), func(b *testing.B) {
			for b.Loop() {
				readTopology(b, root)
			}
		})
		b.Run(fmt.Sprintf("%dnodes-%dcpus-again", size.nodes, size.cpus), func(b *testing.B) {
			many := NewTopologies(root)
			for b.Loop() {
				if _, err := many.Read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzReadTopology puts the input in the place of each kind of file in turn.
func FuzzReadTopology(f *testing.F) {
	root := topologytest.Root(f, "8cpu-4n-1cxl")
	places := []string{
		cpuFolder + "/online", cpuFolder + "/isolated", cpuFolder + "/cpu0/topology/core_cpus_list", cpuFolder +
			"/cpu0/cache/index3/shared_cpu_list",
		nodeFolder + "/online", nodeFolder + "/node0/cpulist", nodeFolder + "/node1/distance", nodeFolder +
			"/node4/meminfo",
		nodeFolder + "/node0/hugepages/hugepages-2048kB/nr_hugepages", nodeFolder +
			"/node4/access0/initiators/read_latency",
	}
	for i, seed := range []string{"0-7", "3,5", "0,2", "0-3", "0-4", "0-1", "12 10 32 32 50", "Node 4 MemTotal: 12 " +
		"kB\nNode 4 Dirty: 99 kB", "512", "-1"} {
		f.Add(uint8(i), seed)
	}
	f.Fuzz(func(t *testing.T, place uint8, text string) {
		file := filepath.Join(root, places[int(place)%len(places)])
		good, readErr := os.ReadFile(file)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		topo, err := ReadTopology(root)
		if readErr != nil {
			err = os.Remove(file)
		} else if err2 := os.WriteFile(file, good, 0o644); err2 != nil {
			t.Fatal(err2)
		}
		if err == nil {
			if err := topo.Validate(); len(topo.Nodes) > 0 && err != nil {
				t.Fatal(err)
			}
		}
	})
}
