package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/topology"
)

// A VM is paused while libvirt starts it, and nothing says when an operator resumes one: a sample in which its vCPUs
// ran does. Without such a sample the host is not observed before its time.
func TestAPausedVMThatRunsIsObserved(t *testing.T) {
	w := newWorld(t)
	var err error
	if w.topology, err = topology.Synthetic("nodes:2 cores:4 memory:4G"); err != nil {
		t.Fatal(err)
	}
	g := w.add("a", 2, topology.GiB, 0, 0)
	g.State = "paused"
	w.start(0)
	observed := func(d time.Duration) int {
		w.out.Reset()
		for end := w.now.Add(d); w.now.Before(end); {
			w.now = w.now.Add(time.Second)
			w.turn()
		}
		return strings.Count(w.out.String(), "observe  host")
	}
	if n := observed(10 * time.Second); n != 1 {
		t.Fatalf("observed %d times in 10 s while the VM is paused, want 1:\n%s", n, w.out.String())
	}
	g.State, g.cpu = "running", 0.5
	if n := observed(2 * time.Second); n != 1 {
		t.Errorf("observed %d times in 2 s after the VM was resumed, want 1:\n%s", n, w.out.String())
	}
	if n := observed(10 * time.Second); n != 0 {
		t.Errorf("observed %d times in 10 s while the VM runs, want 0:\n%s", n, w.out.String())
	}
	w.step(control.Stop{})
}
