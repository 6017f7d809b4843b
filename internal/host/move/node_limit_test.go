package move_test

import (
	"context"
	"errors"
	"testing"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

const slice = "/sys/fs/cgroup/machine.slice/cpuset.mems"

// A move that was planned before the limit was set is refused before it begins.
func TestMove_NodeLimitAbove(t *testing.T) {
	w := home(t, square, folderOf(t), gib, map[string]topology.NodeID{"a": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
	if err := w.LimitNodes("a", slice, nodes("0")); err != nil {
		t.Fatal(err)
	}
	before := w.MustGuest(t, "a")
	b := &book{}
	w.Inject(fake.Fault{})
	_, err := carryOut(context.Background(), w, m, b)
	var limit *inventory.NodeLimitError
	if !errors.As(err, &limit) || limit.File != slice {
		t.Fatalf("error is %v, want a NodeLimitError of %s", err, slice)
	}
	if len(b.Recorded) > 0 {
		t.Errorf("the journal has %+v", b.Recorded)
	}
	w.CheckUnchanged(t, before)
	w.CheckSettled(t)
}
