package operate_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// busyBut are the loads of a daemon that measured other programs on all CPUs of the
// square machine, except those of one node.
func busyBut(idle topology.NodeID) operate.Loads {
	return func(context.Context) (inventory.Host, error) {
		var h inventory.Host
		for n := range topology.NodeID(4) {
			if n != idle {
				h.Load = append(h.Load, inventory.NodeLoad{Node: n, CPU: 4})
			}
		}
		return h, nil
	}
}

// All that places a VM counts what the daemon measured.
func TestLoads_EveryPlacementCountsThem(t *testing.T) {
	asked := spec(t, guest.Spec{Name: "new", VCPUs: 2, Memory: 512 * mib})
	for idle := range topology.NodeID(4) {
		w := newWorld(t, square, folderOf(t))
		w.MustAdd(t, kinds[1].Guest("g", 128*mib, []topology.NodeID{0}, cpus("0-15")))
		w.Joined.Loads = busyBut(idle)
		want := topology.SetOf(idle)
		request := operate.CreateRequest{Spec: asked, Render: operatetest.Render}
		would, err := w.Joined.WouldCreate(context.Background(), request)
		if err != nil || !would.Placement.Nodes.Equal(want) {
			t.Errorf("create --dry-run: nodes %s, %v; want %s", would.Placement.Nodes, err, want)
		}
		for _, dry := range []bool{true, false} {
			b, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "g", DryRun: dry})
			if err != nil || !b.Plan.Placement.Nodes.Equal(want) {
				t.Errorf("bind, dry run %t: nodes %s, %v; want %s", dry, b.Plan.Placement.Nodes, err, want)
			}
		}
		process := asked
		process.Name, process.Topology.Mode = "run-1", guest.TopologyOff
		ran, err := w.Joined.PlaceNew(context.Background(), process, "true")
		if err != nil || !ran.Placement.Nodes.Equal(want) {
			t.Errorf("run: nodes %s, %v; want %s", ran.Placement.Nodes, err, want)
		}
		made, err := w.Create(asked)
		if err != nil || !made.Placement.Nodes.Equal(want) {
			t.Errorf("create: nodes %s, %v; want %s", made.Placement.Nodes, err, want)
		}
	}
}

// place and the balancer decide on the inventory of ObserveLoads as create does.
func TestObserveLoads_GivesPlaceAndBalanceTheFiguresOfCreate(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	w.Joined.Loads = busyBut(2)
	inv, err := w.Joined.ObserveLoads(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	asked := spec(t, guest.Spec{Name: "new", VCPUs: 2, Memory: 512 * mib})
	p, _, err := place.Place(place.Request{Host: &inv, Spec: asked, Policy: w.Joined.Policy})
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.Create(asked)
	if err != nil || !made.Placement.Nodes.Equal(p.Nodes) {
		t.Fatalf("create: nodes %s, %v; place: nodes %s", made.Placement.Nodes, err, p.Nodes)
	}
	if inv, err = w.Joined.ObserveLoads(context.Background()); err != nil {
		t.Fatal(err)
	}
	moves, err := balance.Plan(balance.Request{Host: &inv, Policy: w.Joined.Policy, Now: inv.Taken, Lasting: true})
	if err != nil || len(moves.Moves) > 0 {
		t.Errorf("the balancer would move the new VM: %+v, %v", moves.Moves, err)
	}
}

// A daemon that does not answer stops nothing; the inventory says that loads are
// missing.
func TestLoads_MissingOnesAreAGap(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	silent := errors.New("no answer")
	w.Joined.Loads = func(context.Context) (inventory.Host, error) { return inventory.Host{}, silent }
	inv, err := w.Joined.ObserveLoads(context.Background())
	missing := slices.ContainsFunc(inv.Gaps, func(g inventory.Gap) bool {
		return g.Kind == inventory.LoadsUnmeasured && g.Why == silent.Error()
	})
	if err != nil || !missing {
		t.Errorf("gaps %+v, %v", inv.Gaps, err)
	}
	if _, err := w.Create(spec(t, guest.Spec{Name: "new", VCPUs: 2, Memory: 512 * mib})); err != nil {
		t.Error(err)
	}
}
