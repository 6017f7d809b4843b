package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// fakeSeries remembers the last call for each host.
type fakeSeries struct {
	mu     sync.Mutex
	loads  map[string]fleet.Loads
	places map[string]map[string]topology.NodeSet
}

func newFakeSeries() *fakeSeries {
	return &fakeSeries{loads: map[string]fleet.Loads{}, places: map[string]map[string]topology.NodeSet{}}
}

func (f *fakeSeries) Due(string, time.Time) bool { return true }

func (f *fakeSeries) Report(_ context.Context, host string, l fleet.Loads, placed map[string]topology.NodeSet) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loads[host], f.places[host] = l, placed
	return nil
}

func (f *fakeSeries) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
}

func (f *fakeSeries) placed(host string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.places[host]))
}

func TestTelemetry_GetsCompleteLoadsAndPlaces(t *testing.T) {
	series := newFakeSeries()
	r := newRigWith(t, series)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	a.follow(obey)
	load := func(node topology.NodeID, cpu float64) fleet.Node {
		return fleet.Node{NodeLoad: inventory.NodeLoad{Node: node, CPU: cpu}, Free: topology.GiB}
	}
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 1, Nodes: []fleet.Node{load(0, 1), load(1, 2)}}, nil)
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 2, Since: 1, Nodes: []fleet.Node{load(1, 3)}}, nil)
	series.mu.Lock()
	got := series.loads["a"]
	series.mu.Unlock()
	if len(got.Nodes) != 2 || got.Nodes[0].CPU != 1 || got.Nodes[1].CPU != 3 || got.Since != 0 {
		t.Errorf("got %+v", got)
	}
	if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 1, topology.GiB), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	number := uint64(2)
	report := func() []string {
		number++
		a.send("POST", "/agent/v1/loads", fleet.Loads{Number: number, Since: number - 1}, nil)
		return series.placed("a")
	}
	if got := report(); len(got) != 1 || got[0] != "vm" {
		t.Errorf("VMs on the host: %v", got)
	}
	if _, err := r.admin.DeleteVM(t.Context(), "vm", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("vm is removed", func() bool { return len(report()) == 0 })
}

func TestTelemetry_IsForViewersOfAllProjects(t *testing.T) {
	r := newRigWith(t, newFakeSeries())
	web := r.anonymous()
	for projects, want := range map[string]int{"": http.StatusUnauthorized, "default": http.StatusForbidden,
		"*": http.StatusOK} {
		token := ""
		if projects != "" {
			if _, err := r.admin.PutUser(t.Context(), "u",
				fleetapi.UserEdit{Role: fleetapi.Viewer, Projects: []string{projects}}); err != nil {
				t.Fatal(err)
			}
			made, err := r.admin.CreateToken(t.Context(), "u", fleetapi.TokenCreate{})
			if err != nil {
				t.Fatal(err)
			}
			token = made.Secret
		}
		if status := ask(t, web, r.url, http.MethodGet, "/api/v1/query", token, "", nil); status != want {
			t.Errorf("member of %q: status %d, want %d", projects, status, want)
		}
	}
}

// The alarms themselves are listed; those of VMs of other projects, and of nodes, are not for everybody.
func TestAlarms_AreListed(t *testing.T) {
	r := fieldRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	ann := r.member("ann", "shop", fleetapi.Quota{})
	of := func(name, project string) alarm.Alarm {
		v := vmOf(name, 1, topology.GiB)
		v.Project = project
		r.create(v)
		return alarm.Alarm{Quantity: alarm.GuestWait, Object: inventory.GuestRef(name),
			Severity: alarm.Warning, Worst: 0.5, Why: name + " waits", Guests: []string{name}}
	}
	all := []alarm.Alarm{of("own", "shop"), of("other", "default"), {Quantity: alarm.NodeCPU,
		Object: inventory.NodeRef(1), Severity: alarm.Critical, Why: "other is busy"}}
	counts := map[string]int{"guest-wait": 2, "node-cpu": 1}
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 1, Alarms: counts, Lasting: all}, nil)
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 2, Since: 1, Alarms: counts}, nil) // the same ones
	list, err := r.admin.Alarms(t.Context())
	if err != nil || len(list.Lasting) != 3 || list.Lasting[2].Object != "node 1" || list.Lasting[0].Host != "a" {
		t.Errorf("got %+v, %v", list, err)
	}
	list, err = ann.Alarms(t.Context())
	if err != nil || len(list.Lasting) != 1 || list.Lasting[0].Why != "own waits" {
		t.Errorf("got %+v, %v", list, err)
	}
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 3, Since: 2, Lasting: []alarm.Alarm{}}, nil)
	if list, err = r.admin.Alarms(t.Context()); err != nil || len(list.Lasting) > 0 {
		t.Errorf("got %+v, %v", list, err)
	}
}
