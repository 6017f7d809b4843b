package daemon_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/daemon"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// recorded is a watcher that costs almost nothing: package watch measures the cost
// of samples.
type recorded struct{ sample inventory.Sample }

func (r *recorded) Follow([]inventory.Guest, *topology.Topology) {}

func (r *recorded) Sample() inventory.Sample {
	s := r.sample
	s.Taken, s.Window = time.Now(), time.Second
	return s
}

// BenchmarkLoop200Guests runs the loop for minutes of a clock of its own, and
// reports its share of a core, without samples and observations: history,
// alarms, plans.
func BenchmarkLoop200Guests(b *testing.B) {
	for b.Loop() {
		const minutes = 5
		b.ReportMetric(100*loopCost(b, minutes)/(minutes*60), "%core")
	}
}

func loopCost(b *testing.B, minutes int) (cpuSeconds float64) {
	b.Helper()
	folder := b.TempDir()
	done := make(chan float64, 1)
	test := testing.InternalTest{Name: "loop", F: func(t *testing.T) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			h := fake.MustNew("nodes:8 cores:64 memory:256G")
			sample := busyHost(t, h, 200)
			ledger := claim.Ledger{Folder: folder, Alive: func(claim.Process) bool { return true }}
			d := daemon.New(daemon.Options{
				Host: &move.Host{
					Host: operate.Host{
						Sources: observe.Sources{
							Kernel:      h,
							Hypervisors: []observe.Hypervisor{h},
							Claims:      ledger.Claims,
							Now:         time.Now,
							HostName:    func() (string, error) { return "fake", nil },
						},
						Kernel:   h,
						Control:  h,
						Domains:  h,
						Settings: &fake.Settings{},
						Ledger:   ledger,
						Clock:    time.Now,
					},
				},
				Watcher: &recorded{sample}, Journal: record.Journal{Folder: folder}, Records: folder, Look: time.Hour,
			})
			go func() { _ = d.Run(t.Context()) }() // ends with the test
			time.Sleep(10 * time.Second)
			synctest.Wait()
			before := processTime(t)
			time.Sleep(time.Duration(minutes) * time.Minute)
			synctest.Wait()
			done <- processTime(t) - before
		})
	}}
	testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{test})
	return <-done
}

func processTime(t *testing.T) float64 {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

// busyHost adds guests of four vCPUs, each with its memory on two nodes, and
// returns the samples of them.
func busyHost(t *testing.T, h *fake.Host, guests int) inventory.Sample {
	t.Helper()
	var s inventory.Sample
	for i := range guests {
		node := topology.NodeID(i % 8)
		name := fmt.Sprintf("vm%03d", i)
		c := inventory.Config{
			VCPUs:     4,
			Memory:    4 * gib,
			Source:    "anonymous",
			Immediate: true,
			NUMATune:  &inventory.NUMATune{Mode: "restrictive", Nodes: topology.SetOf(node)},
		}
		if err := h.Add(fake.Definition{Name: name, Config: c}); err != nil {
			t.Fatal(err)
		}
		g, _ := h.Guest(name)
		s.Guests = append(
			s.Guests,
			inventory.GuestSample{
				Name:         name,
				PID:          g.PID,
				Load:         inventory.GuestLoad{Window: time.Second, CPU: 1.3, Wait: 0.02},
				MemoryByNode: fake.MemoryOf(g),
				CPUByNode:    map[topology.NodeID]float64{node: 1.3},
			},
		)
	}
	for _, n := range h.Nodes().Nodes {
		s.Nodes = append(
			s.Nodes,
			inventory.NodeSample{
				NodeLoad: inventory.NodeLoad{Node: n.ID, CPU: 33},
				CPUs:     64,
				Memory:   n.Memory,
				Free:     n.Free,
			},
		)
	}
	return s
}
