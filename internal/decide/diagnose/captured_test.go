package diagnose_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
)

// Findings from a topology alone (doctor --root DIR).
func TestCapturedHosts(t *testing.T) {
	for host, want := range map[string][]string{
		"2cpu-nonuma": nil,
		"8cpu-4n-1cxl": {
			"warning uneven-huge-pages huge pages of 2 MiB",
			"info memory-only-node node 4",
		},
		"8cpu-8n-4empty": {
			"warning node-without-memory node 0",
			"warning node-without-memory node 1",
			"warning node-without-memory node 4",
			"warning node-without-memory node 5",
		},
		"8cpu-8n-unequal": {"info memory-lopsided node 5"},
		"16cpu-4n-sparse-gpu": {
			"info topology-incomplete host",
			"info memory-only-node node 252",
			"info memory-only-node node 255",
		},
	} {
		t.Run(host, func(t *testing.T) {
			topo, err := linux.ReadTopology(topologytest.Root(t, host))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range diagnose.Run(&inventory.Host{Topology: topo}) {
				got = append(got, string(f.Severity)+" "+f.Rule+" "+f.Object)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
