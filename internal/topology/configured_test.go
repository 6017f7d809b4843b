package topology_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/topology"
)

func twoNodes(t *testing.T) topology.Topology {
	t.Helper()
	host, err := topology.Synthetic("nodes:2 cores:4 memory:1G")
	if err != nil {
		t.Fatal(err)
	}
	return host
}

func TestHousekeep(t *testing.T) {
	for _, c := range []struct{ cpus, want, err string }{
		{cpus: "0,3", want: "0,3,7"},
		{cpus: "", want: "7"},
		{cpus: "1,9", want: "1,7"}, // 9 is offline
		{cpus: "1,8-9,9999", err: "housekeeping CPUs 8,9999: not on this host, which has CPUs 0-7"},
	} {
		host := twoNodes(t)
		host.Offline = topology.MustParseSet[topology.CPUID]("9")
		host.Housekeeping = topology.MustParseSet[topology.CPUID]("7")
		err := host.Housekeep(topology.MustParseSet[topology.CPUID](c.cpus))
		if c.err != "" {
			if !errors.Is(err, topology.ErrNotHere) || err.Error() != c.err || host.Housekeeping.String() != "7" {
				t.Errorf("%q: error %v, want %s; housekeeping %s", c.cpus, err, c.err, host.Housekeeping)
			}
			continue
		}
		if err != nil || host.Housekeeping.String() != c.want {
			t.Errorf("%q: %v, housekeeping %s, want %s", c.cpus, err, host.Housekeeping, c.want)
		}
	}
}

func TestMeasure(t *testing.T) {
	host := twoNodes(t)
	before := host.Nodes[0].Classes
	strange, err := topology.ParseMeasured(
		strings.NewReader("{nodes: [0, 9], latency_ns: [[85, 140], [140, 85]], source: by hand}"))
	if err != nil {
		t.Fatal(err)
	}
	err = host.Measure(strange)
	if want := "measured matrix (by hand): nodes 9: not on this host, which has nodes 0-1"; !errors.Is(err,
		topology.ErrNotHere) ||
		err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if host.Measured != nil || !cmp.Equal(before, host.Nodes[0].Classes) {
		t.Errorf("figures of other nodes were taken: %+v", host.Measured)
	}
	one, err := topology.ParseMeasured(strings.NewReader("{nodes: [1], latency_ns: [[85]]}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Measure(one); err != nil || host.Measured != one {
		t.Errorf("not all nodes need figures: %v, %+v", err, host.Measured)
	}
}
