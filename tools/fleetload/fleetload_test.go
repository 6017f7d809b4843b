package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// TestMain also is the process of the simulated daemons.
func TestMain(m *testing.M) {
	if is, err := asDaemons(os.Args); is {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)) // not in order
	}
	for _, c := range []struct {
		values []time.Duration
		p      int
		want   time.Duration
	}{
		{nil, 99, 0},
		{[]time.Duration{7}, 50, 7},
		{[]time.Duration{7}, 99, 7},
		{[]time.Duration{1, 2}, 50, 1},
		{[]time.Duration{1, 2}, 99, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{append(hundred, 1000), 99, 100},
	} {
		if got := percentile(c.values, c.p); got != c.want {
			t.Errorf("the %dth percentile of %d values: %d, want %d", c.p, len(c.values), got, c.want)
		}
	}
}

// A goal that is just reached is met where the figure may be equal, and missed where it must be less.
func TestReport_ComparesWithGoals(t *testing.T) {
	var r report
	r.below("CPUs", 1, 1)
	r.below("a little", 0.99, 1)
	r.atLeast("placements", 500, 500)
	r.atLeast("too few", 499, 500)
	r.add("other", "%.1f", 2)
	want := `figure      measured    goal
CPUs            1.00     < 1  missed
a little        0.99     < 1  met
placements       500  >= 500  met
too few          499  >= 500  missed
other            2.0
`
	if got := r.table(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// All VMs are on the hosts, no node has more than it has room for, and records and reports agree.
func TestDrawFleet(t *testing.T) {
	d, err := drawFleet(t.Context(), 45, 400)
	if err != nil {
		t.Fatal(err)
	}
	vms := 0
	for i := range d.hosts {
		seen := d.inventory(i)
		vms += len(seen.Guests)
		if err := seen.Validate(); err != nil {
			t.Fatal(err)
		}
		used := map[topology.NodeID]topology.Bytes{}
		for n := range d.vmsOn(i) {
			v := d.record(i, n)
			if g := seen.Guests[n]; g.Name != v.Name || g.Spec.Name != v.Name || g.Placement.Guest != v.Name ||
				v.Host != hostName(i) {
				t.Fatalf("host %d: VM %s, record %s", i, g.Name, v.Name)
			}
			for _, r := range v.Placement.Reservations {
				used[r.Node] += r.Memory
			}
		}
		for _, n := range seen.Topology.Nodes {
			if used[n.ID] > n.Memory {
				t.Errorf("host %d, node %d: %v of %v", i, n.ID, used[n.ID], n.Memory)
			}
		}
	}
	if vms != d.vms {
		t.Errorf("%d VMs, want %d", vms, d.vms)
	}
}

func TestOptions_RefuseWhatCannotBeMeasured(t *testing.T) {
	good := options{hosts: 10, vms: 120, daemons: 10, time: time.Second, rate: 1, clients: 1}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*options){
		"no host":                 func(o *options) { o.hosts = 0 },
		"more VMs than fit":       func(o *options) { o.vms = 121 },
		"more daemons than hosts": func(o *options) { o.daemons = 11 },
		"no time":                 func(o *options) { o.time = 0 },
		"no request":              func(o *options) { o.rate = 0 },
		"no user":                 func(o *options) { o.clients = 0 },
	} {
		o := good
		change(&o)
		if o.check() == nil {
			t.Error(what, "was accepted")
		}
	}
}

// The tool works: a real server, a few daemons and users. How fast they are is not tested.
func TestFleetload_MeasuresASmallFleet(t *testing.T) {
	server := filepath.Join(t.TempDir(), "numavisor-server")
	run := exec.CommandContext(t.Context(), "go", "build", "-o", server, "../../cmd/numavisor-server")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	o := options{server: server, hosts: 5, vms: 20, daemons: 3, time: 300 * time.Millisecond, rate: 100, clients: 2,
		folder: t.TempDir()}
	r, err := o.run(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	table := r.table()
	for _, figure := range []string{"in process", "with claims in etcd", "after its start", "with 3 daemons",
		"API meanwhile", "  show a VM", "other programs"} {
		if !strings.Contains(table, figure) {
			t.Errorf("no figure %q in\n%s", figure, table)
		}
	}
	if left, err := os.ReadDir(o.folder); err != nil || len(left) > 0 {
		t.Errorf("%d folders are left: %v", len(left), err)
	}
}
