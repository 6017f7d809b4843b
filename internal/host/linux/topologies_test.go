package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

// Values that change by themselves are read each time; the CPUs only when other
// CPUs are online.
func TestTopologies_ReadsCPUsAgainWhenOthersAreOnline(t *testing.T) {
	root := topologytest.Root(t, "16cpu-4n-scattered")
	write := func(text string, elements ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(append([]string{root, "sys/devices/system"}, elements...)...),
			[]byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	many := NewTopologies(root)
	read := func() topology.Topology { return readAgain(t, many) }
	first := read()
	again := read()
	if diff := cmp.Diff(first, again); diff != "" {
		t.Fatalf("the second reading differs (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(readTopology(t, root), again); diff != "" {
		t.Fatalf("a cached reading differs (-without cache +cached):\n%s", diff)
	}
	last := first.CPUs[len(first.CPUs)-1].ID
	write("Node 0 MemTotal: 4096 kB\nNode 0 MemFree: 1024 kB\n", "node/node0/meminfo")
	write("97", "cpu", filepath.Base(cpuPath(last)), "topology/physical_package_id")
	now := read()
	if now.Nodes[0].Free != topology.MiB {
		t.Errorf("free on node 0: %v, now 1 MiB", now.Nodes[0].Free)
	}
	if diff := cmp.Diff(first.CPUs, now.CPUs); diff != "" {
		t.Errorf("the CPUs were read again, though the same are online (-first +now):\n%s", diff)
	}
	var rest []string
	for _, c := range first.CPUs[1:] {
		rest = append(rest, topology.SetOf(c.ID).String())
	}
	write(strings.Join(rest, ",")+"\n", "cpu/online")
	if now = read(); len(now.CPUs) != len(first.CPUs)-1 || !now.Offline.Contains(first.CPUs[0].ID) ||
		reflect.DeepEqual(now.CPUs[len(now.CPUs)-1], first.CPUs[len(first.CPUs)-1]) {
		t.Errorf("CPU %d has gone offline, and CPU %d is in another socket: %+v", first.CPUs[0].ID, last, now.CPUs)
	}
	if diff := cmp.Diff(readTopology(t, root), now); diff != "" {
		t.Errorf("a cached reading differs (-without cache +cached):\n%s", diff)
	}
}

// Devices are read again when other devices exist, and after ten minutes.
func TestTopologies_ReadsDevicesAgain(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) { readDevicesAgain(t, root) })
}

func readDevicesAgain(t *testing.T, root string) {
	t.Helper()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/devices/system/cpu/online", "0\n")
	write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n")
	write("sys/bus/pci/devices/0000:3b:00.0/class", "0x020000\n")
	write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "0\n")
	write("sys/bus/pci/devices/0000:5e:00.0/class", "nonsense\n")
	many := NewTopologies(root)
	read := func() topology.Topology { return readAgain(t, many) }
	first := read()
	if len(first.Devices) != 1 || !strings.Contains(strings.Join(first.Gaps, "\n"), "nonsense") {
		t.Fatalf("devices %+v, gaps %q", first.Devices, first.Gaps)
	}
	write("sys/bus/pci/devices/0000:3b:00.0/class", "0x010802\n")
	if diff := cmp.Diff(first, read()); diff != "" {
		t.Errorf("the same devices exist (-first +second):\n%s", diff)
	}
	write("sys/bus/pci/devices/0000:af:00.0/class", "0x010802\n")
	if now := read(); !reflect.DeepEqual(now, readTopology(t, root)) || len(now.Devices) != 2 ||
		reflect.DeepEqual(now.Devices[0], first.Devices[0]) {
		t.Errorf("a device has come: %+v, gaps %q", now.Devices, now.Gaps)
	}
	write("sys/bus/pci/devices/0000:5e:00.0/class", "0x030000\n") // a driver recognizes it now
	time.Sleep(9 * time.Minute)
	if now := read(); len(now.Devices) != 2 {
		t.Errorf("devices were read again after nine minutes: %+v", now.Devices)
	}
	time.Sleep(2 * time.Minute)
	if now := read(); !reflect.DeepEqual(now, readTopology(t, root)) || len(now.Devices) != 3 {
		t.Errorf("after eleven minutes: %+v, gaps %q", now.Devices, now.Gaps)
	}
}

func readAgain(t *testing.T, many *Topologies) topology.Topology {
	t.Helper()
	topo, err := many.Read()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// The CPUs of nodes are those of the last reading.
func TestTopologies_CPUsOf(t *testing.T) {
	many := NewTopologies(topologytest.Root(t, "16cpu-4n-scattered"))
	for range 2 { // read, then known
		got, err := many.CPUsOf(topology.SetOf[topology.NodeID](1))
		if err != nil {
			t.Fatal(err)
		}
		last := readAgain(t, many)
		if node, _ := last.Node(1); got.IsEmpty() || !got.Equal(node.CPUs) {
			t.Errorf("CPUs %s of node 1, which has %s", got, node.CPUs)
		}
	}
	if _, err := NewTopologies(t.TempDir()).CPUsOf(topology.SetOf[topology.NodeID](1)); err == nil {
		t.Error("a host without CPUs is no error")
	}
}

// Of nodes that are known, free memory and huge pages are read again. A node that comes, other memory and files that
// vanish make all be read again.
func TestTopologies_ReadsMemoryAgain(t *testing.T) {
	root := topologytest.Root(t, "16cpu-4n-scattered")
	write := func(text string, elements ...string) {
		t.Helper()
		path := filepath.Join(append([]string{root, nodeFolder}, elements...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pool := func(total, free string) {
		t.Helper()
		write(total, "node1/hugepages/hugepages-2048kB/nr_hugepages")
		write(free, "node1/hugepages/hugepages-2048kB/free_hugepages")
	}
	pool("8\n", "8\n")
	many := NewTopologies(root)
	first := readAgain(t, many)
	if len(first.Gaps) > 0 || len(first.Nodes) != 4 || len(first.Nodes[1].HugePages) != 1 {
		t.Fatalf("gaps %v, nodes %+v: this test tests nothing", first.Gaps, first.Nodes)
	}
	total := fmt.Sprintf("Node 1 MemTotal: %d kB\n", first.Nodes[1].Memory>>10)
	for _, change := range []struct {
		what string
		make func()
	}{
		{"free memory", func() { write(total+"Node 1 MemFree: 2048 kB\n", "node1/meminfo") }},
		{"huge pages", func() { pool("9\n", "3\n") }},
		{"memory", func() { write("Node 1 MemTotal: 8192 kB\nNode 1 MemFree: 1 kB\n", "node1/meminfo") }},
		{"no huge pages", func() {
			if err := os.RemoveAll(filepath.Join(root, nodeFolder, "node1/hugepages/hugepages-2048kB")); err != nil {
				t.Fatal(err)
			}
			write("Node 1 MemTotal: 4096 kB\nNode 1 MemFree: 1 kB\n", "node1/meminfo")
		}},
		{"a node", func() {
			write("Node 9 MemTotal: 4096 kB\nNode 9 MemFree: 4096 kB\n", "node9/meminfo")
			write("\n", "node9/cpulist")
			write("20 20 20 20 10\n", "node9/distance")
		}},
	} {
		change.make()
		for range 2 {
			if diff := cmp.Diff(readTopology(t, root), readAgain(t, many)); diff != "" {
				t.Errorf("%s: a cached reading differs (-without cache +cached):\n%s", change.what, diff)
			}
		}
	}
}
