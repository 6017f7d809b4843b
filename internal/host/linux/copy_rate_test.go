package linux

import (
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
)

// On a host with one node nothing can be measured, and the error says so; with two, the rate is one of memory.
func TestCopyRate(t *testing.T) {
	top, err := ReadTopology(string(Live))
	if err != nil {
		t.Fatal(err)
	}
	to := top.Nodes[len(top.Nodes)-1].ID
	rate, err := CopyRate(t.Context(), top.Nodes[0].ID, to)
	if len(top.Nodes) == 1 {
		if err == nil {
			t.Errorf("%v a second from a node to itself", rate)
		}
		return
	}
	if err != nil || rate < topology.MiB || rate > 1<<40 {
		t.Errorf("%v a second: %v", rate, err)
	}
}
