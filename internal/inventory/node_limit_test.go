package inventory

import (
	"errors"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
)

func TestGuest_CheckNodes(t *testing.T) {
	set := topology.MustParseSet[topology.NodeID]
	g := Guest{Seen: Seen{NodeLimits: []NodeLimit{
		{File: "/sys/fs/cgroup/machine.slice/cpuset.mems", Nodes: set("0-2")},
		{File: `/sys/fs/cgroup/machine.slice/machine-a\x2db.slice/cpuset.mems`, Nodes: set("0")},
	}}}
	for wanted, file := range map[string]int{"": -1, "0": -1, "1": 1, "0,2": 1, "3": 0, "0-3": 0} {
		err := g.CheckNodes(set(wanted))
		var limit *NodeLimitError
		if !errors.As(err, &limit) {
			if file >= 0 {
				t.Errorf("nodes %q: %v; want a NodeLimitError", wanted, err)
			}
			continue
		}
		if file < 0 || limit.File != g.Seen.NodeLimits[file].File {
			t.Errorf("nodes %q: %v", wanted, err)
		}
	}
	want := `echo 0,3 > '/sys/fs/cgroup/machine.slice/machine-a\x2db.slice/cpuset.mems'`
	if got := g.Seen.NodeLimits[1].Widen(set("3")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := g.CheckNodes(set("1")); !strings.Contains(err.Error(), "allows nodes 0, so nodes 1 cannot be used") {
		t.Error(err)
	}
}
