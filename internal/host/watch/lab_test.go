package watch_test

// These tests need several nodes and a real guest: they run inside the lab,
// where lab/e2e has started the guest "far" for them, with its vCPU on node 0
// and its memory on node 3, and keeps it busy with its memory.

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/watch"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// inLab skips outside the lab, and returns the guest and the host inside.
func inLab(t *testing.T) (inventory.Guest, *topology.Topology) {
	t.Helper()
	if os.Getenv("NUMAVISOR_LAB_INSIDE") != "1" {
		t.Skip("needs a host of 4 nodes with a guest: TestLabWatch of lab/e2e runs it inside one")
	}
	text, err := os.ReadFile("/run/libvirt/qemu/far.pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	topo, err := linux.ReadTopology("/")
	if err != nil {
		t.Fatal(err)
	}
	g := inventory.Guest{
		Name:   "far",
		PID:    pid,
		State:  "running",
		Config: inventory.Config{VCPUs: 1, Memory: 640 * topology.MiB},
	}
	return g, &topo
}

// ranSoFar is how long the guest's vCPUs have run, by the reader that every
// command uses.
func ranSoFar(t *testing.T, pid int) time.Duration {
	t.Helper()
	threads, _, err := linux.Live.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	var sum time.Duration
	for _, thread := range threads {
		if thread.Role == inventory.RoleVCPU {
			sum += thread.RunTime
		}
	}
	return sum
}

func TestLabWatchAgreesWithTheKernel(t *testing.T) {
	g, topo := inLab(t)
	w := watch.New(
		watch.Options{
			Meters: []watch.Meter{watch.NewResctrl(linux.Live), watch.NewPMU(linux.Live),
				labcounter.NewMeter(labcounter.Path, linux.Live)},
		},
	)
	defer func() { _ = w.Close() }()
	w.Follow([]inventory.Guest{g}, topo)
	awaitBusy(t, w)
	before := ranSoFar(t, g.PID)
	var used, onNode0, nodeUse float64
	var all, toNode3 float64
	var last inventory.Sample
	for range 8 {
		time.Sleep(time.Second)
		last = w.Sample()
		seen := last.Guests[0]
		used += seen.Load.CPU * seen.Load.Window.Seconds()
		onNode0 += seen.CPUByNode[0] * seen.Load.Window.Seconds()
		nodeUse += last.Nodes[0].CPU * last.Window.Seconds()
		for _, a := range seen.Accesses {
			all += a.Share * seen.Load.CPU
			if a.From == 0 && a.To == 3 {
				toNode3 += a.Share * seen.Load.CPU
			}
		}
	}
	ran := (ranSoFar(t, g.PID) - before).Seconds()
	seen := last.Guests[0]
	t.Logf("vCPU time %.3f s, by the threads' own figures %.3f s; use of node 0 %.3f s", used, ran, nodeUse)
	t.Logf("memory by node %v from %s; accesses %+v; remote %+v", seen.MemoryByNode, seen.MemorySource, seen.Accesses,
		seen.Load.Remote)
	t.Logf("sources %v, gaps %v, cost %v", last.Accesses, last.Gaps, last.Cost)
	if ran < 0.5 {
		t.Fatalf("the guest is not busy: it ran %.3f s", ran)
	}
	if used < 0.9*ran || used > 1.1*ran {
		t.Errorf("%.3f s of vCPU time seen, %.3f s used", used, ran)
	}
	if onNode0 < 0.999*used {
		t.Errorf("%.3f s of %.3f s seen on node 0, where its vCPU is pinned", onNode0, used)
	}
	if nodeUse < 0.8*used {
		t.Errorf("node 0 was used for %.3f s, by its guest alone for %.3f s", nodeUse, used)
	}
	if seen.Load.Remote == nil || seen.Load.Remote.Source != inventory.AccessCounter || all == 0 || toNode3 < 0.9*all {
		t.Errorf("%.2f of %.2f CPUs' accesses, summed over the samples, from node 0 to node 3; remote %+v", toNode3,
			all, seen.Load.Remote)
	}
	memoryIsTrue(t, g.PID, seen)
}

// awaitBusy samples until the guest's load, which starts at the same time as
// this test, keeps its vCPU busy: the few accesses of an idle guest do not go
// to its own memory.
func awaitBusy(t *testing.T, w *watch.Watcher) {
	t.Helper()
	w.Sample()
	for range 30 {
		time.Sleep(time.Second)
		if w.Sample().Guests[0].Load.CPU > 0.9 {
			return
		}
	}
	t.Fatal("the guest was not busy within 30 s")
}

// memoryIsTrue compares a sample's memory with numa_maps.
func memoryIsTrue(t *testing.T, pid int, seen inventory.GuestSample) {
	t.Helper()
	mappings, _, err := linux.Live.NUMAMaps(pid)
	if err != nil {
		t.Fatal(err)
	}
	truth := map[topology.NodeID]float64{}
	for _, m := range mappings {
		if m.Anon > 0 {
			for node, amount := range m.ByNode() {
				truth[node] += float64(amount)
			}
		}
	}
	if seen3 := float64(seen.MemoryByNode[3]); truth[3] < float64(512*topology.MiB) || seen3 < 0.97*truth[3] ||
		seen3 > 1.03*truth[3] {
		t.Errorf("memory on node 3: %.0f bytes seen, %.0f by numa_maps", seen3, truth[3])
	}
	if seen.Load.Window == 0 || seen.MemorySource == "numa_maps" {
		t.Errorf("source %q", seen.MemorySource)
	}
}

// One observation of 200 guests against numastat of one, 200 times: the same
// guest is followed under 200 names.
func TestLabWatchIsCheap(t *testing.T) {
	g, topo := inLab(t)
	const guests = 200
	w := watch.New(watch.Options{})
	defer func() { _ = w.Close() }()
	var all []inventory.Guest
	for i := range guests {
		g.Name = fmt.Sprintf("far%03d", i)
		all = append(all, g)
	}
	w.Follow(all, topo)
	w.Sample()
	best := time.Hour
	for range 5 {
		time.Sleep(time.Second)
		best = min(best, w.Sample().Cost)
	}
	numastat := time.Hour
	for range 3 {
		c := exec.Command("numastat", "-p", strconv.Itoa(g.PID))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		numastat = min(numastat, c.ProcessState.UserTime()+c.ProcessState.SystemTime())
	}
	ratio := float64(guests*numastat) / float64(best)
	t.Logf("CPU time: one observation of %d guests %v, numastat -p of one %v: %d of them cost %.0f times as much",
		guests, best, numastat, guests, ratio)
	if ratio < 200 {
		t.Errorf("one observation is only %.0f times cheaper than numastat -p of the same guests; the promise is 200",
			ratio)
	}
}
