package watch

import (
	"os/exec"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
)

// A process of this machine stands in for a guest: the test checks what the
// kernel itself does when it ends, not what a fixture says.
func TestAGuestThatEndsIsDroppedSilently(t *testing.T) {
	topo, err := linux.ReadTopology("/")
	if err != nil {
		t.Fatal(err)
	}
	ends, stays := child(t), child(t)
	w := New(Options{})
	defer func() { _ = w.Close() }()
	w.Follow([]inventory.Guest{
		{Name: "ends", PID: ends.Process.Pid, State: "running"},
		{Name: "stays", PID: stays.Process.Pid, State: "running"},
		{Name: "off", State: "shutoff"},
	}, &topo)
	if got := names(w.Sample()); len(got) != 2 || got[0] != "ends" || got[1] != "stays" {
		t.Fatalf("guests %v", got)
	}
	if err := ends.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = ends.Wait() // it was killed
	s := w.Sample()
	if got := names(s); len(got) != 1 || got[0] != "stays" {
		t.Errorf("guests %v", got)
	}
	for _, g := range s.Gaps {
		if g.Object == inventory.GuestRef("ends") {
			t.Errorf("gap of a guest that has ended: %+v", g)
		}
	}
	if s.Guests[0].Load.Window <= 0 || s.Window <= 0 || s.Cost <= 0 {
		t.Errorf("window %v, of the guest %v, cost %v", s.Window, s.Guests[0].Load.Window, s.Cost)
	}
}

func child(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

func names(s inventory.Sample) (names []string) {
	for _, g := range s.Guests {
		names = append(names, g.Name)
	}
	return names
}

// CPU time is the kernel's count for the process.
func TestABusyProcessUsesItsCPU(t *testing.T) {
	topo, err := linux.ReadTopology("/")
	if err != nil {
		t.Fatal(err)
	}
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Wait() }()
	defer func() { _ = busy.Process.Kill() }()
	w := New(Options{})
	defer func() { _ = w.Close() }()
	w.Follow([]inventory.Guest{{Name: "busy", PID: busy.Process.Pid}}, &topo)
	w.Sample()
	var load inventory.GuestLoad
	var onNodes float64
	for deadline := time.Now().Add(time.Minute); load.CPU == 0 && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
		s := w.Sample()
		load = s.Guests[0].Load
		for _, used := range s.Guests[0].CPUByNode {
			onNodes += used
		}
	}
	// The machine decides how much of a CPU the process gets, but not that it
	// wants one.
	if load.CPU <= 0 || load.Demand() > 1.5 || onNodes != load.CPU {
		t.Errorf("load %+v, on nodes %v", load, onNodes)
	}
}
