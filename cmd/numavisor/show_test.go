package main

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/topology"
)

// A VM that does not run has no threads, no memory, and no source of them.
func TestAVMThatDoesNotRunIsShown(t *testing.T) {
	var printed strings.Builder
	printView(&printed, &topology.Topology{},
		operate.View{Truth: operate.Truth{Guest: "db", State: "shutoff", VCPUs: 2}})
	if text := printed.String(); !strings.Contains(text,
		"memory by node from no source; cells from no source; threads from no source\n") ||
		strings.Contains(text, "THREAD ") {
		t.Errorf("printed\n%s", text)
	}
}
