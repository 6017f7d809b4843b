package operate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

const slice = "/sys/fs/cgroup/machine.slice/cpuset.mems"

// A cgroup above a VM excludes its nodes: nothing is begun, and the error is of
// a type that names the file. With the cgroup widened, bind succeeds.
func TestBind_NodeLimitAbove(t *testing.T) {
	folder := folderOf(t)
	for name, request := range map[string]operate.BindRequest{
		"new nodes":          {Name: "g", Change: limitTo("3")},
		"recorded placement": {Name: "g"},
		"dry run":            {Name: "g", Change: limitTo("3"), DryRun: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, square, folder)
			s := spec(t, guest.Spec{Name: "g", VCPUs: 1, Memory: 64 * mib, Limits: guest.Limits{Nodes: nodes("1")}})
			if _, err := w.Create(s); err != nil {
				t.Fatal(err)
			}
			if err := w.LimitNodes("g", slice, nodes("0")); err != nil {
				t.Fatal(err)
			}
			before := w.MustGuest(t, "g")
			former, _ := w.Joined.Journal.Entries()
			_, err := w.Joined.Bind(context.Background(), request)
			var limit *inventory.NodeLimitError
			if !errors.As(err, &limit) || limit.File != slice || limit.Nodes.String() != "0" {
				t.Fatalf("error is %v, want a NodeLimitError of %s", err, slice)
			}
			w.CheckUnchanged(t, before)
			w.CheckSettled(t)
			if now, _ := w.Joined.Journal.Entries(); len(now) != len(former) {
				t.Errorf("the journal has %d entries, had %d", len(now), len(former))
			}
			if err := w.LimitNodes("g", "", topology.NodeSet{}); err != nil {
				t.Fatal(err)
			}
			if b, err := w.Joined.Bind(context.Background(), request); err != nil || !request.DryRun && !b.Complete() {
				t.Errorf("without the limit: %v, falls short: %v", err, b.Shortfalls())
			}
		})
	}
}
