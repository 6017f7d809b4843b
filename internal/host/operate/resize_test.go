package operate_test

import (
	"errors"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/topology"
)

// bySize returns the change of a size.
func bySize(vcpus int, memory topology.Bytes) func(guest.Spec) (guest.Spec, error) {
	return func(s guest.Spec) (guest.Spec, error) {
		s.VCPUs, s.Memory = vcpus, memory
		return s.Normalize()
	}
}

// A VM grows from one node to two while it does not run, and starts bound there. What does not fit, and what runs,
// does not change.
func TestResize_PlacesAgain(t *testing.T) {
	w := operatetest.New(t, "nodes:2 cores:4 memory:4G", operatetest.Folder(t))
	s := guest.Spec{Name: "web1", VCPUs: 2, Memory: 128 * topology.MiB}
	s.CPU.Binding = guest.CPUExclusive
	if _, err := w.Create(operatetest.Spec(t, s)); err != nil {
		t.Fatal(err)
	}
	ask := func(vcpus int, memory topology.Bytes, dry bool) (operate.Resized, error) {
		t.Helper()
		return w.Joined.Resize(t.Context(), operate.ResizeRequest{Name: "web1", Change: bySize(vcpus, memory), DryRun: dry})
	}
	running := w.MustGuest(t, "web1")
	if _, err := ask(4, 128*topology.MiB, false); !errors.Is(err, operate.ErrRuns) {
		t.Errorf("a VM that runs: %v", err)
	}
	w.CheckUnchanged(t, running)
	if err := w.Joined.StopGuest(t.Context(), operate.StopRequest{Name: "web1"}); err != nil {
		t.Fatal(err)
	}
	stopped := w.MustGuest(t, "web1")
	var none *place.NoFitError
	if _, err := ask(9, 128*topology.MiB, false); !errors.As(err, &none) {
		t.Errorf("more vCPUs than CPUs: %v", err)
	}
	refused := errors.New("refused")
	if _, err := w.Joined.Resize(t.Context(), operate.ResizeRequest{Name: "web1",
		Change: func(s guest.Spec) (guest.Spec, error) { return s, refused }}); !errors.Is(err, refused) {
		t.Errorf("a change that is refused: %v", err)
	}
	if _, err := w.Joined.Resize(t.Context(), operate.ResizeRequest{Name: "web2",
		Change: bySize(1, topology.MiB)}); !errors.Is(err, operate.ErrNoGuest) {
		t.Errorf("no such VM: %v", err)
	}
	would, err := ask(6, 5*topology.GiB, true)
	if err != nil || would.Placement.Nodes.Len() != 2 {
		t.Fatalf("dry run: %+v: %v", would, err)
	}
	w.CheckUnchanged(t, stopped)
	if resized, err := ask(6, 5*topology.GiB, false); err != nil || !resized.Placement.Nodes.Equal(would.Placement.Nodes) {
		t.Fatalf("%+v: %v", resized, err)
	}
	if _, err := w.Joined.StartGuest(t.Context(), operate.StartRequest{Name: "web1"}); err != nil {
		t.Fatal(err)
	}
	w.CheckInPlace(t, "web1")
	if g := w.MustGuest(t, "web1"); g.Config.VCPUs != 6 || g.Config.Memory != 5*topology.GiB || g.Spec.VCPUs != 6 {
		t.Errorf("%d vCPUs and %v, recorded as %d", g.Config.VCPUs, g.Config.Memory, g.Spec.VCPUs)
	}
	w.CheckSettled(t)
}
