package picture_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/picture"
	"github.com/numavisor/numavisor/internal/topology"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// host is two sockets of two nodes each, a memory-only node, a NIC, huge pages and two VMs, one of
// which spans two nodes and has a name that tries to move the cursor.
func host() *inventory.Host {
	t := topology.Topology{
		Devices: []topology.Device{{Address: "0000:3b:00.0", Kind: topology.DeviceNIC, Node: 1,
			Names: []string{"eth0"}}},
	}
	for n := range topology.NodeID(5) {
		node := topology.Node{ID: n, Memory: 64 * topology.GiB, Free: 48 * topology.GiB,
			Distances: map[topology.NodeID]int{}, Classes: map[topology.NodeID]topology.Class{}}
		for to := range topology.NodeID(5) {
			node.Distances[to] = map[bool]int{true: 10, false: 21}[to == n]
		}
		if n < 4 {
			node.CPUs = topology.Range(topology.CPUID(4*n), topology.CPUID(4*n+3))
			for c := range node.CPUs.All() {
				core := c / 2 * 2
				t.CPUs = append(t.CPUs, topology.CPU{ID: c, Core: topology.CoreID(core),
					Socket: topology.SocketID(n / 2),
					Node:   n, L3: topology.L3ID(core), Siblings: topology.Range(core, core+1)})
			}
		}
		t.Nodes = append(t.Nodes, node)
	}
	t.Nodes[2].HugePages = []topology.HugePagePool{{Size: topology.GiB, Total: 8, Free: 3}}
	t.Classify()
	thread := func(vcpu guest.VCPUID, cpu topology.CPUID) inventory.Thread {
		return inventory.Thread{VCPU: &vcpu, LastCPU: cpu}
	}
	return &inventory.Host{Name: "hv1", Topology: t, Guests: []inventory.Guest{
		{Name: "db1", Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{0: 8 * topology.GiB, 1: topology.GiB},
			Threads: []inventory.Thread{thread(0, 0), thread(1, 5)}}},
		{Name: "web\x1b[2J\n<b>", Seen: inventory.Seen{MemoryByNode: topology.MemoryByNode{4: 2 * topology.GiB},
			Threads: []inventory.Thread{thread(0, 12)}}},
	}}
}

func TestText_Golden(t *testing.T) {
	for name, width := range map[string]int{"80-columns.golden": 80, "40-columns.golden": 40} {
		golden(t, name, picture.Text(host(), width))
	}
}

func TestText_OneNodePerSocketNeedsNoFrame(t *testing.T) {
	inv := host()
	for i := range inv.Topology.CPUs {
		inv.Topology.CPUs[i].Socket = topology.SocketID(inv.Topology.CPUs[i].Node)
	}
	drawn := picture.Text(inv, 80)
	if !strings.Contains(drawn, "┌ node 0, socket 0 ") || strings.Contains(drawn, "\nsocket") {
		t.Errorf("got\n%s", drawn)
	}
}

// Every line fits in the given width, whatever the names are.
func TestText_FitsTheWidth(t *testing.T) {
	inv := host()
	inv.Guests[0].Name = strings.Repeat("長い", 30)
	for _, line := range strings.Split(picture.Text(inv, 80), "\n") {
		if strings.HasPrefix(line, "│") && strings.Count(line, "│")%2 != 0 {
			t.Errorf("torn frame: %s", line)
		}
	}
}

func TestSVG_IsWellFormedAndEscapesNames(t *testing.T) {
	drawn := picture.SVG(host())
	golden(t, "host.svg", drawn)
	if strings.Contains(drawn, "<b>") || strings.Contains(drawn, "\x1b") {
		t.Error("a VM's name reaches the SVG unescaped")
	}
	d := xml.NewDecoder(strings.NewReader(drawn))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the SVG is not well-formed: %v", err)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}
