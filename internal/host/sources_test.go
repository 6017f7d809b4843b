// Package host_test compares the drivers' descriptions of one machine.
package host_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/numavisor/numavisor/internal/host/hwloc"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

// Every description of the same machine becomes the same Topology, as far as
// its source has the facts.
func TestSources_Agree(t *testing.T) {
	readers := map[string]func(io.Reader) (topology.Topology, error){
		"capabilities.xml": libvirt.ParseCapabilities, "hwloc1.xml": hwloc.Parse, "hwloc2.xml": hwloc.Parse,
	}
	paths, err := filepath.Glob(filepath.Join("..", "..", "testdata", "hosts", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			parse, ok := readers[f.Name]
			if !ok {
				continue
			}
			compared++
			t.Run(filepath.Base(path)+"/"+f.Name, func(t *testing.T) {
				root := t.TempDir()
				if err := txtar.Write(archive, root); err != nil {
					t.Fatal(err)
				}
				kernel, err := linux.ReadTopology(root)
				if err != nil {
					t.Fatal(err)
				}
				other, err := parse(bytes.NewReader(f.Data))
				if err != nil {
					t.Fatal(err)
				}
				compare(t, &kernel, &other)
			})
		}
	}
	if compared < 6 {
		t.Errorf("only %d descriptions next to a sysfs tree in %q", compared, paths)
	}
}

// lstopo and Numavisor read the same captured sysfs trees, those of hwloc's own
// tests.
func TestSysfsCapturesAsHwlocReadsThem(t *testing.T) {
	if _, err := exec.LookPath("lstopo-no-graphics"); err != nil {
		topologytest.Missing(t, "%v: install hwloc-nox to compare with it", err)
	}
	for _, capture := range topologytest.Captures(t) {
		t.Run(filepath.Base(capture), func(t *testing.T) {
			root := topologytest.Unpack(t, capture)
			kernel, err := linux.ReadTopology(root)
			if err != nil {
				t.Fatal(err)
			}
			environment := []string{"HWLOC_FSROOT=" + root, "HWLOC_THISSYSTEM=0", "HWLOC_COMPONENTS=linux,stop"}
			other, err := hwloc.Parse(
				bytes.NewReader(run(t, environment, "lstopo-no-graphics", "--of", "xml", "--disallowed")))
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(filepath.Base(capture), "64amd64-4s2n4ca2co") {
				splitModules(&kernel)
			}
			compare(t, &kernel, &other)
		})
	}
}

// splitModules reverses the kernel's view of AMD's family 15h, whose cores
// share parts in pairs: SMT siblings to the kernel, cores to hwloc.
func splitModules(t *topology.Topology) {
	for i := range t.CPUs {
		c := &t.CPUs[i]
		c.Core, c.Siblings = topology.CoreID(c.ID), topology.SetOf(c.ID)
	}
}

// run runs a program to its end and returns its output.
func run(t *testing.T, environment []string, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), environment...)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

// compare compares another source's facts with the kernel's own. lstopo leaves
// out CPUs that its caller may not use, and says so in Offline.
func compare(t *testing.T, kernel, other *topology.Topology) {
	t.Helper()
	if !kernel.NodeSet().Equal(other.NodeSet()) {
		t.Errorf("nodes %s, the kernel says %s", other.NodeSet(), kernel.NodeSet())
	}
	if seen := other.CPUSet().Union(other.Offline.Minus(kernel.Offline)); !seen.Equal(kernel.CPUSet()) {
		t.Errorf("CPUs %s and offline %s, the kernel says %s", other.CPUSet(), other.Offline, kernel.CPUSet())
	}
	for _, c := range other.CPUs {
		k, ok := kernel.CPU(c.ID)
		if !ok || k.Core != c.Core || k.Die != c.Die || k.Socket != c.Socket || k.Node != c.Node || k.L3 != c.L3 ||
			!k.Siblings.Equal(c.Siblings) {
			t.Errorf("CPU %+v, the kernel says %+v", c, k)
		}
	}
	for _, n := range other.Nodes {
		k, ok := kernel.Node(n.ID)
		if !ok {
			continue
		}
		if n.Memory != k.Memory {
			t.Errorf("node %d: %v, the kernel says %v", n.ID, n.Memory, k.Memory)
		}
		for to, d := range n.Distances {
			if k.Distances[to] != d {
				t.Errorf("node %d to %d: %d, the kernel says %d", n.ID, to, d, k.Distances[to])
			}
		}
		if n.Memory == 0 {
			continue // hwloc has no object for its empty pools
		}
		if len(n.HugePages) != len(k.HugePages) {
			t.Fatalf("node %d: %d pools, the kernel says %d", n.ID, len(n.HugePages), len(k.HugePages))
		}
		for i, p := range n.HugePages {
			if p.Size != k.HugePages[i].Size || p.Total != k.HugePages[i].Total {
				t.Errorf("node %d: pool %+v, the kernel says %+v", n.ID, p, k.HugePages[i])
			}
		}
	}
	for _, d := range other.Devices {
		for _, k := range kernel.Devices {
			// hwloc has the place of a host bridge, not of each device below
			// it.
			if k.Address == d.Address && (k.Kind != d.Kind || k.Node != d.Node && d.Node != topology.NoNode) {
				t.Errorf("device %+v, the kernel says %+v", d, k)
			}
		}
	}
}
