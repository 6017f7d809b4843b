// Package topologytest helps the tests of readers: a text of a topology that a
// review can read, and captured machines unpacked from text archives.
package topologytest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/numavisor/numavisor/internal/host/archive"
	"github.com/numavisor/numavisor/internal/topology"
)

var update = flag.Bool("update", false, "rewrite testdata/hosts/expected")

// Hosts returns the text archives of testdata/hosts that hold a file whose
// name begins with prefix: "sys/", "capabilities.xml".
func Hosts(t *testing.T, prefix string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, path := range paths {
		packed, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(packed.Files, func(f txtar.File) bool { return strings.HasPrefix(f.Name, prefix) }) {
			hosts = append(hosts, strings.TrimSuffix(filepath.Base(path), ".txtar"))
		}
	}
	if len(hosts) == 0 {
		t.Fatalf("no archive in %s holds %s", folder, prefix)
	}
	return hosts
}

// folder is testdata/hosts of the module whose test runs.
var folder = func() string {
	at := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			break
		}
		at = filepath.Join("..", at)
	}
	return filepath.Join(at, "testdata", "hosts")
}()

// File returns a file of a host's archive.
func File(t testing.TB, host, name string) []byte {
	t.Helper()
	for _, f := range parsed(t, host).Files {
		if f.Name == name {
			return f.Data
		}
	}
	t.Fatalf("host %s: no file %s", host, name)
	return nil
}

func parsed(t testing.TB, host string) *txtar.Archive {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join(folder, host+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Root unpacks a host's archive and returns the folder, which holds its sys and
// proc.
func Root(t testing.TB, host string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(filepath.Join(folder, host+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := archive.Unpack(f, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Expect compares a topology with testdata/hosts/expected/HOST-SOURCE.txt, or
// rewrites that file under -update.
func Expect(t *testing.T, host, source string, got topology.Topology) {
	t.Helper()
	path := filepath.Join(folder, "expected", host+"-"+source+".txt")
	text := Describe(got)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run the test with -update and review the file", err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, diff)
	}
}

// Describe lists a topology in lines: nodes, cores with their CPUs, devices,
// and the other fields.
func Describe(t topology.Topology) string {
	var b strings.Builder
	for _, n := range t.Nodes {
		fmt.Fprintf(&b, "node %d cpus %q memory %d free %d reclaimable %d\n", n.ID, n.CPUs, n.Memory, n.Free,
			n.Reclaimable)
		for _, p := range n.HugePages {
			fmt.Fprintf(&b, "  pool %v total %d free %d\n", p.Size, p.Total, p.Free)
		}
		b.WriteString("  to")
		for _, to := range slices.Sorted(maps.Keys(n.Classes)) {
			distance := "-"
			if d, ok := n.Distances[to]; ok {
				distance = fmt.Sprint(d)
			}
			fmt.Fprintf(&b, " %d:%s:%s", to, distance, n.Classes[to])
		}
		b.WriteString("\n")
	}
	for _, c := range t.CPUs {
		if first, _ := c.Siblings.First(); first == c.ID {
			fmt.Fprintf(&b, "core %d cpus %s die %d socket %d l3 %d node %d\n", c.Core, c.Siblings, c.Die, c.Socket,
				c.L3, c.Node)
		}
	}
	for _, d := range t.Devices {
		fmt.Fprintf(&b, "device %s %s node %d names %v driver %q\n", d.Address, d.Kind, d.Node, d.Names, d.Driver)
	}
	fmt.Fprintf(&b, "housekeeping %q offline %q\n", t.Housekeeping, t.Offline)
	if t.Measured != nil {
		fmt.Fprintf(&b, "measured nodes %v latency %v bandwidth %v\n", t.Measured.Nodes, t.Measured.LatencyNanos,
			t.Measured.BandwidthMBps)
	}
	for _, g := range t.Gaps {
		fmt.Fprintf(&b, "gap: %s\n", g)
	}
	return b.String()
}
